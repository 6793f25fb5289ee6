//! The commands of a cluster of processes and memory nodes: `mitra memory`, `propose`, `elect`, `kv`, `key`.

pub(crate) mod elect;
pub(crate) mod key;
pub(crate) mod kv;
mod kv_json;
pub(crate) mod memory;
pub(crate) mod propose;
mod protocol;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use mitra_consensus_rdma::Token;
use mitra_control::{ControlServer, ControlledDevice, DeviceStatus, apply_fault, rail_status};
use mitra_control::{FaultAction, FaultScript, RailsConfig, Settings, run_dir};
use mitra_failover::{Activity, Domain};
use mitra_softnic::SoftNic;
use mitra_verbs::Provider;
use sha2::{Digest, Sha256};

/// The longest `--timeout`: a year.
const MAX_TIMEOUT_SECONDS: u64 = 366 * 24 * 3600;

/// The options of every process and memory node.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// Number of rails, each on a free loopback address; or the address of each rail, separated by commas. All
    /// processes and memory nodes need the same number
    #[arg(long, value_name = "N|ADDRESS,...", default_value = "2")]
    rails: RailsConfig,
    /// Shared-secret file, the same everywhere; required for addresses other than loopback
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Fault script, with times relative to the start; can be given several times. `mitra fault` injects faults later
    #[arg(long, value_name = "SCRIPT")]
    fault: Vec<FaultScript>,
}

/// The NICs that `mitra fault` controls, and the domain of their queue pairs.
struct ControlledNics {
    nics: Vec<Arc<SoftNic>>,
    domain: Arc<Domain>,
}

impl ControlledDevice for ControlledNics {
    fn apply_fault(&mut self, rail: usize, change: FaultAction) {
        if let Some(nic) = self.nics.get(rail) {
            apply_fault(nic, change);
        }
    }

    fn status(&mut self) -> DeviceStatus {
        let Activity { vqps, failovers } = self.domain.activity();
        let rails = self.nics.iter().map(|nic| rail_status(nic)).collect();
        DeviceStatus { rails, queue_pairs: vqps, failovers }
    }
}

impl ClusterArgs {
    /// Opens the rails. `mitra fault` can control them while the returned server lives.
    pub(crate) fn open(&self) -> anyhow::Result<(Arc<Domain>, ControlServer)> {
        let configs: Vec<_> = match &self.rails {
            RailsConfig::Count(count) => vec![mitra_softnic::Config::loopback(); *count],
            RailsConfig::Addresses(addresses) => {
                addresses.iter().map(|&a| mitra_softnic::Config::at(a)).collect()
            }
        };
        let open = |(rail, config)| {
            SoftNic::open(config).with_context(|| format!("cannot open the NIC of rail {rail}"))
        };
        let nics: Vec<_> = configs.into_iter().enumerate().map(open).collect::<Result<_, _>>()?;
        let faults = FaultScript(self.fault.iter().flat_map(|script| script.0.clone()).collect());
        faults.check_rails(nics.len()).map_err(anyhow::Error::msg).context("--fault")?;
        let run_dir = Settings::from_env()?.run_dir.unwrap_or_else(run_dir::default_path);
        let settings =
            Settings { rails: self.rails.clone(), faults, run_dir: Some(run_dir), ..Settings::default() };
        let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::with_completion_channels(providers)?;
        let device = ControlledNics { nics, domain: Arc::clone(&domain) };
        let server = ControlServer::start(&settings, device)
            .context("cannot open the control socket for `mitra fault`")?;
        Ok((domain, server))
    }

    /// Listens on a TCP address. Addresses other than loopback require a shared secret.
    pub(crate) fn listen(&self, at: SocketAddr) -> anyhow::Result<TcpListener> {
        ensure!(
            at.ip().is_loopback() || self.secret.is_some(),
            "other machines can reach {at}: give every process and memory node the same --secret FILE"
        );
        TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))
    }

    /// Returns the token that authenticates each process, derived from the shared secret.
    pub(crate) fn tokens(&self, processes: u8) -> anyhow::Result<Vec<Token>> {
        let secret = match &self.secret {
            Some(file) => std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
            None => Vec::new(),
        };
        let token = |p: u8| {
            let digest =
                Sha256::new().chain_update(b"mitra token").chain_update([p]).chain_update(&secret).finalize();
            std::array::from_fn(|i| digest[i])
        };
        Ok((0..processes).map(token).collect())
    }
}

//! Processes and memories that decide together: `mitra memory`, `mitra propose`, `mitra elect`, `mitra kv`, `mitra key`.

pub(crate) mod elect;
pub(crate) mod key;
pub(crate) mod kv;
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
use mitra_failover::Domain;
use mitra_softnic::SoftNic;
use mitra_verbs::Provider;
use sha2::{Digest, Sha256};

/// What every process and memory is told.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Place {
    /// How many rails, each at a free loopback address; or the address of each, separated by commas. All must have as many
    #[arg(long, value_name = "N|ADDRESS,...", default_value = "2")]
    rails: RailsConfig,
    /// What only those know that belong together: needed where others than this machine reach them
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Let this befall the rails, counted from now; may be given several times. `mitra fault` does it live
    #[arg(long, value_name = "SCRIPT")]
    fault: Vec<FaultScript>,
}

/// The rails, for who lets faults befall them.
struct Nics(Vec<Arc<SoftNic>>);

impl ControlledDevice for Nics {
    fn apply_fault(&mut self, rail: usize, change: FaultAction) {
        if let Some(nic) = self.0.get(rail) {
            apply_fault(nic, change);
        }
    }

    fn status(&mut self) -> DeviceStatus {
        let rails = self.0.iter().map(|nic| rail_status(nic)).collect();
        // What goes over them is not this command's to count.
        DeviceStatus { rails, queue_pairs: 0, failovers: 0 }
    }
}

impl Place {
    /// Opens the rails. `mitra fault` reaches them for as long as the server lives.
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
        let server =
            ControlServer::start(&settings, Nics(nics.clone())).context("cannot listen for mitra fault")?;
        Ok((
            Domain::with_completion_channels(nics.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?,
            server,
        ))
    }

    /// Opens a door.
    pub(crate) fn listen(&self, at: SocketAddr) -> anyhow::Result<TcpListener> {
        ensure!(
            at.ip().is_loopback() || self.secret.is_some(),
            "others than this machine reach {at}: give all of them the same --secret FILE"
        );
        TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))
    }

    /// The word by which each process is known.
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

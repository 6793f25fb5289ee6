//! The commands of a cluster of processes and memory nodes: `mitra memory`, `propose`, `elect`,
//! `kv`, `key`.

pub(crate) mod elect;
pub(crate) mod key;
pub(crate) mod kv;
mod kv_json;
pub(crate) mod memory;
pub(crate) mod propose;
mod protocol;
mod secret_file;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use mitra_consensus_rdma::Token;
use mitra_control::{ControlServer, ControlledDevice, ControlledNics, MetricsAddress, check_fault};
use mitra_control::{FaultScript, RailsConfig, Settings, run_dir};
use mitra_failover::Domain;
use mitra_metrics::MetricsServer;
use mitra_nics::{NicKind, NicName, RailNics};
use mitra_os_util::interfaces::interface_of;
use mitra_verbs::{Nic, NicAddress, Provider};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::complain;

/// The longest `--timeout`: a year.
const MAX_TIMEOUT_SECONDS: u64 = 366 * 24 * 3600;

/// The options of every process and memory node.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// Number of rails, 1 to 8, each on a free loopback address; or the address of each rail,
    /// separated by commas. All processes and memory nodes need the same number
    #[arg(long, value_name = "N|ADDRESS,...", default_value = "2")]
    rails: RailsConfig,
    /// NIC of each rail, instead of --rails: an RDMA device of the kernel by its name, or a
    /// software NIC by its address, separated by commas
    #[arg(long, value_name = "NAME|ADDRESS,...", conflicts_with = "rails")]
    device: Option<RailNics>,
    /// Kind of software NIC: soft, or minimal, for tests of what needs less of a NIC
    /// [default: MITRA_NICS, or soft]
    #[arg(long, value_name = "KIND")]
    nics: Option<NicKind>,
    /// Shared-secret file of mode 600: any bytes, the same at every process and memory node;
    /// required for addresses other than loopback
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Fault script, with times relative to the start; can be given several times. `mitra fault`
    /// injects faults later, and its help describes them
    #[arg(long, value_name = "SCRIPT")]
    fault: Vec<FaultScript>,
    /// Serve OpenMetrics at http://127.0.0.1:PORT/metrics, or at another address; port 0 takes a
    /// free one
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    metrics: Option<MetricsAddress>,
    /// Sample the latencies of RDMA operations, for `mitra watch` and --metrics
    #[arg(long)]
    latency: bool,
}

/// The rails of a process that another one starts on the same machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerRails {
    rails: usize,
    device: Option<RailNics>,
    nics: Option<NicKind>,
}

impl PeerRails {
    pub(crate) fn args(self) -> ClusterArgs {
        ClusterArgs {
            rails: RailsConfig::Count(self.rails),
            device: self.device,
            nics: self.nics,
            secret: None,
            fault: Vec::new(),
            metrics: None,
            latency: false,
        }
    }
}

/// The control socket of a process, and its metrics endpoint if it has one, while the value lives.
pub(crate) struct Visibility {
    _control: ControlServer,
    _metrics: Option<MetricsServer>,
}

impl ClusterArgs {
    /// The rails of a process that this one starts on this machine: as many, on free loopback
    /// addresses or on the same devices.
    pub(crate) fn for_own_peer(&self) -> PeerRails {
        let rails = match (&self.device, &self.rails) {
            (Some(device), _) => device.names().len(),
            (None, rails) => rails.count(),
        };
        PeerRails { rails, device: self.device.clone(), nics: self.nics }
    }

    /// The NIC of each rail, where the user names it.
    fn nic_names(&self) -> Vec<Option<NicName>> {
        match (&self.device, &self.rails) {
            (Some(device), _) => device.names().iter().cloned().map(Some).collect(),
            (None, RailsConfig::Count(count)) => vec![None; *count],
            (None, RailsConfig::Addresses(addresses)) => {
                addresses.iter().map(|&address| Some(NicName::Address(address))).collect()
            }
            (None, RailsConfig::Devices(names)) => names.iter().map(|name| name.parse().ok()).collect(),
        }
    }

    /// Opens the rails. While the returned [`Visibility`] lives, `mitra fault` controls the rails,
    /// and `mitra watch` shows them.
    pub(crate) fn open(&self) -> anyhow::Result<(Arc<Domain>, Visibility)> {
        let environment = Settings::from_env()?;
        let (kind, links) = (self.nics.map_or_else(|| environment.nic_kind(), Ok)?, environment.links);
        let open = |(rail, name): (usize, Option<NicName>)| {
            let opened = match name {
                Some(name) => name.open(kind, links),
                None => kind.open(NicAddress::Free, links),
            };
            let opened = opened.map_err(anyhow::Error::from_boxed);
            opened.map(|opened| opened.nic).with_context(|| format!("cannot open the NIC of rail {rail}"))
        };
        let nics: Vec<Arc<dyn Nic>> =
            self.nic_names().into_iter().enumerate().map(open).collect::<anyhow::Result<_>>()?;
        let faults = FaultScript(self.fault.iter().flat_map(|script| script.0.clone()).collect());
        faults.check_rails(nics.len()).map_err(anyhow::Error::msg).context("--fault")?;
        for fault in &faults.0 {
            let checked = check_fault(&*nics[fault.rail], fault.action);
            checked.map_err(|reason| anyhow::anyhow!("--fault: `{fault}`: {reason}"))?;
        }
        let run_dir = environment.run_dir.unwrap_or_else(run_dir::default_path);
        let rails = match self.device {
            Some(_) => RailsConfig::Addresses(nics.iter().map(|nic| nic.address()).collect()),
            None => self.rails.clone(),
        };
        let settings = Settings { rails, faults, run_dir: Some(run_dir), ..Settings::default() };
        let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::with_completion_channels(providers)?;
        domain.telemetry().sample_latency(self.latency);
        let device = ControlledNics::new(nics, Arc::clone(&domain));
        let control = ControlServer::start(&settings, device.clone())
            .context("cannot open the control socket for `mitra fault` and `mitra watch`")?;
        let metrics = self.metrics.map(|address| serve_metrics(address, device)).transpose()?;
        Ok((domain, Visibility { _control: control, _metrics: metrics }))
    }

    /// Checks that the rails can reach the memory nodes and processes at these addresses.
    pub(crate) fn check_reach(&self, others: &[SocketAddr]) -> anyhow::Result<()> {
        if self.is_on_loopback() {
            for other in others {
                ensure!(
                    interface_of(other.ip())?.is_some(),
                    "{other} is on another machine, and the rails are on loopback addresses, which reach no other machine; \
                     give --rails ADDRESS,... (`mitra devices` lists the addresses)"
                );
            }
        }
        Ok(())
    }

    /// Whether only processes of this machine reach the rails.
    fn is_on_loopback(&self) -> bool {
        self.nic_names().iter().all(|name| match name {
            None => true,
            Some(NicName::Address(address)) => address.is_loopback(),
            Some(NicName::Device(_)) => false,
        })
    }

    /// Warns if other machines can reach the memory node's TCP address, but not its rails.
    pub(crate) fn note_loopback(&self, listen: SocketAddr) {
        if self.is_on_loopback() && !listen.ip().is_loopback() {
            complain(
                "note: the rails are on loopback addresses, so only processes of this machine can use the memory; for others, \
                 give --rails ADDRESS,... (`mitra devices` lists the addresses)",
            );
        }
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
            Some(file) => secret_file::read(file)?,
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

/// Starts the metrics endpoint, and writes its address to standard error.
fn serve_metrics(
    MetricsAddress(address): MetricsAddress,
    mut device: ControlledNics,
) -> anyhow::Result<MetricsServer> {
    let server = MetricsServer::start(address, move || device.snapshot()).context("--metrics")?;
    complain(format_args!("the metrics are at http://{}/metrics", server.address()));
    Ok(server)
}

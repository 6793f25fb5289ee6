//! One side of the connection: the NICs of two rails, the vQP over them, and the fault.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mitra_control::{ControlServer, ControlledNics, RailsConfig, Settings, run_dir};
use mitra_failover::{CompletionLogConfig, Config, ConnectInfo, DetectorConfig, Domain, VirtualQp};
use mitra_nics::{NicKind, NicName, TwoEnds};
use mitra_softnic::SoftNic;
use mitra_verbs::fault::{FaultKind, Trigger};
use mitra_verbs::{Links, LocalAckTimeout, Nic, PortState, Provider};

use super::fault_plan::Side;
use super::protocol::{ConnectionInfo, Failover, RoundSetup};
use super::workload::MTU;

const RAILS: usize = 2;

/// The largest number of outstanding READs and atomics in each direction.
const RD_ATOMIC: u8 = 16;

pub(super) struct RailEndpoint {
    side: Side,
    nics: Vec<Arc<dyn Nic>>,
    pub(super) domain: Arc<Domain>,
    pub(super) vqp: VirtualQp,
    /// The time at which this side observed the fault, in ns of the machine's monotonic clock.
    pub(super) fault_at: Option<u64>,
    armed: bool,
    /// The number of posted operations after which the NIC of rail 0 is reset.
    reset_after: Option<usize>,
    /// The control socket, while the endpoint lives.
    _control: Option<ControlServer>,
}

impl RailEndpoint {
    pub(super) fn open(side: Side, round: &RoundSetup) -> anyhow::Result<RailEndpoint> {
        let open =
            |rail| open_nic(side, round, rail).with_context(|| format!("cannot open the NIC of rail {rail}"));
        let nics = (0..RAILS).map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let domain = Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())?;
        let config = Config {
            policy: round.policy.parse()?,
            completion_log: round.log.then(CompletionLogConfig::default),
            send_wrs: round.in_flight,
            recv_wrs: receives(round.in_flight),
            rd_atomic: RD_ATOMIC,
            // A link or NIC that fails raises an event. The heartbeat timeout is long, so that a
            // process that waits for the scheduler is not considered failed.
            detector: DetectorConfig {
                heartbeat_interval: Duration::from_millis(100),
                max_missed_heartbeats: 30,
                local_ack_timeout: LocalAckTimeout::from_code(17),
                ..DetectorConfig::default()
            },
            ..Config::default()
        };
        let vqp = VirtualQp::builder(&domain).config(config).build()?;
        let control = visible(&nics, &domain);
        Ok(RailEndpoint {
            side,
            nics,
            domain,
            vqp,
            fault_at: None,
            armed: false,
            reset_after: None,
            _control: control,
        })
    }

    pub(super) fn connection_info(&self, regions: Vec<Vec<u8>>) -> anyhow::Result<ConnectionInfo> {
        let addresses =
            self.nics.iter().map(|nic| Ok(nic.query_port()?.gid)).collect::<anyhow::Result<Vec<_>>>()?;
        let addresses = addresses.into_iter().map(|gid| std::net::IpAddr::from(gid).to_string()).collect();
        Ok(ConnectionInfo { connect: self.vqp.local_info().encode(), regions, addresses })
    }

    pub(super) fn connect(&mut self, peer: &ConnectionInfo) -> anyhow::Result<()> {
        self.vqp.connect(&ConnectInfo::decode(&peer.connect)?).context("cannot connect")
    }

    /// Arms the fault on rail 0, if the fault is at this side. No packet of a device of the
    /// kernel fails on demand: it is reset when the program has posted its operation of that
    /// number.
    pub(super) fn arm(&mut self, round: &RoundSetup) -> anyhow::Result<()> {
        if round.fault_at == self.side {
            let trigger: Trigger = round.fault.parse()?;
            let switch = self.nics[0].fault_switch();
            match switch.filter(|switch| switch.check(FaultKind::Trigger).is_ok()) {
                Some(switch) => switch.arm(trigger),
                None => self.reset_after = Some(trigger.nth as usize),
            }
            self.armed = true;
        }
        Ok(())
    }

    /// Resets the NIC of rail 0 if the armed fault says so. `posted` operations have been posted.
    pub(super) fn after_post(&mut self, posted: usize) -> anyhow::Result<()> {
        if self.reset_after.take_if(|nth| *nth == posted).is_some() {
            self.fault_at = Some(self.now());
            self.nics[0].reset().context("cannot reset the NIC of rail 0")?;
        }
        Ok(())
    }

    /// Records the current time if the armed fault has triggered since the last call.
    pub(super) fn check_fault(&mut self) {
        if self.armed && self.fault_at.is_none() {
            let is_active = self.nics[0].query_port().is_ok_and(|port| port.state == PortState::Active);
            if !is_active {
                self.fault_at = Some(self.now());
            }
        }
    }

    /// Returns the machine's monotonic clock in ns, which the NICs use too.
    pub(super) fn now(&self) -> u64 {
        self.nics[0].now().as_nanos()
    }

    pub(super) fn failover(&self) -> Option<Failover> {
        let report = self.vqp.last_failover()?;
        Some(Failover {
            moves: report.epoch - 1,
            cause: report.cause.to_string(),
            detected: report.detected_at.as_nanos(),
            fenced: report.fenced_at.as_nanos(),
            decided: report.decided_at.as_nanos(),
            bytes_in_flight: report.stats.bytes_in_flight,
            bytes_replayed: report.stats.bytes_replayed,
        })
    }

    /// Returns the reason why the vQP closed. `None` if the vQP is open.
    pub(super) fn ended(&self) -> Option<String> {
        let reason = self.vqp.close_reason()?;
        Some(match self.vqp.contradiction() {
            Some(contradiction) => format!("{contradiction}: {reason}"),
            None => reason.to_string(),
        })
    }
}

/// Opens the NIC of a rail: the one that the user names, or a software NIC on a free loopback
/// address.
fn open_nic(side: Side, round: &RoundSetup, rail: usize) -> anyhow::Result<Arc<dyn Nic>> {
    let mut config = mitra_softnic::Config::loopback();
    match round.device.as_ref().map(|TwoEnds(ends)| &ends[side as usize][rail]) {
        None => {}
        Some(NicName::Address(address)) => config.address = Some(*address),
        Some(name) => {
            let opened = name.open(NicKind::Soft, Links::Auto).map_err(anyhow::Error::from_boxed)?;
            return Ok(opened.nic);
        }
    }
    config.max_mtu = Some(MTU);
    config.ack_after_placement = !round.ack_before_placement;
    config.capture = round.pcap.as_ref().map(|begin| {
        let mut name = begin.clone().into_os_string();
        name.push(format!("-{}-rail{rail}.pcap", side.name()));
        name.into()
    });
    Ok(SoftNic::open(config)?)
}

/// Makes the process visible to `mitra watch`. Returns `None` without a usable run directory.
fn visible(nics: &[Arc<dyn Nic>], domain: &Arc<Domain>) -> Option<ControlServer> {
    let run_dir = Settings::from_env().ok()?.run_dir.unwrap_or_else(run_dir::default_path);
    let settings =
        Settings { rails: RailsConfig::Count(RAILS), run_dir: Some(run_dir), ..Settings::default() };
    ControlServer::start(&settings, ControlledNics::new(nics.to_vec(), Arc::clone(domain))).ok()
}

/// Returns how many receives the server keeps posted: twice the operations in flight.
pub(super) fn receives(in_flight: u32) -> u32 {
    2 * in_flight
}

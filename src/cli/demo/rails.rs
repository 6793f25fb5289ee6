//! One end of the rails: two software NICs on loopback addresses of their own, the vQP over them, and the fault.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mitra_failover::{Cause, Config, ConnectInfo, DetectorConfig, Domain, VirtualQp};
use mitra_softnic::SoftNic;
use mitra_verbs::{LocalAckTimeout, PortState, Provider};

use super::plan::Side;
use super::protocol::{Failover, Introduction, Round};
use super::workload::MTU;

/// Rails of a vQP.
const RAILS: usize = 2;

/// READs and atomics outstanding.
const RD_ATOMIC: u8 = 16;

pub(super) struct Rails {
    nics: Vec<Arc<SoftNic>>,
    pub(super) domain: Arc<Domain>,
    pub(super) vqp: VirtualQp,
    /// When the fault was seen to have struck.
    pub(super) struck: Option<u64>,
    armed: bool,
}

impl Rails {
    pub(super) fn open(side: Side, round: &Round) -> anyhow::Result<Rails> {
        let nics = (0..RAILS)
            .map(|rail| {
                let mut config = mitra_softnic::Config::loopback();
                config.max_mtu = Some(MTU);
                config.ack_after_placement = !round.lies;
                config.capture = round.pcap.as_ref().map(|begin| {
                    let mut name = begin.clone().into_os_string();
                    name.push(format!("-{}-rail{rail}.pcap", side.name()));
                    name.into()
                });
                SoftNic::open(config)
            })
            .collect::<Result<Vec<_>, _>>()
            .context("cannot open a software NIC")?;
        let domain = Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())?;
        let config = Config {
            policy: round.policy.parse()?,
            completion_log: round.log,
            send_wrs: round.in_flight,
            recv_wrs: receives(round.in_flight),
            rd_atomic: RD_ATOMIC,
            // Links and NICs that fail say so. A process that waits for its turn on a busy machine must not look
            // like one that has failed.
            detector: DetectorConfig {
                heartbeat_interval: Duration::from_millis(100),
                max_missed_heartbeats: 30,
                local_ack_timeout: LocalAckTimeout::from_code(17),
                ..DetectorConfig::default()
            },
            ..Config::default()
        };
        let vqp = VirtualQp::new(Arc::clone(&domain), config, secret()?)?;
        Ok(Rails { nics, domain, vqp, struck: None, armed: false })
    }

    /// What the peer is to be told.
    pub(super) fn introduce(&self, regions: Vec<Vec<u8>>) -> anyhow::Result<Introduction> {
        let addresses =
            self.nics.iter().map(|nic| Ok(nic.query_port()?.gid)).collect::<anyhow::Result<Vec<_>>>()?;
        let addresses = addresses.into_iter().map(|gid| std::net::IpAddr::from(gid).to_string()).collect();
        Ok(Introduction { connect: self.vqp.local_info()?.encode(), regions, addresses })
    }

    pub(super) fn connect(&mut self, peer: &Introduction) -> anyhow::Result<()> {
        self.vqp.connect(&ConnectInfo::decode(&peer.connect)?).context("cannot connect")
    }

    /// Arms the fault, if this end has it, on rail 0.
    pub(super) fn arm(&mut self, fault: Option<&str>) -> anyhow::Result<()> {
        if let Some(script) = fault {
            self.nics[0].faults().arm(script.parse()?);
            self.armed = true;
        }
        Ok(())
    }

    /// Looks whether the armed fault has struck.
    pub(super) fn look(&mut self) {
        if self.armed && self.struck.is_none() {
            let fine = self.nics[0].query_port().is_ok_and(|port| port.state == PortState::Active);
            if !fine {
                self.struck = Some(self.now());
            }
        }
    }

    /// The machine's monotonic clock, which is the software NICs'.
    pub(super) fn now(&self) -> u64 {
        self.nics[0].now().as_nanos()
    }

    pub(super) fn failover(&self) -> Option<Failover> {
        let report = self.vqp.last_failover()?;
        let cause = match report.cause {
            Cause::Completion(status) => format!("completion {status:?}"),
            Cause::Device => "device event".to_owned(),
            Cause::Heartbeat => "heartbeats missed".to_owned(),
            Cause::Peer => "told by the peer".to_owned(),
        };
        Some(Failover {
            moves: report.epoch - 1,
            cause,
            detected: report.detected_at.as_nanos(),
            fenced: report.fenced_at.as_nanos(),
            decided: report.decided_at.as_nanos(),
            bytes_in_flight: report.stats.bytes_in_flight,
            bytes_replayed: report.stats.bytes_replayed,
        })
    }

    /// Why the vQP ended, if it did.
    pub(super) fn ended(&self) -> Option<String> {
        let why = self.vqp.close_reason()?;
        Some(match self.vqp.contradiction() {
            Some(contradiction) => format!("{why:?}: {contradiction:?}"),
            None => format!("{why:?}"),
        })
    }
}

/// Receives that the server keeps posted: twice what can be in flight.
pub(super) fn receives(in_flight: u32) -> u32 {
    2 * in_flight
}

pub(super) fn secret() -> anyhow::Result<[u64; 2]> {
    Ok([getrandom::u64()?, getrandom::u64()?])
}

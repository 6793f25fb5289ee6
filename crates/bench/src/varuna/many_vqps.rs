//! `vqps/COUNT/…`: many vQPs between two processes fail over together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use mitra_failover::{Completion, Config, ConnectInfo, DetectorConfig, Domain, RemoteRegion, VirtualQp};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_softnic::SoftNic;
use mitra_softnic::fault::{Failure, Noise};
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};
use serde::{Deserialize, Serialize};

use super::Args;
use crate::endpoint::NicPlacement;
use crate::failover::row;
use crate::report::Row;
use crate::resident_memory::resident;
use crate::{PEER_ROLE, Task, progress, run_error};

/// The maximum number of vQPs. Each needs a queue pair and a completion queue per rail, of which a software NIC has 32,768, and the measurement of
/// a standby rail makes twice as many.
const MAX_VQPS: usize = 16_000;
/// The time after which a vQP that has not recovered counts as lost.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of polls of all vQPs between two checks for a message from the other process.
const SWEEPS_PER_CHECK: u32 = 4;

/// The parameters of the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    count: usize,
    placement: NicPlacement,
}

/// The process that posts, or the one whose memory it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Requester,
    Responder,
}

/// The vQPs of a process over two NICs, with a region that all of them share.
struct Group {
    nics: [Arc<SoftNic>; 2],
    vqps: Vec<VirtualQp>,
    region: mitra_failover::VirtualMr,
    remote: Option<RemoteRegion>,
}

/// The information that the peer needs to connect a group.
#[derive(Serialize, Deserialize)]
struct GroupInfo {
    connect: Vec<Vec<u8>>,
    region: Vec<u8>,
}

fn config() -> Config {
    Config {
        send_wrs: 8,
        recv_wrs: 1,
        send_sges: 1,
        recv_sges: 1,
        inline: 8,
        rd_atomic: 1,
        // The port event is the detector, and no rail is probed during the run.
        detector: DetectorConfig {
            heartbeat_interval: Duration::from_secs(10),
            max_missed_heartbeats: 0,
            ..DetectorConfig::default()
        },
        control_retry_interval: Duration::from_millis(200),
        peer_timeout: RECOVERY_TIMEOUT,
        ..Config::default()
    }
}

/// Makes vQPs over these NICs, unconnected.
fn build_vqps(nics: &[Arc<SoftNic>], count: usize) -> anyhow::Result<(Arc<Domain>, Vec<VirtualQp>)> {
    let domain = Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())?;
    let vqps = (0..count).map(|_| Ok(VirtualQp::builder(&domain).config(config()).build()?));
    let vqps = vqps.collect::<anyhow::Result<_>>()?;
    Ok((domain, vqps))
}

/// Returns the resident bytes that a second rail adds to a vQP, and the vQPs that were measured. They keep their memory, so that it does not
/// serve the next measurement.
fn standby_bytes(count: usize) -> anyhow::Result<(f64, [Vec<VirtualQp>; 2])> {
    let nics = NicPlacement::default().open()?;
    let before = resident()?;
    let (_, on_one_rail) = build_vqps(&nics[..1], count)?;
    let between = resident()?;
    let (_, on_two_rails) = build_vqps(&nics, count)?;
    let [one, two] = [between.saturating_sub(before), resident()?.saturating_sub(between)];
    Ok((two.saturating_sub(one) as f64 / count as f64, [on_one_rail, on_two_rails]))
}

impl Group {
    fn open(placement: &NicPlacement, count: usize) -> anyhow::Result<Group> {
        let nics = placement.open()?;
        let (domain, vqps) = build_vqps(&nics, count)?;
        let region =
            domain.register(&Arc::new(Buffer::new(8 * count)), Access::LOCAL_WRITE | Access::REMOTE)?;
        Ok(Group { nics, vqps, region, remote: None })
    }

    fn connect(&mut self, connection: &mut PeerConnection, role: Role) -> anyhow::Result<()> {
        let connect = self.vqps.iter().map(|vqp| Ok(vqp.local_info()?.encode()));
        let connect = connect.collect::<anyhow::Result<_>>()?;
        let own = GroupInfo { connect, region: self.region.remote().encode() };
        // The message is longer than a socket's buffer, so both processes must not send at the same time.
        let peer: GroupInfo = match role {
            Role::Requester => {
                connection.send(&own)?;
                connection.receive()?
            }
            Role::Responder => {
                let peer = connection.receive()?;
                connection.send(&own)?;
                peer
            }
        };
        ensure!(peer.connect.len() == self.vqps.len(), "the peer has {} vQPs", peer.connect.len());
        let remote = RemoteRegion::decode(&peer.region)?;
        for (vqp, info) in self.vqps.iter_mut().zip(&peer.connect) {
            vqp.connect(&ConnectInfo::decode(info)?)?;
            vqp.import(&remote)?;
        }
        self.remote = Some(remote);
        Ok(())
    }

    /// Posts an 8-byte WRITE on each vQP.
    fn post_writes(&mut self, value: u64) -> anyhow::Result<()> {
        let Some(remote) = &self.remote else { bail!("the group is not connected") };
        for (index, vqp) in self.vqps.iter_mut().enumerate() {
            let at = remote.at(8 * index as u64);
            vqp.post_send(SendWr::new(value, SendOp::Write(at), Data::inline(&value.to_ne_bytes())))?;
        }
        Ok(())
    }
}

/// Opens the vQPs of both processes and connects them.
fn open(setup: &Setup, connection: &mut PeerConnection, role: Role) -> anyhow::Result<Group> {
    ensure!(setup.count <= MAX_VQPS, "a pair of NICs has room for {MAX_VQPS} vQPs; lower --vqps");
    let mut group = Group::open(&setup.placement, setup.count)?;
    group.connect(connection, role)?;
    // Neither side posts before both are connected.
    connection.send(&())?;
    connection.receive::<()>()?;
    Ok(group)
}

/// Polls all vQPs until each has completed its WRITE. Returns the time from `since` to each completion, in microseconds.
fn complete_writes(group: &mut Group, since: Instant) -> anyhow::Result<Vec<f64>> {
    let count = group.vqps.len();
    let mut times = Vec::with_capacity(count);
    let mut completions: Vec<Completion> = Vec::new();
    while times.len() < count {
        for vqp in &mut group.vqps {
            completions.clear();
            if vqp.poll(&mut completions) > 0 {
                if let Some(completion) = completions.iter().find(|completion| !completion.is_success()) {
                    bail!("a WRITE on one of {count} vQPs failed: {}", completion.outcome);
                }
                times.push(since.elapsed().as_secs_f64() * 1e6);
            }
        }
        let left = count - times.len();
        ensure!(since.elapsed() < RECOVERY_TIMEOUT, "{left} of {count} vQPs did not recover");
    }
    Ok(times)
}

pub(super) fn run(args: &Args, notes: &mut Vec<String>) -> anyhow::Result<Vec<Row>> {
    let [local, remote] = args.common.placements();
    let count = args.vqps as usize;
    let bar = progress(3);
    bar.set_message(format!("{count} vQPs"));
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::ManyVqps(Setup { count, placement: remote }))?;
    let (standby, measured) = standby_bytes(count)?;
    let before = resident()?;
    let begin = Instant::now();
    let mut group = open(&Setup { count, placement: local }, &mut peer.connection, Role::Requester)?;
    let connected = begin.elapsed();
    let memory = resident()?.saturating_sub(before) as f64 / count as f64;
    drop(measured);
    bar.inc(1);
    let times = fail_over(&mut group).map_err(|error| run_error(&mut peer, error))?;
    bar.inc(1);
    let direct = times.0;
    let times = times.1;
    peer.connection.send(&())?;
    drop(group);
    peer.wait()?;
    bar.finish_and_clear();
    notes.push(format!(
        "vqps: {count} vQPs over two NICs in each process, each with one WRITE in flight when the link of the first rail goes down. \
         One thread polls all vQPs in turn in each process. Each vQP has its own queue pairs on both rails, which its bytes include."
    ));
    let name = |measure: &str| format!("vqps/{count}/{measure}");
    let last = times.iter().copied().fold(0.0, f64::max);
    Ok(vec![
        row(&name("connect"), "us", &[connected.as_secs_f64() * 1e6]),
        row(&name("memory"), "B", &[memory]),
        row(&name("standby"), "B", &[standby]),
        row(&name("round"), "us", &[direct]),
        Row { spread: None, ..row(&name("failover"), "us", &times) },
        row(&name("last"), "us", &[last]),
    ])
}

/// Fails the first rail of all vQPs with a WRITE in flight on each. Returns the time of a round of WRITEs without a failure, and
/// the time from the failure to the completion of each vQP, in microseconds.
fn fail_over(group: &mut Group) -> anyhow::Result<(f64, Vec<f64>)> {
    let begin = Instant::now();
    group.post_writes(1)?;
    let direct = complete_writes(group, begin)?;
    // The packets of the next WRITEs are lost, so every vQP has one in flight when the ports report the failure.
    let lost = Noise { drop_ppm: 1_000_000, ..Noise::default() };
    group.nics[0].faults().set_noise(lost, lost);
    group.post_writes(2)?;
    let failed_at = Instant::now();
    group.nics[0].faults().fail(Failure::LinkDown);
    let times = complete_writes(group, failed_at)?;
    Ok((direct.into_iter().fold(0.0, f64::max), times))
}

/// Runs the second process: polls all vQPs until the first process is done.
pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let mut group = open(setup, connection, Role::Responder)?;
    let mut completions = Vec::new();
    for sweep in 0_u32.. {
        for vqp in &mut group.vqps {
            vqp.poll(&mut completions);
        }
        completions.clear();
        if sweep.is_multiple_of(SWEEPS_PER_CHECK) && connection.is_readable()? {
            break;
        }
    }
    Ok(connection.receive()?)
}

//! `vqps/COUNT/…`: many vQPs between two processes fail over together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use mitra_failover::{
    BackedQp, BackedQpInfo, Completion, Config, ConnectInfo, DetectorConfig, Domain, RemoteRegion,
    SharedBackup, VirtualQp,
};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_verbs::fault::{Failure, Noise};
use mitra_verbs::{Access, Buffer, Data, Nic, Provider, SendOp, SendWr};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Args;
use crate::endpoint::{NicPlacement, faults};
use crate::memory::resident;
use crate::report::Row;
use crate::report::row;
use crate::{PEER_ROLE, Task, progress, run_error};

/// The maximum number of vQPs. A software NIC has 32,768 queue pairs, and as many completion
/// queues. After a failover, a vQP may hold two of each on a rail, because a replaced queue pair
/// stays in RESET to reserve its number.
const MAX_VQPS: usize = 16_000;
/// The time after which a vQP that has not recovered counts as lost.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of polls of all vQPs between two checks for a message from the other process.
const SWEEPS_PER_CHECK: u32 = 4;

/// The parameters of the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    count: usize,
    backup: Backup,
    rails: usize,
    placement: NicPlacement,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Backup {
    /// All queue pairs have one backup.
    Shared,
    /// Each queue pair has its own backup.
    Own,
}

/// The process that posts, or the process whose memory is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Requester,
    Responder,
}

/// The queue pairs of a process, with the backup that they share or with backups of their own.
enum Qps {
    Shared(Arc<SharedBackup>, Vec<BackedQp>),
    Own(Vec<VirtualQp>),
}

/// The queue pairs of a process, its NICs, and the region that all of the queue pairs use.
struct Group {
    nics: Vec<Arc<dyn Nic>>,
    qps: Qps,
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

fn domain(nics: &[Arc<dyn Nic>]) -> anyhow::Result<Arc<Domain>> {
    Ok(Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())?)
}

fn build_vqps(domain: &Arc<Domain>, count: usize) -> anyhow::Result<Vec<VirtualQp>> {
    (0..count).map(|_| Ok(VirtualQp::builder(domain).config(config()).build()?)).collect()
}

impl Qps {
    fn len(&self) -> usize {
        match self {
            Qps::Shared(_, qps) => qps.len(),
            Qps::Own(qps) => qps.len(),
        }
    }

    fn post(&mut self, index: usize, wr: SendWr) -> mitra_verbs::Result<u64> {
        match self {
            Qps::Shared(_, qps) => qps[index].post_send(wr),
            Qps::Own(qps) => qps[index].post_send(wr),
        }
    }

    /// Polls each queue pair once, and calls `on_completion` with each completion.
    fn sweep(&mut self, mut on_completion: impl FnMut(&Completion)) {
        let mut completions = Vec::new();
        for index in 0..self.len() {
            completions.clear();
            match self {
                Qps::Shared(_, qps) => qps[index].poll(&mut completions),
                Qps::Own(qps) => qps[index].poll(&mut completions),
            };
            completions.iter().for_each(&mut on_completion);
        }
    }

    /// Returns whether every queue pair sends over the active rail directly. A connected `BackedQp`
    /// does so when it has created its own queue pair on the active rail. Until then, its WRITEs
    /// use the backup.
    fn have_rails(&self) -> bool {
        match self {
            Qps::Shared(_, qps) => qps.iter().all(BackedQp::has_rail),
            Qps::Own(_) => true,
        }
    }
}

impl Group {
    fn open(setup: &Setup) -> anyhow::Result<Group> {
        let nics = setup.placement.open()?[..setup.rails].to_vec();
        let domain = domain(&nics)?;
        let qps = match setup.backup {
            Backup::Shared => {
                let builder = VirtualQp::builder(&domain).config(config());
                Qps::Shared(SharedBackup::new(builder)?, Vec::new())
            }
            Backup::Own => Qps::Own(build_vqps(&domain, setup.count)?),
        };
        let memory = Arc::new(Buffer::new(8 * setup.count));
        let region = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?;
        Ok(Group { nics, qps, region, remote: None })
    }

    fn connect(&mut self, connection: &mut PeerConnection, role: Role, count: usize) -> anyhow::Result<()> {
        if let Qps::Shared(backup, qps) = &mut self.qps {
            let peer: Vec<u8> = exchange(connection, role, &backup.local_info().encode())?;
            backup.connect(&ConnectInfo::decode(&peer)?)?;
            for _ in 0..count {
                qps.push(backup.queue_pair(config())?);
            }
        }
        let connect = match &self.qps {
            Qps::Shared(_, qps) => qps.iter().map(|qp| qp.local_info().encode()).collect(),
            Qps::Own(qps) => qps.iter().map(|vqp| vqp.local_info().encode()).collect(),
        };
        let own = GroupInfo { connect, region: self.region.remote().encode() };
        let peer: GroupInfo = exchange(connection, role, &own)?;
        ensure!(peer.connect.len() == self.qps.len(), "the peer has {} vQPs", peer.connect.len());
        let remote = RemoteRegion::decode(&peer.region)?;
        match &mut self.qps {
            Qps::Shared(_, qps) => {
                for (qp, info) in qps.iter_mut().zip(&peer.connect) {
                    qp.connect(&BackedQpInfo::decode(info)?)?;
                    qp.import(&remote)?;
                }
            }
            Qps::Own(vqps) => {
                for (vqp, info) in vqps.iter_mut().zip(&peer.connect) {
                    vqp.connect(&ConnectInfo::decode(info)?)?;
                    vqp.import(&remote)?;
                }
            }
        }
        self.remote = Some(remote);
        Ok(())
    }

    /// Posts an 8-byte WRITE on each vQP.
    fn post_writes(&mut self, value: u64) -> anyhow::Result<()> {
        let Some(remote) = &self.remote else { bail!("the group is not connected") };
        for index in 0..self.qps.len() {
            let at = remote.at(8 * index as u64);
            self.qps
                .post(index, SendWr::new(value, SendOp::Write(at), Data::inline(&value.to_ne_bytes())))?;
        }
        Ok(())
    }
}

/// Exchanges messages with the other process. A message is longer than a socket's buffer, so only
/// one process sends at a time.
fn exchange<T: Serialize + DeserializeOwned>(
    connection: &mut PeerConnection,
    role: Role,
    own: &T,
) -> anyhow::Result<T> {
    if role == Role::Requester {
        connection.send(own)?;
    }
    let peer = connection.receive()?;
    if role == Role::Responder {
        connection.send(own)?;
    }
    Ok(peer)
}

/// Opens the vQPs of this process and connects them to the other process's.
fn open(setup: &Setup, connection: &mut PeerConnection, role: Role) -> anyhow::Result<Group> {
    ensure!(setup.count <= MAX_VQPS, "a pair of NICs has room for {MAX_VQPS} vQPs; lower --vqps");
    let mut group = Group::open(setup)?;
    group.connect(connection, role, setup.count)?;
    while !group.qps.have_rails() {
        group.qps.sweep(|_| {});
    }
    // Neither side posts before both are connected. The sweeps let this side's shared backup answer
    // the peer meanwhile.
    connection.send(&())?;
    while !connection.is_readable()? {
        group.qps.sweep(|_| {});
    }
    connection.receive::<()>()?;
    Ok(group)
}

/// Polls all vQPs until each has completed its WRITE. Returns the time from `since` to each
/// completion, in microseconds.
fn complete_writes(group: &mut Group, since: Instant) -> anyhow::Result<Vec<f64>> {
    let count = group.qps.len();
    let mut times = Vec::with_capacity(count);
    let mut failed = None;
    while times.len() < count {
        group.qps.sweep(|completion| {
            failed = failed.or((!completion.is_success()).then_some(completion.outcome));
            times.push(since.elapsed().as_secs_f64() * 1e6);
        });
        if let Some(outcome) = failed {
            bail!("a WRITE on one of {count} vQPs failed: {outcome}");
        }
        let left = count - times.len();
        ensure!(since.elapsed() < RECOVERY_TIMEOUT, "{left} of {count} vQPs did not recover");
    }
    Ok(times)
}

pub(super) fn run(args: &Args, notes: &mut Vec<String>) -> anyhow::Result<Vec<Row>> {
    let count = args.vqps as usize;
    let bar = progress(4);
    bar.set_message(format!("{count} vQPs"));
    let mut rows = Vec::new();
    for (backup, prefix) in
        [(Backup::Shared, format!("vqps/{count}")), (Backup::Own, format!("vqps/{count}/own"))]
    {
        let on_one_rail = measure(args, backup, 1)?;
        bar.inc(1);
        let on_two_rails = measure(args, backup, 2)?;
        bar.inc(1);
        rows.extend(on_two_rails.rows(&prefix, on_one_rail.memory));
    }
    bar.finish_and_clear();
    notes.push(format!(
        "vqps: {count} vQPs over two NICs in each process, each with one WRITE in flight when the link of the first rail goes down. \
         One thread polls all vQPs in turn in each process. They have one backup, or (own) each its own, which its bytes include."
    ));
    Ok(rows)
}

/// The measurements of one kind of backup.
struct Measured {
    /// The time in which all queue pairs were connected, in microseconds.
    connected: f64,
    /// The resident bytes of a queue pair, measured in the second process, which does nothing else.
    memory: f64,
    /// The time of one WRITE on every queue pair without a failure, in microseconds.
    round: f64,
    /// For each queue pair, the time from the failure to the completion of its WRITE, in
    /// microseconds. Empty on one rail.
    recovered: Vec<f64>,
}

impl Measured {
    /// Returns the rows. `on_one_rail` is the memory of a queue pair on one rail, in bytes.
    fn rows(&self, prefix: &str, on_one_rail: f64) -> Vec<Row> {
        let name = |measure: &str| format!("{prefix}/{measure}");
        let last = self.recovered.iter().copied().fold(0.0, f64::max);
        vec![
            row(&name("connect"), "us", &[self.connected]),
            row(&name("memory"), "B", &[self.memory]),
            row(&name("standby"), "B", &[(self.memory - on_one_rail).max(0.0)]),
            row(&name("round"), "us", &[self.round]),
            Row { spread: None, ..row(&name("failover"), "us", &self.recovered) },
            row(&name("last"), "us", &[last]),
        ]
    }
}

/// Connects the queue pairs of two processes, and fails the first rail, if there are two.
fn measure(args: &Args, backup: Backup, rails: usize) -> anyhow::Result<Measured> {
    let [local, remote] = args.common.placements();
    let setup = |placement| Setup { count: args.vqps as usize, backup, rails, placement };
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::ManyVqps(setup(remote)))?;
    let begin = Instant::now();
    let mut group = open(&setup(local), &mut peer.connection, Role::Requester)?;
    let connected = begin.elapsed().as_secs_f64() * 1e6;
    let (round, recovered) = match rails {
        1 => (0.0, Vec::new()),
        _ => fail_over(&mut group).map_err(|error| run_error(&mut peer, error))?,
    };
    peer.connection.send(&())?;
    let bytes: u64 = peer.connection.receive()?;
    peer.wait()?;
    Ok(Measured { connected, memory: bytes as f64 / args.vqps as f64, round, recovered })
}

/// Fails the first rail while each vQP has a WRITE in flight. Returns the time of a round of WRITEs
/// without a failure, and the time from the failure to the completion of each vQP, in microseconds.
fn fail_over(group: &mut Group) -> anyhow::Result<(f64, Vec<f64>)> {
    let begin = Instant::now();
    group.post_writes(1)?;
    let direct = complete_writes(group, begin)?;
    // The packets of the next WRITEs are lost, so every vQP has a WRITE in flight when the ports
    // report the failure.
    let lost = Noise { drop_ppm: 1_000_000, ..Noise::default() };
    faults(&*group.nics[0])?.set_noise(lost, lost);
    group.post_writes(2)?;
    let failed_at = Instant::now();
    faults(&*group.nics[0])?.fail(Failure::LinkDown);
    let times = complete_writes(group, failed_at)?;
    Ok((direct.into_iter().fold(0.0, f64::max), times))
}

/// Runs the second process: polls all vQPs until the first process is done.
pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let before = resident()?;
    let mut group = open(setup, connection, Role::Responder)?;
    let bytes = resident()?.saturating_sub(before);
    for sweep in 0_u32.. {
        group.qps.sweep(|_| {});
        if sweep.is_multiple_of(SWEEPS_PER_CHECK) && connection.is_readable()? {
            break;
        }
    }
    connection.receive::<()>()?;
    Ok(connection.send(&bytes)?)
}

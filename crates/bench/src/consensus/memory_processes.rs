//! The memory nodes of the benchmark: one process each, which serves every protocol and one RC
//! queue pair from the same NICs.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mitra_consensus::Region;
use mitra_consensus_rdma::{MemoryConfig, MemoryNode};
use mitra_failover::Domain;
use mitra_verbs::{Nic, Provider};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde::{Deserialize, Serialize};

use super::{REGISTER_CAPACITY, Setup, protocols};
use crate::bench_qp::{RcBenchQp, RcQpInfo};
use crate::endpoint::{Layout, NicPlacement, detector, random};
use crate::{PEER_ROLE, Task};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// The longest sleep. The memory nodes name their own deadlines.
const MAX_SLEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemorySetup {
    processes: u8,
    memories: u8,
    placement: NicPlacement,
}

#[derive(Serialize, Deserialize)]
struct MemoryInfo {
    addresses: Vec<SocketAddr>,
    rc_qp: RcQpInfo,
}

pub(super) fn config() -> mitra_failover::Config {
    mitra_failover::Config { detector: detector(), ..mitra_failover::Config::default() }
}

/// Returns the tokens that identify the processes. They need not be secret, because the memories of
/// a benchmark listen on loopback addresses and live only as long as the run.
pub(super) fn tokens(processes: u8) -> Vec<mitra_consensus_rdma::Token> {
    (0..processes).map(|p| [p; 16]).collect()
}

/// The leader's end of a memory process.
pub(super) struct Memory {
    _process: PeerProcess,
    /// The TCP address of each protocol's memory node.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) rc_qp: RcBenchQp,
}

pub(super) fn start(
    count: u8,
    processes: u8,
    placement: &NicPlacement,
    nic: &Arc<dyn Nic>,
) -> anyhow::Result<Vec<Memory>> {
    let one = |_| -> anyhow::Result<Memory> {
        let mut peer = PeerProcess::start(PEER_ROLE)?;
        let setup = MemorySetup { processes, memories: count, placement: placement.clone() };
        peer.connection.send(&Task::Consensus(Setup::Memory(setup)))?;
        let mut rc_qp = RcBenchQp::new(
            &(Arc::clone(nic) as Arc<dyn Provider>),
            Layout::new(REGISTER_CAPACITY).len(),
            random()? as u32,
        )?;
        peer.connection.send(&rc_qp.info()?)?;
        let served: MemoryInfo = peer.connection.receive()?;
        rc_qp.connect(&served.rc_qp)?;
        Ok(Memory { _process: peer, addresses: served.addresses, rc_qp })
    };
    (0..count).map(one).collect()
}

/// Runs a memory process until it is killed.
pub(super) fn peer(setup: &MemorySetup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let nics = setup.placement.open()?;
    let providers: Vec<_> = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    let mut rc_qp = RcBenchQp::new(&providers[0], Layout::new(REGISTER_CAPACITY).len(), random()? as u32)?;
    rc_qp.connect(&connection.receive()?)?;
    let domain = Domain::with_completion_channels(providers)?;
    let serve = |regions: Vec<Region>| -> anyhow::Result<MemoryNode> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on a TCP port")?;
        let config = MemoryConfig {
            regions,
            register_capacity: REGISTER_CAPACITY,
            tokens: tokens(setup.processes),
            allow_restarts: true,
            storage: None,
            failover: config(),
        };
        Ok(MemoryNode::new(Arc::clone(&domain), listener, config)?)
    };
    let mut memories =
        protocols(setup.processes, setup.memories).into_iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let addresses = memories.iter().map(MemoryNode::address).collect();
    connection.send(&MemoryInfo { addresses, rc_qp: rc_qp.info()? })?;
    loop {
        memories.iter_mut().for_each(MemoryNode::poll);
        let timeout = memories.iter_mut().fold(MAX_SLEEP, |max, memory| memory.next_timeout(max));
        let mut fds: Vec<_> =
            memories.iter().map(|memory| PollFd::new(memory.as_fd(), PollFlags::POLLIN)).collect();
        // After an error such as EINTR, the memory nodes poll early, which is harmless.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(timeout)), None);
    }
}

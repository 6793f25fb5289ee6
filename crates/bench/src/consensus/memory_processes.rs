//! The memories of a bench: a process each, which serves every protocol that is measured and one bare queue pair, on the same NICs.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use mitra_consensus::Region;
use mitra_consensus_rdma::{MemoryConfig, MemoryNode};
use mitra_failover::Domain;
use mitra_softnic::SoftNic;
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::{ROOM, Setup, protocols};
use crate::bench_qp::{RcQp, RcQpInfo};
use crate::endpoint::{Layout, NicPlacement, detector, random};
use crate::{PEER_ROLE, Task};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// How often a memory sees to what does not wake it, as `mitra memory` does.
const NAP: Duration = Duration::from_millis(1);

/// What a memory's process is to serve.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shared {
    processes: u8,
    memories: u8,
}

#[derive(Serialize, Deserialize)]
struct Served {
    doors: Vec<SocketAddr>,
    floor: RcQpInfo,
}

/// How connections behave here.
pub(super) fn config() -> mitra_failover::Config {
    mitra_failover::Config { detector: detector(), ..mitra_failover::Config::default() }
}

/// The words by which the processes are known to memories of theirs that nobody else hears of.
pub(super) fn tokens(processes: u8) -> Vec<mitra_consensus_rdma::Token> {
    (0..processes).map(|p| [p; 16]).collect()
}

/// A memory, as the leader sees it.
pub(super) struct Memory {
    _process: PeerProcess,
    /// Its door for each protocol.
    pub(super) doors: Vec<SocketAddr>,
    /// The bare queue pair to it.
    pub(super) floor: RcQp,
}

/// Starts so many.
pub(super) fn start(count: u8, processes: u8, nic: &Arc<SoftNic>) -> anyhow::Result<Vec<Memory>> {
    let one = |_| -> anyhow::Result<Memory> {
        let mut peer = PeerProcess::start(PEER_ROLE)?;
        peer.connection.send(&Task::Consensus(Setup::Memory(Shared { processes, memories: count })))?;
        let mut floor =
            RcQp::new(&(Arc::clone(nic) as Arc<dyn Provider>), Layout::new(ROOM).len(), random()? as u32)?;
        peer.connection.send(&floor.info()?)?;
        let served: Served = peer.connection.receive()?;
        floor.connect(&served.floor)?;
        Ok(Memory { _process: peer, doors: served.doors, floor })
    };
    (0..count).map(one).collect()
}

/// A memory's process: it serves until it is ended.
pub(super) fn peer(setup: &Shared, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let nics = NicPlacement::default().open()?;
    let providers: Vec<_> = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    let mut floor = RcQp::new(&providers[0], Layout::new(ROOM).len(), random()? as u32)?;
    floor.connect(&connection.receive()?)?;
    let domain = Domain::with_completion_channels(providers)?;
    let serve = |regions: Vec<Region>| -> anyhow::Result<MemoryNode> {
        let door = TcpListener::bind("127.0.0.1:0").context("cannot open a door")?;
        let config = MemoryConfig {
            regions,
            register_capacity: ROOM,
            tokens: tokens(setup.processes),
            allow_restarts: true,
            storage: None,
            failover: config(),
        };
        Ok(MemoryNode::new(Arc::clone(&domain), door, config)?)
    };
    let mut memories =
        protocols(setup.processes, setup.memories).into_iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let doors = memories.iter().map(MemoryNode::address).collect();
    connection.send(&Served { doors, floor: floor.info()? })?;
    loop {
        memories.iter_mut().for_each(MemoryNode::poll);
        let until = Instant::now() + NAP;
        while Instant::now() < until {
            let ready = memories[0].wait(until.saturating_duration_since(Instant::now()));
            memories.iter_mut().for_each(|memory| memory.poll_ready(&ready));
        }
    }
}

//! Paxos by messages: its acceptors are processes of their own, that answer when they are woken.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mitra_consensus::ProcessId;
use mitra_consensus::paxos::Paxos;
use mitra_consensus_rdma::{ProcessConfig, ProcessNode};
use mitra_failover::Domain;
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::instances::Instances;
use super::{BEAT, LEADER, PROCESSES, ROOM, Setup, Value, memory_processes};
use crate::clock::Deadline;
use crate::endpoint::NicPlacement;
use crate::{PEER_ROLE, Task};
use mitra_peer_process::{PeerConnection, PeerProcess};

pub(super) type Paxoses = ProcessNode<Instances<Paxos<Value>>>;

/// Which process an acceptor is, and where those are that it calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Acceptor {
    me: ProcessId,
    before: Vec<SocketAddr>,
}

/// The leader, connected to all acceptors, which live as long as what comes beside it.
pub(super) fn paxos(domain: &Arc<Domain>) -> anyhow::Result<(Paxoses, Vec<PeerProcess>)> {
    let door = TcpListener::bind("127.0.0.1:0").context("cannot open a door")?;
    let mut doors = vec![door.local_addr()?];
    let mut acceptors = Vec::new();
    for p in 1..PROCESSES {
        let mut peer = PeerProcess::start(PEER_ROLE)?;
        let acceptor = Acceptor { me: ProcessId(p), before: doors.clone() };
        peer.connection.send(&Task::Consensus(Setup::Acceptor(acceptor)))?;
        doors.push(peer.connection.receive()?);
        acceptors.push(peer);
    }
    let mut node = node(domain, door, LEADER, doors)?;
    let mut deadline = Deadline::patient();
    while node.connected_peers() < acceptors.len() {
        std::thread::sleep(Duration::from_millis(1));
        node.poll();
        deadline.check()?;
    }
    Ok((node, acceptors))
}

fn node(
    domain: &Arc<Domain>,
    door: TcpListener,
    me: ProcessId,
    mut doors: Vec<SocketAddr>,
) -> anyhow::Result<Paxoses> {
    // Who comes later calls.
    doors.resize(PROCESSES.into(), door.local_addr()?);
    let process = Instances::new(Paxos::new(me, PROCESSES, Value::new()), 0, &[]);
    let config = ProcessConfig {
        id: me,
        tokens: memory_processes::tokens(PROCESSES),
        processes: doors,
        memories: Vec::new(),
        register_capacity: ROOM,
        max_message_bytes: 2 * ROOM,
        wake_delay: BEAT,
        failover: memory_processes::config(),
    };
    Ok(ProcessNode::new(process, domain, door, &config)?)
}

/// An acceptor's process: it answers until it is ended.
pub(super) fn peer(acceptor: &Acceptor, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let nics = NicPlacement::default().open()?;
    let domain = Domain::with_completion_channels(
        nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
    )?;
    let door = TcpListener::bind("127.0.0.1:0").context("cannot open a door")?;
    connection.send(&door.local_addr()?)?;
    let mut node = node(&domain, door, acceptor.me, acceptor.before.clone())?;
    loop {
        node.wait(Duration::from_millis(1));
    }
}

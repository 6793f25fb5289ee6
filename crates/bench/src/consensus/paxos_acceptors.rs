//! Paxos by messages: each acceptor is a process of its own, which sleeps until a message arrives.

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

use super::repeated_decisions::Instances;
use super::{HEARTBEAT_PERIOD, LEADER, PROCESSES, REGISTER_CAPACITY, Setup, Value, memory_processes};
use crate::endpoint::NicPlacement;
use crate::stopwatch::Deadline;
use crate::{PEER_ROLE, Task};
use mitra_peer_process::{PeerConnection, PeerProcess};

pub(super) type Paxoses = ProcessNode<Instances<Paxos<Value>>>;

/// The id of an acceptor, the addresses that the acceptor dials (the processes with lower ids), and
/// its NICs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Acceptor {
    me: ProcessId,
    lower_addresses: Vec<SocketAddr>,
    placement: NicPlacement,
}

/// Starts the acceptors and connects the leader to them. Dropping the processes ends the acceptors.
pub(super) fn paxos(
    domain: &Arc<Domain>,
    placement: &NicPlacement,
) -> anyhow::Result<(Paxoses, Vec<PeerProcess>)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on a TCP port")?;
    let mut addresses = vec![listener.local_addr()?];
    let mut acceptors = Vec::new();
    for p in 1..PROCESSES {
        let mut peer = PeerProcess::start(PEER_ROLE)?;
        let acceptor =
            Acceptor { me: ProcessId(p), lower_addresses: addresses.clone(), placement: placement.clone() };
        peer.connection.send(&Task::Consensus(Setup::Acceptor(acceptor)))?;
        addresses.push(peer.connection.receive()?);
        acceptors.push(peer);
    }
    let mut node = node(domain, listener, LEADER, addresses)?;
    let mut deadline = Deadline::for_block();
    while node.connected_peers() < acceptors.len() {
        std::thread::sleep(Duration::from_millis(1));
        node.poll();
        deadline.check()?;
    }
    Ok((node, acceptors))
}

fn node(
    domain: &Arc<Domain>,
    listener: TcpListener,
    me: ProcessId,
    mut addresses: Vec<SocketAddr>,
) -> anyhow::Result<Paxoses> {
    // A process dials only the processes with lower ids, so the addresses that fill the list are
    // not used.
    addresses.resize(PROCESSES.into(), listener.local_addr()?);
    let process = Instances::new(Paxos::new(me, PROCESSES, Value::new()), &[]);
    let config = ProcessConfig {
        id: me,
        tokens: memory_processes::tokens(PROCESSES),
        processes: addresses,
        memories: Vec::new(),
        register_capacity: REGISTER_CAPACITY,
        max_message_bytes: 2 * REGISTER_CAPACITY,
        wake_delay: HEARTBEAT_PERIOD,
        failover: memory_processes::config(),
    };
    Ok(ProcessNode::new(process, domain, listener, &config)?)
}

/// Runs an acceptor until it is killed.
pub(super) fn peer(acceptor: &Acceptor, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let nics = acceptor.placement.open()?;
    let domain = Domain::with_completion_channels(
        nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
    )?;
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on a TCP port")?;
    connection.send(&listener.local_addr()?)?;
    let mut node = node(&domain, listener, acceptor.me, acceptor.lower_addresses.clone())?;
    loop {
        node.wait(Duration::from_millis(1));
    }
}

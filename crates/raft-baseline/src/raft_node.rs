//! The openraft types of this store, and the start of a Raft node.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use openraft::{Config, SnapshotPolicy};

use crate::log_entry::Batch;
use crate::memory_log::Log;
use crate::peer_network::Network;
use crate::state_machine::{StateMachine, Values};

openraft::declare_raft_types!(
    /// The data of an entry is a batch of commands. The response to an entry is the list of values
    /// that the reads of the batch found.
    pub(crate) Types:
        D = Batch,
        R = Vec<Option<Vec<u8>>>,
);

pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type Node = openraft::BasicNode;

/// Process 0 also initializes the cluster.
pub(crate) async fn start(id: u64, processes: &[SocketAddr]) -> anyhow::Result<(Raft, Values)> {
    let config = Config {
        cluster_name: "mitra-raft-baseline".into(),
        // Heartbeat interval and minimum election timeout are the defaults of etcd. All times are
        // in milliseconds.
        heartbeat_interval: 100,
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        install_snapshot_timeout: 2000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(5000),
        purge_batch_size: 1000,
        ..Config::default()
    };
    let machine = StateMachine::default();
    let values = machine.values();
    let network = Network::new(processes);
    let raft = Raft::new(id, Arc::new(config.validate()?), network, Log::default(), machine)
        .await
        .context("cannot start Raft")?;
    if id == 0 {
        let members: BTreeMap<u64, Node> =
            (0..).zip(processes.iter().map(|address| Node::new(address.to_string()))).collect();
        raft.initialize(members).await.context("cannot initialize the cluster")?;
    }
    Ok((raft, values))
}

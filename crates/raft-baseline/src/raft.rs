//! The Raft: openraft's types, as this store fills them in.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use openraft::{Config, SnapshotPolicy};

use crate::batch::Batch;
use crate::log::Log;
use crate::machine::{Machine, Values};
use crate::network::Network;

openraft::declare_raft_types!(
    /// Requests in batches; what comes of one is what was read in it.
    pub(crate) Types:
        D = Batch,
        R = Vec<Option<Vec<u8>>>,
);

pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type Node = openraft::BasicNode;

/// Starts process `me` of these. Process 0 makes them a cluster.
pub(crate) async fn start(me: u64, processes: &[SocketAddr]) -> anyhow::Result<(Raft, Values)> {
    let config = Config {
        cluster_name: "mitra-raft-baseline".into(),
        // As etcd has them, in milliseconds.
        heartbeat_interval: 100,
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        install_snapshot_timeout: 2000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(5000),
        purge_batch_size: 1000,
        ..Config::default()
    };
    let machine = Machine::default();
    let values = machine.values();
    let network = Network::new(processes);
    let raft = Raft::new(me, Arc::new(config.validate()?), network, Log::default(), machine)
        .await
        .context("the Raft does not start")?;
    if me == 0 {
        let members: BTreeMap<u64, Node> =
            (0..).zip(processes.iter().map(|at| Node::new(at.to_string()))).collect();
        raft.initialize(members).await.context("the processes become no cluster")?;
    }
    Ok((raft, values))
}

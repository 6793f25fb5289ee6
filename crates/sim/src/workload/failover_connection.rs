//! Connections over several rails: virtual queue pairs, and queue pairs with a shared backup.

use std::sync::Arc;

use mitra_failover::{BackedQp, Config, Domain, Secret, SharedBackup, SharedReceiveQueue, VirtualQp};
use mitra_verbs::{Provider, Result};

use super::failover_endpoint::{Flag, exchange_memory};
use super::{BackedEndpoint, FailoverEndpoint, VqpEndpoint, WorkloadPeer};

/// Connects two peers by a virtual queue pair, and registers the memory of each on all rails.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn connect_vqp(
    nics: [Vec<Arc<dyn Provider>>; 2],
    peers: [&mut WorkloadPeer; 2],
    config: Config,
    seed: u64,
) -> Result<[VqpEndpoint; 2]> {
    let [a, b] = nics;
    connect_vqp_in([Domain::new(a)?, Domain::new(b)?], peers, config, seed)
}

/// Connects two peers like [`connect_vqp`], in these domains. Other virtual queue pairs can use the
/// same domains.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn connect_vqp_in(
    domains: [Arc<Domain>; 2],
    peers: [&mut WorkloadPeer; 2],
    config: Config,
    seed: u64,
) -> Result<[VqpEndpoint; 2]> {
    let secret = |bit: u32, salt: u64| Secret::fixed([seed | 1_u64 << bit, seed ^ salt]);
    let secrets = [secret(32, 0x1234_5678_9abc), secret(33, 0x8765_4321_9abc)];
    let [mut a, mut b] = virtual_qps(domains, config, secrets)?;
    exchange_memory([&mut a, &mut b], peers)?;
    Ok([a, b].map(FailoverEndpoint::new))
}

/// Makes two virtual queue pairs and connects them.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn virtual_qps(
    domains: [Arc<Domain>; 2],
    config: Config,
    secrets: [Secret; 2],
) -> Result<[VirtualQp; 2]> {
    virtual_qps_with(domains, [config; 2], secrets, [None; 2], [const { None }; 2])
}

/// Makes two virtual queue pairs like [`virtual_qps`]. An end with a queue in `queues` takes its
/// receives from that queue. An end with a flag in `wakers` is a member of its domain's poll group.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn virtual_qps_with(
    domains: [Arc<Domain>; 2],
    configs: [Config; 2],
    secrets: [Secret; 2],
    queues: [Option<&Arc<SharedReceiveQueue>>; 2],
    wakers: [Option<Arc<Flag>>; 2],
) -> Result<[VirtualQp; 2]> {
    let make = |h: usize, secret: Secret| {
        let mut builder = VirtualQp::builder(&domains[h]).config(configs[h]).secret(secret);
        if let Some(flag) = &wakers[h] {
            builder = builder.waker(Arc::clone(flag).into());
        }
        match queues[h] {
            Some(queue) => builder.shared_receive_queue(queue).build(),
            None => builder.build(),
        }
    };
    let [a, b] = secrets;
    let (mut a, mut b) = (make(0, a)?, make(1, b)?);
    let info = a.local_info();
    a.connect(&b.local_info())?;
    b.connect(&info)?;
    Ok([a, b])
}

/// Makes the two ends of a shared backup, with these configurations, and connects them.
///
/// # Errors
/// Returns the error of the first call to a NIC or a virtual queue pair that failed.
pub fn shared_backups(
    domains: [Arc<Domain>; 2],
    configs: [Config; 2],
    secrets: [Secret; 2],
) -> Result<[Arc<SharedBackup>; 2]> {
    let make = |h: usize, secret: Secret| {
        SharedBackup::new(VirtualQp::builder(&domains[h]).config(configs[h]).secret(secret))
    };
    let [a, b] = secrets;
    let (a, b) = (make(0, a)?, make(1, b)?);
    let info = a.local_info();
    a.connect(&b.local_info())?;
    b.connect(&info)?;
    Ok([a, b])
}

/// Makes two queue pairs with a shared backup and connects them.
///
/// # Errors
/// Returns the error of the first call to a NIC or a queue pair that failed.
pub fn backed_qps(backups: &[Arc<SharedBackup>; 2], config: Config) -> Result<[BackedQp; 2]> {
    backed_qps_with(backups, config, [None; 2])
}

/// Makes two queue pairs like [`backed_qps`]. An end with a queue in `queues` takes its receives
/// from that queue.
///
/// # Errors
/// Returns the error of the first call to a NIC or a queue pair that failed.
pub fn backed_qps_with(
    backups: &[Arc<SharedBackup>; 2],
    config: Config,
    queues: [Option<&Arc<SharedReceiveQueue>>; 2],
) -> Result<[BackedQp; 2]> {
    let make = |h: usize| match queues[h] {
        Some(queue) => backups[h].queue_pair_with_shared_receives(config, queue),
        None => backups[h].queue_pair(config),
    };
    let [mut a, mut b] = [make(0)?, make(1)?];
    let info = a.local_info();
    a.connect(&b.local_info())?;
    b.connect(&info)?;
    Ok([a, b])
}

/// Connects two peers by a queue pair with this backup, and registers the memory of each on all
/// rails.
///
/// # Errors
/// Returns the error of the first call to a NIC or a queue pair that failed.
pub fn connect_backed(
    backups: &[Arc<SharedBackup>; 2],
    peers: [&mut WorkloadPeer; 2],
    config: Config,
) -> Result<[BackedEndpoint; 2]> {
    let [mut a, mut b] = backed_qps(backups, config)?;
    exchange_memory([&mut a, &mut b], peers)?;
    Ok([a, b].map(FailoverEndpoint::new))
}

//! The options of connections: the completion log, mode `durable`, shared receive queues and memory
//! windows.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{
    BackedQp, CompletionLogConfig, Config as VqpConfig, Domain, Secret, SharedBackup, SharedReceiveQueue,
    VirtualMr, VirtualQp,
};
use mitra_verbs::{Access, Error, RemoteAddr, WindowType};

use super::setup::{Polling, Setup};
use crate::seeded::memory::window_bind;
use mitra_sim::workload::{
    FailoverQp, Flag, Membership, WorkloadPeer, backed_qps_with, shared_backups, virtual_qps_with,
};
use mitra_sim::{Prng, World};

/// The time in which the windows must be bound.
const BIND_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnectionOptions {
    pub(super) completion_log: bool,
    pub(super) durable: bool,
    /// Whether each end takes receives from a shared receive queue.
    pub(super) shared_receives: [bool; 2],
    /// The type of the windows through which the ends access each other's memory.
    pub(super) windows: Option<WindowType>,
}

impl ConnectionOptions {
    pub(super) fn draw(rng: &mut Prng) -> ConnectionOptions {
        let completion_log = rng.below(2) == 0;
        ConnectionOptions::draw_with_log(rng, completion_log)
    }

    pub(super) fn draw_with_log(rng: &mut Prng, completion_log: bool) -> ConnectionOptions {
        ConnectionOptions {
            completion_log,
            durable: completion_log && rng.below(2) == 0,
            shared_receives: [0, 1].map(|_| rng.below(3) == 0),
            windows: *rng.pick(&[None, None, Some(WindowType::Type1), Some(WindowType::Type2)]),
        }
    }

    pub(super) fn shape(self, vqp: &mut VqpConfig) {
        let log = CompletionLogConfig { durable: self.durable, ..vqp.completion_log.unwrap_or_default() };
        vqp.completion_log = self.completion_log.then_some(log);
        if self.shared_receives != [false; 2] {
            vqp.rnr_retry = 7; // messages wait for their slots
        }
    }
}

/// An end of a connection.
pub(super) struct EndQp<Q> {
    pub qp: Q,
    pub shared_receives: Option<Arc<SharedReceiveQueue>>,
    pub backup: Option<Arc<SharedBackup>>,
    pub membership: Option<Membership<Q>>,
}

/// # Errors
/// Any error of a NIC or a queue pair.
pub(super) fn connect_vqps(
    setup: &Setup,
    domains: [Arc<Domain>; 2],
) -> Result<Vec<[EndQp<VirtualQp>; 2]>, Error> {
    let queues = make_queues(setup, &domains);
    let flags = setup.polling.map(|polling| (polling == Polling::WhenWoken).then(Arc::<Flag>::default));
    let mut qps = virtual_qps_with(
        domains,
        setup.configs(),
        setup.secrets.map(Secret::fixed),
        queues.each_ref().map(Option::as_ref),
        flags.clone(),
    )?;
    qps.iter_mut().for_each(|qp| qp.begin_at(setup.limits.first_epoch, setup.limits.first_seq));
    let ([a, b], [queue_a, queue_b], [flag_a, flag_b]) = (qps, queues, flags);
    let end = |qp, shared_receives, flag: Option<Arc<Flag>>| EndQp {
        qp,
        shared_receives,
        backup: None,
        membership: flag.map(Membership::new),
    };
    Ok(vec![[end(a, queue_a, flag_a), end(b, queue_b, flag_b)]])
}

/// Makes the shared receive queues of the ends of one connection.
fn make_queues(setup: &Setup, domains: &[Arc<Domain>; 2]) -> [Option<Arc<SharedReceiveQueue>>; 2] {
    let has_queue = setup.options.map_or([false; 2], |options| options.shared_receives);
    [0, 1].map(|h: usize| has_queue[h].then(|| SharedReceiveQueue::new(&domains[h], setup.vqp.recv_wrs)))
}

/// # Errors
/// Any error of a NIC or a queue pair.
pub(super) fn connect_backed(
    setup: &Setup,
    domains: [Arc<Domain>; 2],
) -> Result<Vec<[EndQp<BackedQp>; 2]>, Error> {
    let queues: Vec<_> = setup.plans.iter().map(|_| make_queues(setup, &domains)).collect();
    let backups = shared_backups(domains, setup.configs(), setup.secrets.map(Secret::fixed))?;
    let connect = |[a, b]: [Option<Arc<SharedReceiveQueue>>; 2]| {
        let [qp_a, qp_b] = backed_qps_with(&backups, setup.vqp, [a.as_ref(), b.as_ref()])?;
        let end = |qp, shared_receives, h: usize| EndQp {
            qp,
            shared_receives,
            backup: Some(Arc::clone(&backups[h])),
            membership: None,
        };
        Ok([end(qp_a, a, 0), end(qp_b, b, 1)])
    };
    queues.into_iter().map(connect).collect()
}

/// Registers the memory of two peers on all rails, and gives each end access through a window to
/// the memory of the other end.
///
/// # Errors
/// Any error of a NIC or a queue pair; [`Error::Invalid`] if a window is not bound in time.
pub(super) fn exchange_windows<Q: FailoverQp>(
    world: &mut World,
    mut ends: [&mut Q; 2],
    peers: [&mut WorkloadPeer; 2],
    window_type: WindowType,
) -> Result<(), Error> {
    let mut regions: Vec<(VirtualMr, RemoteAddr)> = Vec::new();
    for h in 0..2 {
        let memory = peers[h].memory();
        let domain = Arc::clone(ends[h].domain());
        let mr = domain.register(memory, WorkloadPeer::ACCESS | Access::WINDOW_BIND)?;
        let mw = domain.alloc_mw(window_type)?;
        let key = mw.primary().rkey.with_consumer_bits(7);
        ends[h].post_send(window_bind(0, &mr, &mw, key))?;
        ends[1 - h].import(&mw.remote(key))?;
        let addr = mr.primary().addr;
        regions.push((mr, RemoteAddr { addr, rkey: key }));
    }
    let mut ended = [Vec::new(), Vec::new()];
    let limit = world.now() + BIND_LIMIT;
    // With much noise, a queue pair may fail before another queue pair is made.
    world.without_noise(|world| {
        while ended.iter().any(Vec::is_empty) && world.now() < limit {
            for (end, ended) in ends.iter_mut().zip(&mut ended) {
                end.poll(ended);
            }
            world.run_for(Duration::from_micros(20));
        }
    });
    if !ended.iter().all(|ended| matches!(&ended[..], [bind] if bind.is_success())) {
        return Err(Error::Invalid("a window was not bound when the world began"));
    }
    let [first, second] = peers;
    first.connect(regions[0].0.primary(), regions[1].1);
    second.connect(regions[1].0.primary(), regions[0].1);
    Ok(())
}

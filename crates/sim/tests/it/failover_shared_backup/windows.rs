//! Memory windows of queue pairs with a shared backup: the cases that `failover/windows.rs` tests
//! for virtual queue pairs, and the differences.

use core::time::Duration;
use std::mem::replace;

use mitra_failover::{BackedQp, CloseReason, Config, Outcome, VirtualMr, VirtualMw, WritePolicy};
use mitra_sim::{DurationRange, Failure, Testbed, World, fault_times};
use mitra_verbs::*;

use super::pair::BackedPair;
use super::run::config;

const SUCCESS: Outcome = Outcome::Success;
/// The number of polls in which a failover ends and both ends have made their own queue pairs.
pub const FAILOVER: usize = 1200;
pub const SETTLE: usize = 40;

/// A pair whose host b has a window. The first queue pair of host b binds the window, and its peer
/// uses the window.
pub struct WindowPair {
    pub pair: BackedPair,
    pub mr: VirtualMr,
    mw: VirtualMw,
}

impl WindowPair {
    fn new(rails: u8, window_type: WindowType) -> WindowPair {
        WindowPair::in_world(rails, window_type, mitra_sim::Config::fault_free())
    }

    fn in_world(rails: u8, window_type: WindowType, world: mitra_sim::Config) -> WindowPair {
        WindowPair::over(Testbed::with_config(1, world, rails), window_type)
    }

    pub fn over(testbed: Testbed, window_type: WindowType) -> WindowPair {
        // Without a log, the loss of a NIC of the responder may leave a WRITE undecided.
        let config = Config { write_policy: WritePolicy::Repeatable, ..config() };
        let pair = BackedPair::with(testbed, config, 2, |backup, _| backup.queue_pair(config));
        WindowPair::of(pair, window_type)
    }

    pub fn of(mut pair: BackedPair, window_type: WindowType) -> WindowPair {
        let domain = pair.qps[1][0].domain();
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::WINDOW_BIND;
        let mr = domain.register(&pair.memory[1], access).expect("the NICs have room");
        let mw = domain.alloc_mw(window_type).expect("the NICs have room");
        pair.poll(&[0, 1], SETTLE);
        WindowPair { pair, mr, mw }
    }

    pub fn post(&mut self, h: usize, member: usize, wr_id: u64, op: SendOp) {
        let data =
            if matches!(op, SendOp::Write(_)) { Data::inline(&wr_id.to_ne_bytes()) } else { Data::empty() };
        let mut wr = SendWr::new(wr_id, op, data);
        wr.flags = SendFlags::SIGNALED;
        self.pair.qps[h][member].post_send(wr).expect("the queue pair is open and has room");
    }

    fn receive(&mut self, wr_id: u64) {
        let wr = RecvWr { wr_id, sges: SgeList::new() };
        self.pair.qps[1][0].post_recv(wr).expect("the receive queue has room");
    }

    pub fn outcome(&self, h: usize, wr_id: u64) -> Option<Outcome> {
        let all = self.pair.completions[h].iter().flatten();
        let mut ended = all.filter(|c| c.wr_id == wr_id).map(|c| c.outcome);
        let first = ended.next();
        assert_eq!(ended.next(), None, "operation {wr_id} ends once");
        first
    }

    fn key(&self, tag: u8) -> Key {
        self.mw.primary().rkey.with_consumer_bits(tag)
    }

    pub fn at(&self, tag: u8) -> RemoteAddr {
        RemoteAddr { addr: self.mr.primary().addr, rkey: self.key(tag) }
    }

    pub fn bind_op(&self, tag: u8, len: u64) -> SendOp {
        let (mw, mr, addr) = (self.mw.primary().id, self.mr.primary().id, self.mr.primary().addr);
        let access = Access::REMOTE_WRITE;
        SendOp::BindWindow(WindowBind { mw, rkey: self.key(tag), mr, addr, len, access, zero_based: false })
    }

    fn import(&mut self, member: usize, tag: u8) {
        let remote = self.mw.remote(self.key(tag));
        self.pair.qps[0][member].import(&remote).expect("the queue pair is connected");
    }

    /// Binds the window, and imports its key at the peer.
    pub fn bind(&mut self, wr_id: u64, tag: u8) -> RemoteAddr {
        self.post(1, 0, wr_id, self.bind_op(tag, 64));
        self.pair.poll(&[0, 1], SETTLE);
        assert_eq!(self.outcome(1, wr_id), Some(SUCCESS));
        self.import(0, tag);
        self.at(tag)
    }

    fn fail_over(&mut self) {
        let rail = self.pair.backups[0].active_rail();
        let nic = self.pair.testbed.rail(rail)[0];
        self.pair.testbed.world.set_link(nic, false);
        self.pair.poll(&[0, 1], FAILOVER);
        assert_ne!(self.pair.backups[0].active_rail(), rail, "the backup moved");
        assert!(self.pair.qps.iter().flatten().all(BackedQp::has_rail));
        self.pair.testbed.world.set_link(nic, true);
        self.pair.poll(&[0, 1], FAILOVER);
    }

    fn write(&mut self, wr_id: u64, to: RemoteAddr) -> Option<Outcome> {
        self.post(0, 0, wr_id, SendOp::Write(to));
        self.pair.poll(&[0, 1], 400);
        self.outcome(0, wr_id)
    }

    pub fn check_permitted(&mut self, wr_id: u64, to: RemoteAddr) {
        assert_eq!(self.write(wr_id, to), Some(SUCCESS), "{:?}", self.pair.qps[0][0].close_reason());
        assert_eq!(self.pair.word(0), wr_id);
    }

    /// The refusal ends the queue pair, but neither the backup nor the other queue pair.
    fn check_refused(&mut self, wr_id: u64, to: RemoteAddr) {
        let before = self.pair.word(0);
        assert_eq!(self.write(wr_id, to), Some(Outcome::Failed(WcStatus::RemoteAccess)));
        assert_eq!(self.pair.word(0), before);
        assert_eq!(self.pair.qps[0][0].close_reason(), Some(CloseReason::RequestError));
        let id = wr_id + 1_000_000;
        self.pair.write(1, 9, id);
        self.pair.poll(&[0, 1], SETTLE);
        assert_eq!((self.outcome(0, id), self.pair.word(9)), (Some(SUCCESS), id));
        assert_eq!(self.pair.backups.each_ref().map(|backup| backup.close_reason()), [None, None]);
    }
}

/// The window is valid on the first rail, and on the own queue pair of each later epoch.
#[test]
fn bound_window_is_valid_on_every_rail() {
    for window_type in [WindowType::Type1, WindowType::Type2] {
        for rails in [2, 3] {
            let mut windows = WindowPair::new(rails, window_type);
            let to = windows.bind(1, 7);
            for i in 0..5 {
                windows.check_permitted(10 + i, to);
                windows.fail_over();
            }
            windows.check_permitted(50, to);
            windows.check_refused(51, RemoteAddr { addr: to.addr + 60, ..to });
        }
    }
}

#[test]
fn invalidated_window_is_refused_on_every_rail() {
    for (before, after) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 1)] {
        for by_peer in [false, true] {
            let mut windows = WindowPair::new(2, WindowType::Type2);
            let to = windows.bind(1, 7);
            (0..before).for_each(|_| windows.fail_over());
            windows.check_permitted(10, to);
            let domain = windows.pair.qps[1][0].domain();
            assert!(matches!(domain.deregister(&windows.mr), Err(Error::Busy { .. })));
            if by_peer {
                windows.receive(3);
                windows.post(0, 0, 2, SendOp::SendWithInvalidate(to.rkey));
                windows.pair.poll(&[0, 1], SETTLE);
                assert_eq!([windows.outcome(0, 2), windows.outcome(1, 3)], [Some(SUCCESS); 2]);
                let received = windows.pair.completions[1][0].iter().find(|c| c.wr_id == 3);
                assert_eq!(received.and_then(|c| c.invalidated), Some(to.rkey));
            } else {
                windows.post(1, 0, 2, SendOp::LocalInvalidate(to.rkey));
                windows.pair.poll(&[0, 1], SETTLE);
                assert_eq!(windows.outcome(1, 2), Some(SUCCESS));
            }
            (0..after).for_each(|_| windows.fail_over());
            // The window can be bound again, and the earlier key stays invalid.
            let again = windows.bind(4, 8);
            windows.check_permitted(11, again);
            windows.check_refused(12, to);
            windows.pair.qps[1][0].shutdown();
            windows.pair.poll(&[0, 1], SETTLE);
            windows.pair.qps[1][0].domain().deregister(&windows.mr).expect("no window is bound");
        }
    }
}

/// A bind of no bytes ends the binding on every NIC. A bind of other bytes makes the earlier key
/// invalid.
#[test]
fn type_1_window_is_bound_anew_on_every_rail() {
    for failovers in 0..3 {
        for ends in [false, true] {
            let mut windows = WindowPair::new(2, WindowType::Type1);
            let first = windows.bind(1, 1);
            windows.check_permitted(10, first);
            if ends {
                windows.post(1, 0, 2, windows.bind_op(1, 0));
                windows.pair.poll(&[0, 1], SETTLE);
                assert_eq!(windows.outcome(1, 2), Some(SUCCESS));
                windows.pair.qps[1][0].domain().deregister(&windows.mr).expect("no window is bound");
            } else {
                let second = windows.bind(2, 2);
                windows.check_permitted(11, second);
            }
            (0..failovers).for_each(|_| windows.fail_over());
            windows.check_refused(12, first);
        }
    }
}

#[test]
fn refused_bind_or_invalidation_ends_the_queue_pair_on_every_rail() {
    for failovers in 0..3 {
        for kind in 0..3 {
            let mut windows = WindowPair::new(2, WindowType::Type2);
            let to = windows.bind(1, 7);
            (0..failovers).for_each(|_| windows.fail_over());
            let (op, status) = match kind {
                0 => (windows.bind_op(7, 64), WcStatus::WindowBind),
                1 => (SendOp::LocalInvalidate(to.rkey.with_consumer_bits(9)), WcStatus::LocalQpOperation),
                _ => (SendOp::LocalInvalidate(Key(to.rkey.0 ^ 0x4000)), WcStatus::LocalQpOperation),
            };
            windows.post(1, 0, 2, op);
            windows.post(1, 0, 3, SendOp::Send);
            windows.pair.poll(&[0, 1], 400);
            let flushed = Outcome::Failed(WcStatus::Flushed);
            assert_eq!(windows.outcome(1, 2), Some(Outcome::Failed(status)), "{kind}");
            assert_eq!(windows.outcome(1, 3), Some(flushed), "{kind}");
            assert_eq!(windows.pair.qps[1][0].close_reason(), Some(CloseReason::RequestError));
            assert_eq!(windows.pair.backups.each_ref().map(|backup| backup.close_reason()), [None, None]);
        }
    }
}

/// The MTUs of the NICs include the smallest one. The queue pairs that bind windows of type 1 on
/// the other rails use the same MTU.
#[test]
fn windows_are_bound_on_nics_of_every_mtu() {
    for mtu in Mtu::ALL {
        for window_type in [WindowType::Type1, WindowType::Type2] {
            let mut world = World::with_config(1, mitra_sim::Config::fault_free());
            let (hosts, capabilities) =
                (["a", "b"].map(|name| world.add_host(name)), world.config().capabilities);
            let nics = hosts.map(|host| {
                (0..2).map(|rail| world.add_nic_with_mtu(host, rail, capabilities, mtu)).collect()
            });
            let mut windows = WindowPair::over(Testbed { world, hosts, nics }, window_type);
            let to = windows.bind(1, 7);
            windows.fail_over();
            windows.check_permitted(10, to);
        }
    }
}

/// A type 2 window is bound on one member's own queue pair. So its key is refused on another
/// member's own queue pair, and on the backup, whose queue pairs serve all members.
#[test]
fn key_of_a_window_is_refused_on_the_queue_pair_of_another_member() {
    let mut windows = WindowPair::new(2, WindowType::Type2);
    let to = windows.bind(1, 7);
    windows.import(1, 7);
    windows.post(0, 1, 2, SendOp::Write(to));
    windows.pair.poll(&[0, 1], 400);
    assert_eq!(windows.outcome(0, 2), Some(Outcome::Failed(WcStatus::RemoteAccess)));
    assert_eq!(
        (windows.pair.word(0), windows.pair.qps[0][1].close_reason()),
        (0, Some(CloseReason::RequestError))
    );
    windows.check_permitted(3, to);
}

/// The requests behind a request that names a window wait too.
#[test]
fn request_that_names_a_window_waits_for_the_queue_pair() {
    let mut windows = WindowPair::new(2, WindowType::Type2);
    let to = windows.bind(1, 7);
    let nic = windows.pair.testbed.rail(0)[0];
    windows.pair.testbed.world.set_link(nic, false);
    windows.post(0, 0, 10, SendOp::Write(to));
    windows.pair.write(0, 5, 11);
    windows.pair.write(1, 6, 12);
    windows.pair.poll(&[0], 400);
    let ended = [10, 11, 12].map(|id| windows.outcome(0, id));
    assert_eq!((ended, windows.pair.word(0), windows.pair.word(5)), ([None, None, None], 0, 0));
    windows.pair.poll(&[0, 1], 400);
    assert_eq!([10, 11, 12].map(|id| windows.outcome(0, id)), [Some(SUCCESS); 3]);
    assert_eq!([0, 5, 6].map(|word| windows.pair.word(word)), [10, 11, 12]);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RailFailure {
    Link,
    /// The NIC of this host.
    Nic(usize, Failure),
}

const RAIL_FAILURES: [RailFailure; 5] = [
    RailFailure::Link,
    RailFailure::Nic(0, Failure::NicDead),
    RailFailure::Nic(1, Failure::NicDead),
    RailFailure::Nic(0, Failure::NicHung),
    RailFailure::Nic(1, Failure::NicHung),
];

fn fail(pair: &mut BackedPair, failure: RailFailure) {
    let nics = pair.testbed.rail(pair.backups[0].active_rail());
    match failure {
        RailFailure::Link => pair.testbed.world.set_link(nics[0], false),
        RailFailure::Nic(h, failure) => pair.testbed.world.fail(nics[h], failure),
    }
}

/// Binds, uses and invalidates the window repeatedly. One rail fails at poll `polls[0]`, and
/// another rail at poll `polls[1]`. Every operation ends once, with the outcome that it has without
/// a failure. Returns the number of operations.
fn run_under_failures(
    window_type: WindowType,
    by_peer: bool,
    polls: [usize; 2],
    failure: RailFailure,
) -> u64 {
    let mut windows = WindowPair::new(3, window_type);
    let (mut step, mut is_posted) = (0_u64, false);
    for poll in 0..3 * FAILOVER {
        if polls.contains(&poll) {
            fail(&mut windows.pair, failure);
        }
        let (tag, id) = ((step / 3) as u8, 100 + step);
        let to = windows.at(tag);
        let is_received = step % 3 == 2 && by_peer;
        let end = usize::from(step % 3 == 0 || step % 3 == 2 && !by_peer);
        if !replace(&mut is_posted, true) {
            let op = match step % 3 {
                0 => windows.bind_op(tag, 64),
                1 => {
                    windows.import(0, tag);
                    SendOp::Write(to)
                }
                _ if by_peer => {
                    windows.receive(1_000_000 + id);
                    SendOp::SendWithInvalidate(to.rkey)
                }
                _ if window_type == WindowType::Type1 => windows.bind_op(tag, 0),
                _ => SendOp::LocalInvalidate(to.rkey),
            };
            windows.post(end, 0, id, op);
        }
        windows.pair.poll(&[0, 1], 1);
        let Some(outcome) = windows.outcome(end, id) else { continue };
        let label = format!("{window_type:?}, step {step}, {polls:?}, {failure:?}");
        assert_eq!(outcome, SUCCESS, "{label}");
        if is_received && windows.outcome(1, 1_000_000 + id).is_none() {
            continue;
        }
        if step % 3 == 1 {
            assert_eq!(windows.pair.word(0), id, "{label}");
        }
        windows.pair.completions.iter_mut().flatten().for_each(Vec::clear);
        (step, is_posted) = (step + 1, false);
    }
    let reasons = windows.pair.qps.each_ref().map(|qps| qps[0].close_reason());
    assert_eq!(reasons, [None, None], "{window_type:?}, {polls:?}, {failure:?}");
    step
}

#[test]
fn window_operations_are_executed_once_whenever_a_rail_fails() {
    for failure in RAIL_FAILURES {
        for (window_type, by_peer) in
            [(WindowType::Type1, false), (WindowType::Type2, false), (WindowType::Type2, true)]
        {
            for poll in fault_times(0..20) {
                let steps = run_under_failures(window_type, by_peer, [poll, usize::MAX], failure);
                assert!(steps > 100, "{steps} steps, {window_type:?}, {by_peer}, {poll}, {failure:?}");
            }
        }
    }
}

/// The next rail fails while the window moves to it.
#[test]
fn window_operations_are_executed_once_whenever_a_second_rail_fails() {
    for failure in [RailFailure::Link, RailFailure::Nic(1, Failure::NicDead)] {
        for (window_type, by_peer) in [(WindowType::Type1, false), (WindowType::Type2, true)] {
            for second in fault_times(0..60) {
                let first = 3 + second % 5;
                let steps = run_under_failures(window_type, by_peer, [first, first + 1 + second], failure);
                assert!(steps > 100, "{steps} steps, {window_type:?}, {by_peer}, {second}, {failure:?}");
            }
        }
    }
}

/// The NIC executes the binds of a new queue pair late. The peer's request arrives only when the
/// window is bound there.
#[test]
fn peer_uses_new_queue_pair_only_after_the_binds_there() {
    for delay in [50, 200, 800] {
        let mut world = mitra_sim::Config::fault_free();
        world.nic.doorbell_delay = DurationRange::micros(0, delay);
        let mut windows = WindowPair::in_world(2, WindowType::Type2, world);
        let to = windows.bind(1, 7);
        windows.check_permitted(10, to);
        for i in 0..6 {
            let nic = windows.pair.testbed.rail(windows.pair.backups[0].active_rail())[0];
            windows.pair.testbed.world.set_link(nic, false);
            windows.check_permitted_within(20 + i, to, FAILOVER);
            windows.pair.testbed.world.set_link(nic, true);
            windows.pair.poll(&[0, 1], FAILOVER);
        }
    }
}

impl WindowPair {
    fn check_permitted_within(&mut self, wr_id: u64, to: RemoteAddr, polls: usize) {
        self.post(0, 0, wr_id, SendOp::Write(to));
        self.pair.poll(&[0, 1], polls);
        assert_eq!((self.outcome(0, wr_id), self.pair.word(0)), (Some(SUCCESS), wr_id));
    }
}

/// The NIC of a standby rail is dead, or hangs and still executes requests. The NIC is reset, and
/// the bind of a type 1 window completes.
#[test]
fn failed_nic_of_another_rail_grants_nothing() {
    for failure in [Failure::NicDead, Failure::NicHung] {
        for window_type in [WindowType::Type1, WindowType::Type2] {
            let mut windows = WindowPair::new(3, window_type);
            let to = windows.bind(1, 7);
            windows.check_permitted(10, to);
            let nic = windows.pair.testbed.nics[1][1].id();
            windows.pair.testbed.world.fail(nic, failure);
            if window_type == WindowType::Type2 {
                windows.post(1, 0, 2, SendOp::LocalInvalidate(to.rkey));
                windows.pair.poll(&[0, 1], SETTLE);
                assert_eq!(windows.outcome(1, 2), Some(SUCCESS), "{failure:?}");
            }
            let again = windows.bind(3, 8);
            windows.fail_over();
            windows.check_permitted(11, again);
            windows.check_refused(12, to);
        }
    }
}

/// When the completion of an invalidation is delivered, no NIC has the window bound, although some
/// NICs execute the invalidation late.
#[test]
fn region_is_free_when_the_invalidation_completes() {
    for (window_type, by_peer) in
        [(WindowType::Type1, false), (WindowType::Type2, false), (WindowType::Type2, true)]
    {
        for polls in 0..20 {
            let mut world = mitra_sim::Config::fault_free();
            world.nic.doorbell_delay = DurationRange::micros(0, 400);
            let mut windows = WindowPair::in_world(3, window_type, world);
            let to = windows.bind(1, 7);
            windows.pair.poll(&[0, 1], polls);
            if by_peer {
                windows.receive(2);
                windows.post(0, 0, 3, SendOp::SendWithInvalidate(to.rkey));
            } else {
                let is_type_1 = window_type == WindowType::Type1;
                let op = if is_type_1 { windows.bind_op(7, 0) } else { SendOp::LocalInvalidate(to.rkey) };
                windows.post(1, 0, 2, op);
            }
            while windows.outcome(1, 2).is_none() {
                windows.pair.poll(&[0, 1], 1);
            }
            assert_eq!(windows.outcome(1, 2), Some(SUCCESS));
            assert_eq!(windows.pair.qps[1][0].domain().deregister(&windows.mr), Ok(()));
        }
    }
}

/// The windows grant nothing, even if the backup still has operations of the queue pair.
#[test]
fn closed_queue_pair_unbinds_its_windows() {
    for is_moving in [false, true] {
        let mut windows = WindowPair::new(2, WindowType::Type2);
        windows.bind(1, 7);
        if is_moving {
            let nic = windows.pair.testbed.rail(0)[0];
            windows.pair.testbed.world.set_link(nic, false);
            windows.pair.testbed.world.run_for(Duration::from_micros(100));
        }
        let domain = windows.pair.qps[1][0].domain().clone();
        drop(windows.pair.qps[1].remove(0));
        assert_eq!(domain.deregister(&windows.mr), Ok(()), "{is_moving}");
    }
}

//! Events that arrive between two calls of a vQP on its NICs.

use core::time::Duration;
use std::sync::Arc;

use crate::hooked_nic::{
    HookedNic, cancel_interrupt, interrupt_after, interrupt_each, set_world, with_world,
};
use crate::vqp_pair::assert_liveness;
use mitra_failover::{CloseReason, Config, Domain, Secret, VirtualMr, VirtualQp};
use mitra_sim::Testbed;
use mitra_verbs::{
    Access, AsyncEvent, Buffer, Data, LocalAckTimeout, Provider, RecvWr, SendOp, SendWr, Time,
};

/// More NIC calls than any call of a vQP in these tests makes.
const MAX_CALLS: usize = 400;

/// Two connected ends of an event loop, over hooked NICs.
struct Pair {
    ends: [VirtualQp; 2],
    nics: [Vec<Arc<HookedNic>>; 2],
    /// The memory of both ends, and its registrations.
    memory: Arc<Buffer>,
    mrs: [VirtualMr; 2],
}

fn now() -> Time {
    with_world(|testbed| testbed.world.now())
}

fn run_for(time: Duration) {
    with_world(|testbed| testbed.world.run_for(time));
}

impl Drop for Pair {
    fn drop(&mut self) {
        with_world(|testbed| assert_liveness(testbed, self.ends.each_ref()));
    }
}

impl Pair {
    /// Heartbeats are off, so nothing happens until a message arrives.
    fn new() -> Pair {
        Pair::with_heartbeats(0)
    }

    fn with_heartbeats(max_missed: u32) -> Pair {
        let mut config = Config { send_wrs: 128, recv_wrs: 128, ..Config::default() };
        config.detector.max_missed_heartbeats = max_missed;
        config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
        let nics = testbed.nics.each_ref().map(|nics| nics.iter().map(HookedNic::new).collect::<Vec<_>>());
        set_world(testbed);
        let domains = nics.each_ref().map(|nics| {
            let nics = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
            Domain::new(nics).expect("the NICs have room")
        });
        let mut ends = [0, 1].map(|i: usize| {
            let builder = VirtualQp::builder(&domains[i]).config(config).own_channels(true);
            builder.secret(Secret::fixed([i as u64 + 1, i as u64 + 3])).build().expect("the NICs have room")
        });
        let infos = ends.each_ref().map(|end| end.local_info());
        ends[0].connect(&infos[1]).expect("the ends match");
        ends[1].connect(&infos[0]).expect("the ends match");
        let memory = Arc::new(Buffer::new(8192));
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mrs = domains.each_ref().map(|domain| domain.register(&memory, access).expect("a free region"));
        for i in 0..2 {
            ends[i].import(&mrs[1 - i].remote()).expect("the vQP is connected");
        }
        let mut pair = Pair { ends, nics, memory, mrs };
        for _ in 0..4 {
            run_for(Duration::from_micros(50));
            pair.ends.iter_mut().for_each(|end| end.handle_events().expect("the NICs are alive"));
        }
        (0..2).for_each(|i| pair.wait(i));
        pair
    }

    fn is_readable(&self, i: usize) -> bool {
        self.nics[i].iter().any(|nic| nic.channel.is_readable())
    }

    /// Does what the event loop of end `i` does until it would sleep.
    fn wait(&mut self, i: usize) {
        while self.is_readable(i) {
            self.ends[i].handle_events().expect("the NICs are alive");
        }
    }
}

/// `arrives` causes an event for the second end. In each run, the event arrives at another call
/// that the second end makes to a NIC. The second end must handle the event before its event loop
/// sleeps. `is_handled` returns whether it has handled the event.
fn check_no_event_is_lost(arrives: impl Fn(&mut Pair), is_handled: impl Fn(&Pair) -> bool) {
    for calls in 0.. {
        assert!(calls < MAX_CALLS, "the vQP makes too many calls");
        let mut pair = Pair::new();
        arrives(&mut pair);
        interrupt_after(calls, Duration::from_micros(100));
        pair.ends[1].handle_events().expect("the NICs are alive");
        let is_last = cancel_interrupt();
        run_for(Duration::from_micros(100));
        pair.wait(1);
        assert!(is_handled(&pair), "it arrived before call {calls}");
        if is_last {
            return;
        }
    }
}

#[test]
fn completion_that_arrives_between_two_calls_is_handled() {
    let arrives = |pair: &mut Pair| {
        pair.ends[1].post_recv(RecvWr::new(1, pair.mrs[1].sge(0, 8))).expect("the queue has room");
        let message = SendWr::new(1, SendOp::Send, Data::inline(b"message."));
        pair.ends[0].post_send(message).expect("the vQP is open");
    };
    check_no_event_is_lost(arrives, |pair| pair.ends[1].has_completions());
}

#[test]
fn control_message_that_arrives_between_two_calls_is_handled() {
    let is_handled = |pair: &Pair| pair.ends[1].close_reason() == Some(CloseReason::PeerClosed);
    check_no_event_is_lost(|pair| pair.ends[0].shutdown(), is_handled);
}

/// The queue pair refuses a request of the peer at the same time as the peer's Closed message
/// arrives. The event of the refusal says why the connection ended.
#[test]
fn event_of_a_refused_request_is_kept_when_the_peer_closes() {
    let arrives = |pair: &mut Pair| {
        pair.ends[1].set_access(Access::REMOTE_READ).expect("the NICs are alive");
        let write = SendOp::Write(pair.mrs[1].remote().at(0));
        pair.ends[0].post_send(SendWr::new(1, write, Data::inline(&[1; 8]))).expect("the vQP is open");
        run_for(Duration::from_nanos(1000)); // the request leaves
        pair.ends[0].shutdown();
    };
    check_no_event_is_lost(arrives, |pair| {
        assert!(pair.ends[1].close_reason().is_some(), "the Closed message has arrived");
        matches!(pair.ends[1].qp_error_event(), Some(AsyncEvent::QpRequestError(_)))
    });
}

/// One event announces several times as many completions as a vQP takes from a queue at once.
#[test]
fn one_event_suffices_for_many_completions() {
    const MESSAGES: u64 = 120;
    let mut pair = Pair::new();
    for i in 0..MESSAGES {
        pair.ends[1].post_recv(RecvWr::new(i, pair.mrs[1].sge(0, 8))).expect("the queue has room");
    }
    for i in 0..MESSAGES {
        pair.ends[0].post_send(SendWr::new(i, SendOp::Send, Data::inline(b"message."))).expect("it has room");
    }
    for _ in 0..8 {
        run_for(Duration::from_micros(100));
        pair.wait(0);
    }
    pair.wait(1);
    let mut received = Vec::new();
    assert_eq!(pair.ends[1].take_completions(&mut received), MESSAGES as usize);
}

/// An end that waits for events reads the peer's heartbeats when its own are due.
#[test]
fn heartbeat_wakes_no_end() {
    let mut pair = Pair::with_heartbeats(4);
    for _ in 0..4 {
        let due = pair.ends[0].event_timeout().expect("heartbeats are on");
        run_for(due.saturating_since(now()));
        pair.ends[0].handle_events().expect("the NICs are alive");
        run_for(Duration::from_micros(50));
        assert!(!pair.is_readable(1));
        pair.ends[1].handle_events().expect("the NICs are alive");
    }
}

/// The active rail's queue pair enters ERR at some call, because its retries are exhausted.
#[test]
fn rights_change_although_rail_fails_between_two_calls() {
    for calls in 0.. {
        assert!(calls < MAX_CALLS, "the vQP makes too many calls");
        let mut pair = Pair::new();
        let link = with_world(|testbed| testbed.nics[0][0].id());
        with_world(|testbed| testbed.world.set_link(link, false));
        let write = SendWr::new(1, SendOp::Write(pair.mrs[0].remote().at(0)), Data::inline(&[1; 8]));
        pair.ends[1].post_send(write).expect("the vQP is open");
        interrupt_after(calls, Duration::from_millis(100));
        pair.ends[1].set_access(Access::REMOTE_READ).expect("the failure of a rail is no error");
        if cancel_interrupt() {
            return;
        }
    }
}

/// Time passes at each call of a NIC. The test sleeps without a timeout unless the vQPs have one,
/// so the test ends only if no event is lost. The first end posts a message behind each
/// fetch-and-add. The second end receives such messages on a rail before it knows of the move to
/// that rail. The second failover moves to queue pairs that replaced the queue pairs of the first
/// failover.
#[test]
fn failovers_lose_no_event_and_no_operation_while_time_passes_between_calls() {
    const ROUNDS: u64 = 300;
    for nanos in [150, 700, 1900, 4100, 9000, 23_000] {
        let mut pair = Pair::new();
        let links = with_world(|testbed| [0, 1].map(|rail| testbed.nics[1][rail].id()));
        let set_link = |rail: usize, up| with_world(|testbed| testbed.world.set_link(links[rail], up));
        for i in 0..64 {
            pair.ends[1].post_recv(RecvWr::new(i, pair.mrs[1].sge(8, 0))).expect("the queue has room");
        }
        interrupt_each(Duration::from_nanos(nanos));
        let (mut posted, mut values, mut received, mut completions) = (0, Vec::new(), Vec::new(), Vec::new());
        let (mut resume_at, mut moves) = (Time::ZERO, Vec::new());
        while values.len() < ROUNDS as usize || received.len() < ROUNDS as usize {
            while posted < ROUNDS && posted < values.len() as u64 + 8 && resume_at <= now() {
                let op = SendOp::FetchAdd { remote: pair.mrs[1].remote().at(0), add: 1 };
                let to = pair.mrs[0].sge(8 + 8 * posted, 8);
                let add = SendWr::new(posted, op, Data::sge(to));
                let message = SendWr::new(ROUNDS, SendOp::SendWithImm(posted as u32), Data::empty());
                pair.ends[0].post_send_all([add, message]).expect("the vQP is open");
                posted += 1;
                match posted {
                    80 => set_link(0, false),
                    150 => set_link(0, true),
                    // The first rail is rebuilt in this time.
                    200 => resume_at = now() + Duration::from_millis(500),
                    220 => set_link(1, false),
                    _ => {}
                }
            }
            for i in 0..2 {
                if pair.is_readable(i) || pair.ends[i].event_timeout().is_some_and(|at| at <= now()) {
                    pair.ends[i].handle_events().expect("the NICs are alive");
                }
            }
            pair.ends[0].take_completions(&mut completions);
            for completion in completions.drain(..) {
                let completion = completion.into_result().expect("each operation is executed");
                if completion.wr_id < ROUNDS {
                    values.push(pair.memory.load(8 + 8 * completion.wr_id as usize));
                }
            }
            pair.ends[1].take_completions(&mut completions);
            for completion in completions.drain(..) {
                let completion = completion.into_result().expect("each message is received");
                received.push(u64::from(completion.imm.expect("each message has immediate data")));
                let recv = RecvWr::new(completion.wr_id, pair.mrs[1].sge(8, 0));
                pair.ends[1].post_recv(recv).expect("the queue has room");
            }
            if moves.last() != Some(&pair.ends[0].active_rail()) {
                moves.push(pair.ends[0].active_rail());
            }
            run_for(Duration::from_micros(5));
            let counts = (posted, values.len(), received.len());
            assert!(now() < Time::from_nanos(60_000_000_000), "{counts:?} after {nanos} ns");
        }
        assert_eq!((pair.memory.load(0), moves), (ROUNDS, vec![0, 1, 0]));
        assert_eq!(values, (0..ROUNDS).collect::<Vec<_>>());
        assert_eq!(received, values);
    }
}

/// Whether the event loop of end `i` calls the vQP now.
fn is_due(pair: &Pair, i: usize) -> bool {
    pair.is_readable(i) || pair.ends[i].event_timeout().is_some_and(|at| at <= now())
}

/// Sleeps until an event loop calls its vQP, for at most 50 ms.
fn sleep(pair: &Pair) {
    let end = now() + Duration::from_millis(50);
    while now() < end && !(0..2).any(|i| is_due(pair, i)) {
        run_for(Duration::from_micros(50));
    }
}

/// Moves the pair to the second rail, and back when the link of the first one is up again. In each
/// run, the second end makes another choice at each time at which its event loop calls the vQP:
/// it polls as a busy program does, or handles events. The poll moves the vQP, or replaces a queue
/// pair. The end then sleeps, and a message must wake it.
#[test]
fn sleeper_that_a_poll_has_moved_is_woken() {
    const CHOICES: u32 = 10;
    for choices in 0..1_u32 << CHOICES {
        let mut pair = Pair::new();
        pair.ends[1].post_recv(RecvWr::new(1, pair.mrs[1].sge(0, 8))).expect("the queue has room");
        let link = with_world(|testbed| testbed.nics[1][0].id());
        let set_link = |up| with_world(|testbed| testbed.world.set_link(link, up));
        let (mut taken, mut is_up, mut is_sent) = (0, false, false);
        let mut completions = Vec::new();
        set_link(false);
        pair.ends[1].handle_events().expect("the NICs are alive");
        for _ in 0..100 {
            sleep(&pair);
            let due = [0, 1].map(|i| is_due(&pair, i));
            if due[0] {
                pair.ends[0].handle_events().expect("the NICs are alive");
            }
            if due[1] {
                let polls = taken < CHOICES && choices & 1 << taken != 0;
                taken += 1;
                match polls {
                    true => _ = pair.ends[1].poll(&mut completions),
                    false => pair.ends[1].handle_events().expect("the NICs are alive"),
                }
            }
            if !is_up && pair.ends[0].active_rail() == 1 && pair.ends[0].is_move_confirmed() {
                is_up = true;
                set_link(true);
                pair.ends[1].handle_events().expect("the NICs are alive");
            }
            if is_up && !is_sent && due == [false; 2] {
                is_sent = true;
                let message = SendWr::new(1, SendOp::Send, Data::inline(b"message."));
                pair.ends[0].post_send(message).expect("the vQP is open");
            }
            pair.ends[1].take_completions(&mut completions);
            if !completions.is_empty() {
                break;
            }
        }
        let rails = pair.ends.each_ref().map(VirtualQp::active_rail);
        assert!(!completions.is_empty(), "{choices:#b}: {taken} calls, sent: {is_sent}, on {rails:?}");
    }
}

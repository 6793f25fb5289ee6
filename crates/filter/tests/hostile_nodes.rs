//! A filter table whose nodes violate the protocol.

use core::time::Duration;

use mitra_filter::{
    Action, Attempt, BitFilter, FilterAction, FilterCore, FilterTable, Grant, Message, Outcome, Sender,
    SenderCore, Submit, TableConfig, Terms, Ticket, Verdict,
};
use mitra_prng::Prng;
use mitra_verbs::Time;

const LEASE: Duration = Duration::from_secs(1);
const CONFIG: TableConfig = TableConfig { rows: 2, window: 2, requests_per_grant: 10, lease: LEASE };

type Table = FilterTable<u8, u32>;
/// Messages with their receivers.
type Sent = Vec<(u8, Message<u32>)>;
type Out = Vec<FilterAction<u8, u32>>;

/// Passes a message to the table. Returns the verdict, the messages that the table sends, and the
/// tickets of the requests to execute.
fn receive(
    table: &mut Table,
    now: Time,
    node: u8,
    message: Message<u32>,
) -> (Verdict, Sent, Vec<Ticket<u8>>) {
    let mut out = Out::new();
    let verdict = table.receive(now, node, message, &mut out);
    let (mut sent, mut executed) = (Vec::new(), Vec::new());
    for action in out {
        match action {
            FilterAction::Send(to, message) => sent.push((to, message)),
            FilterAction::Execute(ticket, _) => executed.push(ticket),
        }
    }
    (verdict, sent, executed)
}

/// Returns the grant of a node's first attempt.
fn open(table: &mut Table, now: Time, node: u8) -> Grant {
    open_as(table, now, node, Attempt { era: 1, incarnation: 1, number: 1 })
}

fn open_as(table: &mut Table, now: Time, node: u8, attempt: Attempt) -> Grant {
    let (_, sent, _) = receive(table, now, node, Message::Open(attempt));
    match sent.as_slice() {
        [(to, Message::Offer(_, grant, _))] if *to == node => *grant,
        other => panic!("no offer: {other:?}"),
    }
}

fn request(grant: Grant, seq: u32, confirmed: u32) -> Message<u32> {
    Message::Request { grant, seq, confirmed, body: 100 + seq }
}

#[test]
fn foreign_node_changes_no_other_row() {
    let mut table = Table::new(7, CONFIG);
    let victim = open(&mut table, Time::ZERO, 0);
    let ticket = receive(&mut table, Time::ZERO, 0, request(victim, 1, 0)).2[0];
    table.complete(ticket, 5, &mut Out::new());
    let before = table.clone();
    for message in [request(victim, 1, 0), request(victim, 2, 1), Message::Release(victim)] {
        let (verdict, sent, executed) = receive(&mut table, Time::ZERO, 1, message);
        assert!(executed.is_empty() && verdict != Verdict::Executed);
        assert!(sent.iter().all(|(to, _)| *to == 1), "{sent:?}");
    }
    assert_eq!(table, before);
    let (verdict, sent, _) = receive(&mut table, Time::ZERO, 0, request(victim, 1, 0));
    assert_eq!(verdict, Verdict::Copy);
    assert_eq!(sent, [(0, Message::Reply { grant: victim, seq: 1, body: 5 })]);
}

#[test]
fn requests_beyond_window_and_sequence_are_ignored() {
    let mut table = Table::new(7, CONFIG);
    let grant = open(&mut table, Time::ZERO, 0);
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(grant, 2, 0)).0, Verdict::Ignored, "a gap");
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(grant, 0, 0)).0, Verdict::Ignored);
    for seq in 1..=2 {
        assert_eq!(receive(&mut table, Time::ZERO, 0, request(grant, seq, 0)).0, Verdict::Executed);
    }
    assert_eq!(
        receive(&mut table, Time::ZERO, 0, request(grant, 3, 0)).0,
        Verdict::Ignored,
        "the window is 2"
    );
    for seq in 3..=10 {
        assert_eq!(receive(&mut table, Time::ZERO, 0, request(grant, seq, seq - 1)).0, Verdict::Executed);
    }
    let (verdict, ..) = receive(&mut table, Time::ZERO, 0, request(grant, 11, 10));
    assert_eq!(verdict, Verdict::Ignored, "the grant has 10 sequence numbers");
}

#[test]
fn full_table_refuses_and_evicts_only_silent_idle_nodes() {
    let mut table = Table::new(7, CONFIG);
    let (idle, busy) = (open(&mut table, Time::ZERO, 0), open(&mut table, Time::ZERO, 1));
    let later = Time::ZERO + LEASE / 2;
    // Node 0 is heard later, but node 1 executes a request: neither row is taken before the lease.
    let ticket = receive(&mut table, Time::ZERO, 1, request(busy, 1, 0)).2[0];
    let attempt = Attempt { era: 1, incarnation: 1, number: 1 };
    let (verdict, sent, _) = receive(&mut table, later, 2, Message::Open(attempt));
    assert_eq!(verdict, Verdict::Refused);
    assert_eq!(sent, [(0, Message::Reclaim(idle)), (2, Message::Full(attempt))]);
    // After the lease, the row of node 1 is kept, because its request is being executed.
    let at = Time::ZERO + 2 * LEASE;
    assert_eq!(receive(&mut table, at, 2, Message::Open(attempt)).0, Verdict::Granted);
    assert_eq!(receive(&mut table, at, 0, request(idle, 1, 0)).0, Verdict::Refused, "node 0 was evicted");
    let third = Attempt { era: 1, incarnation: 1, number: 1 };
    assert_eq!(receive(&mut table, at, 3, Message::Open(third)).0, Verdict::Refused);
    let mut out = Out::new();
    table.complete(ticket, 9, &mut out);
    assert_eq!(out, [FilterAction::Send(1, Message::Reply { grant: busy, seq: 1, body: 9 })]);
    assert_eq!(table.len(), 2);
}

#[test]
fn copy_of_a_request_that_is_being_executed_is_not_executed() {
    let mut table = Table::new(7, CONFIG);
    let grant = open(&mut table, Time::ZERO, 0);
    let (_, _, executed) = receive(&mut table, Time::ZERO, 0, request(grant, 1, 0));
    let (verdict, sent, again) = receive(&mut table, Time::ZERO, 0, request(grant, 1, 0));
    assert_eq!((verdict, sent.len(), again.len()), (Verdict::Copy, 0, 0));
    // During the execution, neither a restart of the node nor its release ends the row.
    let restarted = Attempt { era: 2, incarnation: 2, number: 1 };
    let next = open_as(&mut table, Time::ZERO, 0, restarted);
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(next, 1, 0)).0, Verdict::Ignored);
    receive(&mut table, Time::ZERO, 0, Message::Release(grant));
    assert_eq!(table.len(), 1);
    table.complete(executed[0], 1, &mut Out::new());
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(next, 1, 0)).0, Verdict::Executed);
    // The table does not record the reply of a replaced row for the new row.
    let mut out = Out::new();
    table.complete(executed[0], 1, &mut out);
    assert_eq!(out, []);
}

#[test]
fn late_attempt_of_an_ended_incarnation_leaves_the_row() {
    let mut table = Table::new(7, CONFIG);
    let grant = open(&mut table, Time::ZERO, 0);
    let ticket = receive(&mut table, Time::ZERO, 0, request(grant, 1, 0)).2[0];
    table.complete(ticket, 5, &mut Out::new());
    let late = Attempt { era: 9, incarnation: 9, number: 1 };
    let offered = open_as(&mut table, Time::ZERO, 0, late);
    assert_eq!(open_as(&mut table, Time::ZERO, 0, late), offered, "a copy gets the same offer");
    let reply = Message::Reply { grant, seq: 1, body: 5 };
    let copy = receive(&mut table, Time::ZERO, 0, request(grant, 1, 0));
    assert_eq!((copy.0, copy.1), (Verdict::Copy, vec![(0, reply)]));
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(grant, 2, 1)).0, Verdict::Executed);
}

#[test]
fn later_incarnation_has_the_row_from_its_first_request() {
    let mut table = Table::new(7, CONFIG);
    let first = open(&mut table, Time::ZERO, 0);
    let offered = open_as(&mut table, Time::ZERO, 0, Attempt { era: 9, incarnation: 9, number: 1 });
    // An attempt of another incarnation that is between the two is refused, so that it takes a
    // greater era.
    let between = Attempt { era: 4, incarnation: 4, number: 1 };
    let (_, sent, _) = receive(&mut table, Time::ZERO, 0, Message::Open(between));
    assert_eq!(sent, [(0, Message::Superseded(between, 9))]);
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(offered, 1, 0)).0, Verdict::Executed);
    let (verdict, sent, _) = receive(&mut table, Time::ZERO, 0, request(first, 1, 0));
    assert_eq!((verdict, sent), (Verdict::Refused, vec![(0, Message::NoGrant(first))]));
}

#[test]
fn offered_grant_outlives_the_release_of_the_row() {
    let mut table = Table::new(7, CONFIG);
    let first = open(&mut table, Time::ZERO, 0);
    let attempt = Attempt { era: 9, incarnation: 9, number: 1 };
    let offered = open_as(&mut table, Time::ZERO, 0, attempt);
    receive(&mut table, Time::ZERO, 0, Message::Release(first));
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(offered, 1, 0)).0, Verdict::Executed);
    assert_eq!(table.len(), 1);
}

/// The `Open` of the first life of a node, with the greater clock, arrives after the second life
/// has its grant and has sent requests.
#[test]
fn clock_that_was_set_back_makes_no_call_unknown() {
    let mut table = Table::new(7, TableConfig { rows: 4, ..CONFIG });
    let mut actions = Vec::new();
    let mut first: Sender<u32> = Sender::new(2000, 8);
    let _ = first.submit(1, &mut actions);
    let [Action::Send(late_open), ..] = &actions[..] else { panic!("no Open: {actions:?}") };
    let late_open = late_open.clone();

    let mut actions = Vec::new();
    let mut second: Sender<u32> = Sender::new(1000, 8);
    let _ = second.submit(2, &mut actions);
    let mut late_open = Some(late_open);
    for _ in 0..4 {
        for action in core::mem::take(&mut actions) {
            match action {
                Action::Send(message) => {
                    if matches!(message, Message::Request { .. })
                        && let Some(late) = late_open.take()
                    {
                        let _ = receive(&mut table, Time::ZERO, 1, late);
                    }
                    let (_, mut replies, executed) = receive(&mut table, Time::ZERO, 1, message);
                    let mut out = Out::new();
                    executed.into_iter().for_each(|ticket| table.complete(ticket, 3, &mut out));
                    replies.extend(out.into_iter().filter_map(|action| match action {
                        FilterAction::Send(to, message) => Some((to, message)),
                        FilterAction::Execute(..) => None,
                    }));
                    replies.into_iter().for_each(|(_, reply)| second.receive(reply, &mut actions));
                }
                Action::Done { outcome, .. } => return assert_eq!(outcome, Outcome::Answered(3)),
                Action::SetTimer { .. } | Action::StopTimer => {}
            }
        }
    }
    panic!("the call does not end; late Open {late_open:?}");
}

/// Returns a random message whose fields often match other messages.
fn random_message(rng: &mut Prng) -> Message<u32> {
    let attempt = Attempt { era: rng.below(3), incarnation: rng.below(3), number: rng.below(3) as u32 };
    let grant = Grant { receiver: 6 + rng.below(3), number: rng.below(8) };
    let seq = *rng.pick(&[0, 1, 2, 3, 9, 10, 11, u32::MAX]);
    let body = rng.bits() as u32;
    match rng.below(13) {
        0 => Message::Open(attempt),
        1 => Message::Offer(
            attempt,
            grant,
            Terms { window: 1 + seq as u16 % 4, last_seq: 1 + seq % 4, lease_ms: 5 },
        ),
        2 => Message::Full(attempt),
        3 => Message::Superseded(attempt, rng.below(4)),
        4 => Message::Request { grant, seq, confirmed: rng.below(u64::from(seq)) as u32, body },
        5 => Message::Reply { grant, seq, body },
        6 => Message::NoGrant(grant),
        7 => Message::Reclaim(grant),
        8 => Message::Release(grant),
        9 => Message::Call { incarnation: rng.below(3), id: rng.below(4), body },
        10 => Message::CallReply { incarnation: rng.below(3), id: rng.below(4), body },
        11 => Message::BitRequest { bit: body & 1 == 1, body },
        _ => Message::BitReply { bit: body & 1 == 1, body },
    }
}

#[test]
fn random_messages_leave_an_honest_node_exactly_once() {
    for seed in 0..300 {
        let rng = &mut Prng::new(seed);
        let mut table = Table::new(7, CONFIG);
        let mut sender: Sender<u32> = Sender::new(1, 4);
        let (mut executed, mut answered) = (Vec::new(), Vec::new());
        let mut actions = Vec::new();
        for body in 0..20 {
            assert!(matches!(sender.submit(body, &mut actions), Submit::Accepted(_)));
            let mut turns = 0;
            while sender.outstanding() > 0 {
                turns += 1;
                assert!(turns < 200, "seed {seed}: the call does not end");
                // Node 1 sends random messages. The honest node sends, too, so its row is never
                // silent for the lease.
                for _ in 0..rng.below(4) {
                    let (_, _, tickets) = receive(&mut table, Time::ZERO, 1, random_message(rng));
                    for ticket in tickets {
                        table.complete(ticket, 0, &mut Out::new());
                    }
                    assert!(table.len() <= CONFIG.rows);
                }
                for action in core::mem::take(&mut actions) {
                    match action {
                        Action::Send(message) => {
                            let mut out = Out::new();
                            table.receive(Time::ZERO, 0, message, &mut out);
                            while let Some(action) = out.pop() {
                                match action {
                                    FilterAction::Send(0, message) => sender.receive(message, &mut actions),
                                    FilterAction::Send(..) => {}
                                    FilterAction::Execute(ticket, body) => {
                                        executed.push(body);
                                        table.complete(ticket, body + 1000, &mut out);
                                    }
                                }
                            }
                        }
                        Action::Done { outcome, .. } => answered.push(outcome),
                        Action::SetTimer { .. } | Action::StopTimer => {}
                    }
                }
                sender.timeout(&mut actions);
            }
        }
        assert_eq!(executed, (0..20).collect::<Vec<_>>(), "seed {seed}");
        answered.extend(actions.into_iter().filter_map(|action| match action {
            Action::Done { outcome, .. } => Some(outcome),
            _ => None,
        }));
        assert_eq!(answered, (1000..1020).map(Outcome::Answered).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn random_messages_break_no_sender_and_no_bit_filter() {
    for seed in 0..300 {
        let rng = &mut Prng::new(seed);
        let mut sender: Sender<u32> = Sender::new(1, 4);
        let mut filter: BitFilter<u32> = BitFilter::new(65);
        let (mut actions, mut out) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            actions.clear();
            let _ = sender.submit(1, &mut actions);
            let _ = sender.submit_idempotent(2, &mut actions);
            sender.receive(random_message(rng), &mut actions);
            if rng.below(4) == 0 {
                sender.timeout(&mut actions);
            }
            assert!(sender.outstanding() <= 4);
            out.clear();
            let node = rng.index(70);
            filter.receive(Time::ZERO, node, random_message(rng), &mut out);
            let sent = out.iter().all(|action| match action {
                FilterAction::Send(to, _) => *to == node,
                FilterAction::Execute(ticket, _) => ticket.node() == node,
            });
            assert!(sent && (node < 65 || out.is_empty()));
        }
    }
}

/// Runs a sender with this incarnation, and returns the outcome of its only call, whose body is the
/// incarnation.
fn restarted(table: &mut Table, incarnation: u32) -> Option<Outcome<u32>> {
    let mut sender: Sender<u32> = Sender::new(incarnation.into(), 1);
    let mut actions = Vec::new();
    let _ = sender.submit(incarnation, &mut actions);
    for _ in 0..10 {
        for action in core::mem::take(&mut actions) {
            let Action::Send(message) = action else { continue };
            let (_, sent, executed) = receive(table, Time::ZERO, 0, message);
            let mut out = Out::new();
            executed.into_iter().for_each(|ticket| table.complete(ticket, incarnation, &mut out));
            let replies = out.into_iter().filter_map(|action| match action {
                FilterAction::Send(_, message) => Some(message),
                FilterAction::Execute(..) => None,
            });
            sent.into_iter()
                .map(|(_, message)| message)
                .chain(replies)
                .for_each(|message| sender.receive(message, &mut actions));
        }
        if let Some(Action::Done { outcome, .. }) =
            actions.iter().find(|action| matches!(action, Action::Done { .. }))
        {
            return Some(outcome.clone());
        }
    }
    None
}

/// An incarnation whose era had to exceed an earlier era does not take the identity of a later
/// incarnation. Otherwise, the later incarnation would get its replies.
#[test]
fn incarnations_in_any_order_get_their_own_replies() {
    let mut table = Table::new(7, CONFIG);
    for incarnation in [1000, 900, 1001, 1002, 899, 1003] {
        assert_eq!(restarted(&mut table, incarnation), Some(Outcome::Answered(incarnation)));
    }
}

#[test]
fn late_attempts_of_ended_incarnations_leave_the_offer() {
    let attempt = |incarnation| Attempt { era: incarnation, incarnation, number: 1 };
    for (late, expected) in [(1, Verdict::Executed), (7, Verdict::Executed), (8, Verdict::Refused)] {
        let mut table = Table::new(7, CONFIG);
        open(&mut table, Time::ZERO, 0);
        let offered = open_as(&mut table, Time::ZERO, 0, attempt(4));
        for incarnation in 0..late {
            open_as(&mut table, Time::ZERO, 0, attempt(9 + incarnation));
        }
        assert_eq!(
            open_as(&mut table, Time::ZERO, 0, attempt(9)),
            open_as(&mut table, Time::ZERO, 0, attempt(9))
        );
        // A row keeps at most eight offers.
        assert_eq!(receive(&mut table, Time::ZERO, 0, request(offered, 1, 0)).0, expected, "{late} attempts");
        assert_eq!(table.len(), 1);
    }
}

#[test]
fn late_attempt_of_the_incarnation_with_the_row_leaves_the_offer() {
    let mut table = Table::new(7, CONFIG);
    open(&mut table, Time::ZERO, 0);
    let offered = open_as(&mut table, Time::ZERO, 0, Attempt { era: 9, incarnation: 9, number: 1 });
    open_as(&mut table, Time::ZERO, 0, Attempt { era: 1, incarnation: 1, number: 2 });
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(offered, 1, 0)).0, Verdict::Executed);
}

#[test]
fn request_under_an_earlier_offer_leaves_the_later_one() {
    let mut table = Table::new(7, CONFIG);
    open(&mut table, Time::ZERO, 0);
    let [ended, running] =
        [9, 10].map(|era| open_as(&mut table, Time::ZERO, 0, Attempt { era, incarnation: era, number: 1 }));
    let ticket = receive(&mut table, Time::ZERO, 0, request(ended, 1, 0)).2[0];
    table.complete(ticket, 5, &mut Out::new());
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(running, 1, 0)).0, Verdict::Executed);
    assert_eq!(receive(&mut table, Time::ZERO, 0, request(ended, 2, 1)).0, Verdict::Refused);
}

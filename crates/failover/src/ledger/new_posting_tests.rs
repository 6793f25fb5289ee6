//! A request that is posted before it is in the ledger leaves the same ledger as one that is
//! appended first.

use mitra_prng::Prng;
use mitra_verbs::{Data, Key, Mtu, Psn, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus};

use super::{Ledger, RecoveryInput};
use crate::completion::UnresolvedError;
use crate::config::{Policy, WritePolicy};
use crate::evidence::Evidence;

const FIRST_PSN: Psn = Psn::new(0xff_fffe);

fn request(numbers: &mut Prng) -> SendWr {
    let remote = RemoteAddr { addr: 0, rkey: Key(1) };
    let sge = |len| Data::sge(Sge { addr: 0, len, key: Key(2) });
    let len = [8, 256, 2000][numbers.below(3) as usize];
    let (op, data) = match numbers.below(8) {
        0 => (SendOp::Send, sge(len)),
        1 => (SendOp::WriteWithImm(remote, 7), sge(len)),
        2 | 3 => (SendOp::Read(remote), sge(len)),
        4 => (SendOp::FetchAdd { remote, add: 1 }, sge(8)),
        5 => (SendOp::LocalInvalidate(Key(3)), Data::empty()),
        _ => (SendOp::Write(remote), sge(len)),
    };
    let flags = if numbers.below(3) == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
    SendWr::new(numbers.below(1000), op, data).with_flags(flags)
}

fn post_all(ledger: &mut Ledger) -> Vec<SendWr> {
    let mut posted = Vec::new();
    while let Some(posting) = ledger.next_posting() {
        posted.push(posting.wr.clone());
    }
    posted
}

fn disturb(ledger: &mut Ledger, kind: u64, pick: u64) {
    let seq = ledger.first_seq() + pick % (ledger.len() as u64 + 1);
    match kind {
        0 => _ = ledger.drain(),
        1 => ledger.undrain(),
        2 => {
            let evidence = Evidence { psn: Some(ledger.next_psn), ..Evidence::default() };
            let input = RecoveryInput {
                policy: Policy::Exact,
                evidence: &evidence,
                local_placed: true,
                acks_after_placement: true,
                first_psn: FIRST_PSN,
                durable: false,
            };
            // Evidence that does not fit changes nothing.
            _ = ledger.decide(&input, &mut Vec::new());
        }
        3 => {
            ledger.fail(seq, WcStatus::RemoteAccess, UnresolvedError::Indeterminate);
            ledger.resume();
        }
        _ => {
            if ledger.execute_locally(seq).is_some() || ledger.is_in_flight(seq) {
                ledger.complete(seq, 8);
            }
            while ledger.pop().is_some() {}
        }
    }
}

#[test]
fn a_request_that_is_posted_first_leaves_the_same_ledger() {
    let (mut ahead, mut behind) = (0, 0);
    for seed in 0..400 {
        let mut numbers = Prng::new(seed);
        let log = seed % 4 == 0;
        let mut one = Ledger::new(8, 2, log, Mtu::M256, FIRST_PSN).with_log_interval(2);
        if seed % 3 == 0 {
            one = one.with_max_posted(4); // the queue pair of a rail holds fewer requests than the ledger
        }
        let mut two = one.clone();
        for _ in 0..100 {
            if one.has_room() && !one.is_halted() && numbers.below(2) == 0 {
                let mut wr = request(&mut numbers);
                let before = one.unposted();
                one.push(wr.clone(), WritePolicy::Strict);
                let mut posted = Vec::new();
                match two.admit_new(&mut wr) {
                    Some(entry) => {
                        assert_eq!(
                            (before, log),
                            (0, false),
                            "seed {seed}: it overtakes a pending one, or its log entry"
                        );
                        posted.push(wr.clone());
                        two.push_posted(wr, WritePolicy::Strict, entry);
                        assert_eq!(two.unposted(), 0, "seed {seed}: a posted request counts as pending");
                        ahead += 1;
                    }
                    None => {
                        two.push(wr, WritePolicy::Strict);
                        behind += 1;
                    }
                }
                let by_one = post_all(&mut one);
                posted.extend(post_all(&mut two));
                assert_eq!(posted, by_one, "seed {seed}: other requests are posted");
            } else {
                let (kind, pick) = (numbers.below(8), numbers.below(64));
                disturb(&mut one, kind, pick);
                disturb(&mut two, kind, pick);
                assert_eq!(post_all(&mut one), post_all(&mut two), "seed {seed}");
            }
            assert_eq!(one, two, "seed {seed}");
        }
    }
    assert!(
        ahead > 1000 && behind > 1000,
        "{ahead} requests were posted before they were appended, {behind} after"
    );
}

//! Windows of several kinds are bound, used and invalidated at random while rails fail and heal at
//! random.
//!
//! Both ends use windows of the other. The oracle: an operation that a window permits succeeds,
//! exactly once; after an invalidation, no access by the key succeeds on any rail; every operation
//! ends while a rail is usable.

use std::collections::VecDeque;

use crate::vqp_pair::{FULL_ACCESS, VqpPair, config};
use mitra_failover::{CloseReason, CompletionLogConfig, Config, Outcome, VirtualMr, VirtualMw};
use mitra_prng::{Prng, seeds};
use mitra_verbs::*;

const RAILS: usize = 3;
const WINDOWS: usize = 4;
/// The bytes of a window. Each window has its own words.
const LEN: u64 = 64;
const SEEDS: u64 = 40;
/// The number of rounds after which a run counts as stuck.
const MAX_ROUNDS: usize = 400_000;

/// The next step of a window. The steps of one window follow one another. Steps of different
/// windows are outstanding together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Bind,
    Add,
    Write,
    Invalidate,
}

/// A window of one end, which the other end uses.
struct Window {
    owner: usize,
    mw: VirtualMw,
    offset: u64,
    tag: u8,
    steps: VecDeque<Step>,
    /// The operations of the last step that have not ended: the end that completes each, its
    /// `wr_id`, and whether it is a receive.
    waits: Vec<(usize, u64, bool)>,
    adds: u64,
    written: u64,
}

impl Window {
    fn key(&self) -> Key {
        self.mw.primary().rkey.with_consumer_bits(self.tag)
    }
}

struct Storm {
    pair: VqpPair,
    mrs: [VirtualMr; 2],
    windows: Vec<Window>,
    rng: Prng,
    next_id: u64,
    /// The links that are down: the end, the rail, and the round in which the link heals.
    down: Vec<(usize, usize, usize)>,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let rng = Prng::new(seed);
        let completion_log = (seed % 2 == 1).then(CompletionLogConfig::default);
        let mut pair = VqpPair::new(RAILS as u8, Config { completion_log, ..config() });
        let mrs = [0, 1].map(|end: usize| {
            let domain = pair.vqps[end].domain();
            domain.register(&pair.memory[end], FULL_ACCESS | Access::WINDOW_BIND).expect("the NICs have room")
        });
        let windows = (0..2 * WINDOWS)
            .map(|i| {
                let owner = i % 2;
                let window_type = if i < 2 { WindowType::Type1 } else { WindowType::Type2 };
                let mw = pair.vqps[owner].domain().alloc_mw(window_type).expect("the NICs have room");
                let (offset, steps) = (i as u64 * LEN, VecDeque::new());
                Window { owner, mw, offset, tag: 0, steps, waits: Vec::new(), adds: 0, written: 0 }
            })
            .collect();
        pair.poll_times(&[0, 1], 5);
        Storm { pair, mrs, windows, rng, next_id: 0, down: Vec::new() }
    }

    fn bind(&self, window: &Window, len: u64) -> SendOp {
        let mr = self.mrs[window.owner].primary();
        let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let (mw, addr) = (window.mw.primary().id, mr.addr + window.offset);
        SendOp::BindWindow(WindowBind {
            mw,
            rkey: window.key(),
            mr: mr.id,
            addr,
            len,
            access,
            zero_based: false,
        })
    }

    fn post(&mut self, end: usize, op: SendOp, data: Data) -> (usize, u64, bool) {
        self.next_id += 1;
        let id = self.next_id;
        self.pair.send(end, id, op, data);
        (end, id, false)
    }

    fn advance(&mut self, i: usize) {
        let Some(step) = self.windows[i].steps.pop_front() else { return };
        let (owner, user) = (self.windows[i].owner, 1 - self.windows[i].owner);
        let is_type_1 = self.windows[i].mw.window_type() == WindowType::Type1;
        let addr = self.mrs[owner].primary().addr + self.windows[i].offset;
        let result = Data::sge(self.pair.mr[user].sge(4096 + 8 * i as u64, 8));
        let to = |window: &Window, at: u64| RemoteAddr { addr: addr + at, rkey: window.key() };
        if step != Step::Bind {
            let remote = self.windows[i].mw.remote(self.windows[i].key());
            self.pair.vqps[user].import(&remote).expect("the vQP is connected");
        }
        let posted = match step {
            Step::Bind => {
                self.windows[i].tag = self.windows[i].tag.wrapping_add(1);
                let op = self.bind(&self.windows[i], LEN);
                vec![self.post(owner, op, Data::empty())]
            }
            Step::Add | Step::Write => {
                let (counter, cell) = (to(&self.windows[i], 0), to(&self.windows[i], 8));
                if step == Step::Add {
                    self.windows[i].adds += 1;
                    vec![self.post(user, SendOp::FetchAdd { remote: counter, add: 1 }, result)]
                } else {
                    let value = self.rng.bits();
                    self.windows[i].written = value;
                    vec![self.post(user, SendOp::Write(cell), Data::inline(&value.to_ne_bytes()))]
                }
            }
            Step::Invalidate if is_type_1 => {
                let op = self.bind(&self.windows[i], 0);
                vec![self.post(owner, op, Data::empty())]
            }
            Step::Invalidate if self.rng.below(2) == 0 => {
                let op = SendOp::LocalInvalidate(self.windows[i].key());
                vec![self.post(owner, op, Data::empty())]
            }
            Step::Invalidate => {
                self.next_id += 1;
                let (id, op) = (self.next_id, SendOp::SendWithInvalidate(self.windows[i].key()));
                let wr = RecvWr { wr_id: id, sges: SgeList::new() };
                self.pair.vqps[owner].post_recv(wr).expect("the receive queue has room");
                let sent = self.post(user, op, Data::empty());
                vec![sent, (owner, id, true)]
            }
        };
        self.windows[i].waits = posted;
    }

    /// Takes the completions. Every operation ends once, successfully.
    fn complete(&mut self, context: &str) {
        for end in [0, 1] {
            for completion in std::mem::take(&mut self.pair.completions[end]) {
                let is_receive = completion.opcode == WcOpcode::Recv;
                assert_eq!(completion.outcome, Outcome::Success, "{context}: {completion:?}");
                // Receives complete in order of arrival, which may differ from the order of the
                // windows.
                let key = completion.invalidated;
                let ended = self.windows.iter_mut().find_map(|w| {
                    let at = w.waits.iter().position(|(e, id, r)| {
                        (*e, *r) == (end, is_receive)
                            && (if is_receive {
                                key == Some(w.mw.primary().rkey.with_consumer_bits(w.tag))
                            } else {
                                *id == completion.wr_id
                            })
                    })?;
                    Some(w.waits.swap_remove(at))
                });
                assert!(
                    ended.is_some(),
                    "{context}: an operation ends twice, or was never posted: {completion:?}"
                );
            }
            assert_eq!(self.pair.vqps[end].close_reason(), None, "{context}");
        }
    }

    /// Lets links fail and heal. The last rail stays up.
    fn fail_and_heal(&mut self, round: usize, links: &[usize]) {
        let healed: Vec<_> = self.down.extract_if(.., |(.., until)| *until <= round).collect();
        healed.into_iter().for_each(|(end, rail, _)| self.pair.link_up(end, rail));
        if self.rng.below(100) == 0 {
            let (end, rail) =
                (self.rng.below(2) as usize, links[self.rng.below(links.len() as u64) as usize]);
            if self.down.iter().all(|(_, r, _)| *r != rail) && self.down.len() + 1 < RAILS {
                self.pair.link_down(end, rail);
                self.down.push((end, rail, round + 200 + self.rng.below(4000) as usize));
            }
        }
    }
}

/// Runs a storm to its end. Returns the number of failovers of the first end.
fn run(seed: u64) -> u64 {
    let mut storm = Storm::new(seed);
    for window in &mut storm.windows {
        for _ in 0..60 {
            window.steps.push_back(Step::Bind);
            for _ in 0..storm.rng.below(4) {
                window.steps.push_back(if storm.rng.below(2) == 0 { Step::Add } else { Step::Write });
            }
            window.steps.push_back(Step::Invalidate);
        }
        window.steps.push_back(Step::Bind);
        window.steps.push_back(Step::Add);
    }
    for round in 0.. {
        assert!(round < MAX_ROUNDS, "seed {seed}: stuck");
        let context = format!("seed {seed}, round {round}");
        storm.fail_and_heal(round, &[0, 1, 2]);
        for i in 0..storm.windows.len() {
            if storm.windows[i].waits.is_empty() && storm.rng.below(20) == 0 {
                storm.advance(i);
            }
        }
        let ends: &[usize] = match storm.rng.below(8) {
            0 => &[0],
            1 => &[1],
            _ => &[0, 1],
        };
        storm.pair.poll(ends);
        storm.complete(&context);
        if storm.windows.iter().all(|w| w.steps.is_empty() && w.waits.is_empty()) {
            break;
        }
    }
    for window in &storm.windows {
        let (memory, offset) = (&storm.pair.memory[window.owner], window.offset as usize);
        assert_eq!(memory.load(offset), window.adds, "seed {seed}: each add counts once");
        assert_eq!(memory.load(offset + 8), window.written, "seed {seed}: the last WRITE");
    }
    let failovers = storm.pair.vqps[0].domain().activity().failovers;
    // An invalidated key is refused on whichever rail is active now.
    let (end, window) = (1 - storm.windows[7].owner, &storm.windows[7]);
    let stale = RemoteAddr {
        addr: storm.mrs[window.owner].primary().addr + window.offset,
        rkey: window.key().with_consumer_bits(window.tag.wrapping_sub(1)),
    };
    storm.pair.send(end, u64::MAX, SendOp::Write(stale), Data::inline(b"too late"));
    for _ in 0..100_000 {
        storm.pair.poll(&[0, 1]);
        if storm.pair.outcome(end, u64::MAX, false).is_some() {
            break;
        }
    }
    assert_eq!(
        storm.pair.outcome(end, u64::MAX, false),
        Some(Outcome::Failed(WcStatus::RemoteAccess)),
        "seed {seed}"
    );
    assert_eq!(storm.pair.vqps[end].close_reason(), Some(CloseReason::RequestError));
    failovers
}

#[test]
fn windows_grant_and_invalidations_forbid_in_every_storm() {
    let failovers: u64 = seeds(SEEDS).map(run).sum();
    assert!(failovers > seeds(SEEDS).count() as u64, "{failovers} failovers");
}

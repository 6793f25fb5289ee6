//! One NIC whose peer sends packets with any PSN, key, length, order and source. A model of the
//! responder says which answers and effects each packet must have.

mod nic_under_test;
mod responder_model;

use mitra_verbs::{Data, Gid, QpAttr, QpState, Qpn, RecvWr, SendOp, SendWr, WcStatus};
use mitra_wire::{Aeth, Message, Packet, Psn, Syndrome, Transport};

use super::{Finding, SeedRun};
use mitra_sim::Prng;
use nic_under_test::{MARGIN, NicUnderTest, PEER};
use responder_model::{Operation, REGION_LEN, Request, ResponderModel, Target};

const STEPS: u64 = 200;
/// The largest payload of a request, in bytes.
const MAX_LEN: u64 = 64;
/// The length of a receive, in bytes. Longer SENDs are refused.
const RECEIVE_LEN: usize = 48;

/// Runs the steps of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let mut run = SeedRun { operations: STEPS, ..SeedRun::default() };
    let ended = run_steps(seed, kept_records, &mut run);
    run.findings.extend(ended.err());
    let from = run.trace.len().saturating_sub(kept_records);
    run.trace.drain(..from);
    run
}

fn run_steps(seed: u64, kept_records: usize, run: &mut SeedRun) -> Result<(), Finding> {
    let mut world = PacketWorld::new(Prng::stream(seed, "packets"))?;
    for step in 0..STEPS {
        let result = world.step();
        run.faults = world.faults;
        result.map_err(|f| Finding { detail: format!("step {step}: {}", f.detail), ..f })?;
        if kept_records > 0 {
            run.trace.push(format!("step {step}: {}", world.last));
        }
    }
    Ok(())
}

struct PacketWorld {
    rng: Prng,
    /// A stream for the completion queues, which changes no request.
    event_rng: Prng,
    /// A stream for the lengths of READs.
    length_rng: Prng,
    nic: NicUnderTest,
    model: ResponderModel,
    max_fetches: u8,
    /// The numbers of destroyed queue pairs.
    old_qpns: Vec<Qpn>,
    next_id: u64,
    /// The number of steps in which the peer or the program breaks a rule, or sends a copy.
    faults: u64,
    /// Describes the last step.
    last: String,
}

/// Turns an error of a verb that must succeed into a finding.
fn verb<T>(result: mitra_verbs::Result<T>) -> Result<T, Finding> {
    result.map_err(|error| Finding::violation("verb", error.to_string()))
}

fn require(condition: bool, checker: &'static str, detail: impl FnOnce() -> String) -> Result<(), Finding> {
    if condition { Ok(()) } else { Err(Finding::violation(checker, detail())) }
}

impl PacketWorld {
    fn new(mut rng: Prng) -> Result<PacketWorld, Finding> {
        let max_fetches = rng.between(1, 4) as u8;
        let mut nic = verb(NicUnderTest::new(&mut rng, max_fetches))?;
        for region in &mut nic.memory.0 {
            region.fill_with(|| rng.bits() as u8);
        }
        let model = ResponderModel::new(regions(&nic), Psn::new(0), max_fetches.into());
        let streams = rng.bits();
        let mut world = PacketWorld {
            event_rng: Prng::stream(streams, "packets events"),
            length_rng: Prng::stream(streams, "packets lengths"),
            rng,
            nic,
            model,
            max_fetches,
            old_qpns: Vec::new(),
            next_id: 0,
            faults: 0,
            last: String::new(),
        };
        world.connect()?;
        Ok(world)
    }

    fn connect(&mut self) -> Result<(), Finding> {
        // In some runs, the PSNs wrap around.
        let psn = Psn::new((self.rng.bits() as u32 | 0xff_fff0) - self.rng.below(64) as u32);
        verb(self.nic.connect(psn, Psn::new(self.rng.bits() as u32 & 0xff_ffff)))?;
        self.model = ResponderModel::new(regions(&self.nic), psn, self.max_fetches.into());
        Ok(())
    }

    fn step(&mut self) -> Result<(), Finding> {
        let kind = self.rng.below(24);
        self.faults += u64::from(kind >= 9);
        match kind {
            0..9 => {
                let request = self.valid_request();
                self.exchange(&[request])
            }
            9..11 => {
                let request = self.invalid_request();
                self.exchange(&[request])
            }
            11..15 => self.copy(),
            15..17 => self.out_of_order(),
            17 => self.foreign_request(),
            18..20 => self.burst(),
            20 => self.post_receive(),
            21 => self.fence(),
            22 => self.own_request(),
            _ => self.recreate(),
        }
    }

    fn valid_request(&mut self) -> Request {
        let rng = &mut self.rng;
        let len = rng.below(MAX_LEN + 1) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
        let offset = rng.index((REGION_LEN - MAX_LEN as usize) / 8) * 8;
        // Some requests access the last byte of the region.
        let (offset, word) = match rng.below(4) {
            0 => (REGION_LEN - len, REGION_LEN - 8),
            _ => (offset, offset),
        };
        let (offset, operation) = match rng.below(6) {
            0 => (offset, Operation::Write { bytes, imm: None }),
            1 => (offset, Operation::Write { bytes, imm: Some(rng.bits() as u32) }),
            2 => (0, Operation::Send { bytes }),
            3 => self.valid_read(offset, len),
            4 => (word, Operation::FetchAdd { add: rng.bits() }),
            _ => {
                let found = &self.nic.memory.0[0][word..];
                let compare = found.first_chunk().map_or(0, |found| u64::from_ne_bytes(*found));
                (word, Operation::CompareSwap { compare: compare + rng.below(2), swap: rng.bits() })
            }
        };
        Request { psn: self.model.expected, target: Target::Open, offset, operation, excess: 0 }
    }

    /// Returns a READ of this place, or a READ whose response may have several packets.
    fn valid_read(&mut self, offset: usize, len: usize) -> (usize, Operation) {
        let rng = &mut self.length_rng;
        if rng.below(4) > 0 {
            return (offset, Operation::Read { len });
        }
        let len = rng.index(REGION_LEN + 1);
        (rng.index(REGION_LEN - len + 1), Operation::Read { len })
    }

    /// Returns a request that the responder must refuse for another reason than its PSN.
    fn invalid_request(&mut self) -> Request {
        let request = self.valid_request();
        let write = Operation::Write { bytes: vec![7; 16], imm: None };
        let (operation, target, offset, excess) = match self.rng.below(5) {
            0 => (write, Target::Open, REGION_LEN - 15, 0),
            1 => (Operation::Read { len: 16 }, *self.rng.pick(&Target::REFUSED[1..]), 0, 0),
            2 => (Operation::FetchAdd { add: 1 }, Target::Open, 4, 0),
            3 => (write, Target::Open, 0, 8),
            _ => (write, *self.rng.pick(&Target::REFUSED), 0, 0),
        };
        Request { target, offset, operation, excess, ..request }
    }

    /// Delivers requests, and compares the answers and effects with the model.
    fn exchange(&mut self, requests: &[Request]) -> Result<(), Finding> {
        self.last = format!("{requests:?}");
        for request in requests {
            self.nic.deliver_request(PEER, self.nic.qpn, request);
        }
        let expected = self.model.handle_all(requests);
        let (answers, _, others) = self.nic.take_sent();
        require(answers == expected && others.is_empty(), "answer", || {
            format!("{requests:?} was answered by {answers:?} {others:?} instead of {expected:?}")
        })?;
        let (stated, executed) = (self.nic.last_msn.take(), self.model.messages);
        require(stated.is_none_or(|msn| msn == executed), "message-number", || {
            format!("{requests:?}: the answer says that {stated:?} messages are executed, not {executed}")
        })?;
        self.compare()?;
        if self.model.failed { self.recreate() } else { Ok(()) }
    }

    fn compare(&mut self) -> Result<(), Finding> {
        let found = regions(&self.nic);
        for (target, (found, expected)) in Target::ALL.iter().zip(found.iter().zip(&self.model.regions)) {
            let place = found.iter().zip(expected).position(|(a, b)| a != b);
            require(place.is_none(), "memory", || {
                format!("{}: byte {place:?} of {target:?} is wrong", self.last)
            })?;
        }
        let state = verb(self.nic.state())?;
        let expected = if self.model.failed { QpState::Err } else { QpState::Rts };
        require(state == expected, "state", || format!("{}: {state:?}, not {expected:?}", self.last))?;
        let completions = verb(self.nic.completions())?;
        let due = self.nic.expected_events(&completions);
        let events = self.nic.take_events();
        require(events == due, "event", || {
            format!("{}: events {events:?} of sends and receives, not {due:?}: {completions:?}", self.last)
        })?;
        self.arm()?;
        let received = completions[1].iter().filter(|wc| wc.status == WcStatus::Success);
        let received: Vec<(u64, bool)> = received.map(|wc| (wc.wr_id, wc.solicited)).collect();
        let expected = core::mem::take(&mut self.model.received);
        require(received == expected, "receive", || {
            format!("{}: receives {received:?} completed, not {expected:?}", self.last)
        })
    }

    fn arm(&mut self) -> Result<(), Finding> {
        let solicited_only = [(); 2].map(|()| self.event_rng.below(2) == 0);
        verb(self.nic.arm(solicited_only))
    }

    /// Sends a copy of an executed request. Some copies of READs ask only for the end of the
    /// response.
    fn copy(&mut self) -> Result<(), Finding> {
        let executed = self.model.executed.len();
        if executed == 0 {
            return Ok(());
        }
        let request = self.model.executed[self.rng.index(executed)].clone();
        let skipped = self.length_rng.index(request.psns() as usize);
        self.exchange(&[request.rest(skipped)])
    }

    /// Sends a request whose PSN is after the expected PSN, or half of all PSNs away.
    fn out_of_order(&mut self) -> Result<(), Finding> {
        let ahead = *self.rng.pick(&[1, 2, 9, (1 << 23) - 1, 1 << 23]);
        let bytes = vec![9; 8];
        let operation = Operation::Write { bytes, imm: None };
        let psn = self.model.expected.add(ahead);
        self.exchange(&[Request { psn, target: Target::Open, offset: 0, operation, excess: 0 }])
    }

    /// Sends a request from a wrong address, and to destroyed queue pairs. Neither may have an
    /// effect.
    fn foreign_request(&mut self) -> Result<(), Finding> {
        let request = self.valid_request();
        self.last = format!("from elsewhere: {request:?}");
        self.nic.deliver_request(Gid([3; 16]), self.nic.qpn, &request);
        for qpn in self.old_qpns.clone() {
            self.nic.deliver_request(PEER, qpn, &request);
        }
        self.require_silence()
    }

    fn require_silence(&mut self) -> Result<(), Finding> {
        let (answers, requests, others) = self.nic.take_sent();
        require(answers.is_empty() && requests.is_empty() && others.is_empty(), "answer", || {
            format!("{}: answered by {answers:?} {requests:?} {others:?} instead of nothing", self.last)
        })?;
        self.compare()
    }

    /// Sends READs or atomics at once, sometimes more than agreed.
    fn burst(&mut self) -> Result<(), Finding> {
        let n = self.rng.between(1, u64::from(self.max_fetches) + 1);
        let mut requests = Vec::new();
        while (requests.len() as u64) < n {
            let request = self.valid_request();
            if !matches!(request.operation, Operation::Write { .. } | Operation::Send { .. }) {
                requests.push(request);
            }
        }
        // The NIC reads memory for a READ only when it sends the response, after all atomics of a
        // burst.
        let is_read = |request: &Request| matches!(request.operation, Operation::Read { .. });
        if requests.iter().any(is_read) {
            requests.retain(is_read);
        }
        let mut psn = self.model.expected;
        for request in &mut requests {
            request.psn = psn;
            psn = psn.add(request.psns());
        }
        self.exchange(&requests)
    }

    fn post_receive(&mut self) -> Result<(), Finding> {
        self.next_id += 1;
        let offset = self.rng.index(REGION_LEN - RECEIVE_LEN);
        let sge = self.nic.regions[0].sge(offset as u64, RECEIVE_LEN as u32);
        let posted = self.nic.nic.post_recv(self.nic.qpn, &[RecvWr::new(self.next_id, sge)]);
        verb(posted.map_err(|error| error.error))?;
        self.model.receives.push_back((self.next_id, offset, RECEIVE_LEN));
        Ok(())
    }

    /// Moves the queue pair to ERR while an answer is due. The queue pair must send nothing more.
    fn fence(&mut self) -> Result<(), Finding> {
        let request = match self.rng.below(2) {
            0 => Request { operation: Operation::Read { len: 8 }, offset: 0, ..self.valid_request() },
            _ => self.invalid_request(),
        };
        self.last = format!("ERR after {request:?}");
        self.nic.deliver_request(PEER, self.nic.qpn, &request);
        verb(self.nic.nic.modify_qp(self.nic.now, self.nic.qpn, &QpAttr::to(QpState::Err)))?;
        self.model.failed = true;
        self.require_silence()?;
        self.recreate()
    }

    /// Destroys the queue pair and creates another queue pair, whose number must be new.
    fn recreate(&mut self) -> Result<(), Finding> {
        self.old_qpns.push(self.nic.qpn);
        verb(self.nic.recreate())?;
        verb(self.nic.completions())?;
        self.arm()?;
        let qpn = self.nic.qpn;
        require(!self.old_qpns.contains(&qpn), "number", || {
            format!("queue pair number {} is used again at once", qpn.value())
        })?;
        self.connect()
    }

    /// Posts a request. An acknowledgement comes first from a wrong address, and then from the
    /// peer's address.
    fn own_request(&mut self) -> Result<(), Finding> {
        self.next_id += 1;
        let remote = mitra_verbs::RemoteAddr { addr: 0, rkey: mitra_verbs::Key(5) };
        let data = Data::inline(&[1; 8]);
        let wr = SendWr::new(self.next_id, SendOp::Write(remote), data);
        let posted = self.nic.nic.post_send(self.nic.now, self.nic.qpn, &[wr]);
        verb(posted.map_err(|error| error.error))?;
        self.last = format!("own request {}", self.next_id);
        let (answers, requests, others) = self.nic.take_sent();
        let &[psn] = &requests[..] else {
            return Err(Finding::violation("answer", format!("a WRITE left as {requests:?} {others:?}")));
        };
        require(answers.is_empty() && others.is_empty(), "answer", || format!("{answers:?} {others:?}"))?;
        let message = Message::Ack(Aeth { syndrome: Syndrome::ACK, msn: 1 });
        let ack = Packet::new(Transport::Rc, self.nic.qpn, psn, message, &[]);
        for (source, expected) in [(Gid([3; 16]), 0), (PEER, 1)] {
            self.nic.deliver(source, &ack);
            let [sent, _] = verb(self.nic.completions())?;
            let ended = sent.iter().filter(|wc| wc.status == WcStatus::Success).count();
            require(ended == expected && sent.len() == expected, "completion", || {
                format!("an acknowledgement from {source:?} completed {sent:?}")
            })?;
        }
        self.arm()?;
        self.require_silence()
    }
}

/// Returns the regions, each with the margin behind it.
fn regions(nic: &NicUnderTest) -> [Vec<u8>; 4] {
    debug_assert!(nic.memory.0.iter().all(|region| region.len() == REGION_LEN + MARGIN));
    [0, 1, 2, 3].map(|i| nic.memory.0[i].clone())
}

//! A reference model of a responder by the rules of IBTA volume 1, 9.7.

use std::collections::VecDeque;

use mitra_wire::{NakCode, Psn};

/// The size of each region, in bytes.
pub(super) const REGION_LEN: usize = 1024;
/// The path MTU, in bytes.
pub(super) const MTU: usize = 256;
/// A PSN whose distance from the expected PSN is at least this counts as earlier.
const HALF_CIRCLE: u32 = 1 << 23;
/// The number of executed requests of which copies may be sent.
const HISTORY: usize = 12;

/// The region that a request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// A region with all rights.
    Open,
    /// A region that only READs may access.
    ReadOnly,
    /// A region of another protection domain.
    OtherDomain,
    /// A deregistered region.
    Revoked,
    /// No region.
    Unknown,
}

impl Target {
    /// The first four are regions, in the order of the NIC's memory.
    pub(super) const ALL: [Target; 5] =
        [Target::Open, Target::ReadOnly, Target::OtherDomain, Target::Revoked, Target::Unknown];

    pub(super) const REFUSED: [Target; 4] =
        [Target::ReadOnly, Target::OtherDomain, Target::Revoked, Target::Unknown];
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Write { bytes: Vec<u8>, imm: Option<u32> },
    Send { bytes: Vec<u8> },
    Read { len: usize },
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// A request of one packet. The response to a READ may have several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) psn: Psn,
    pub(super) target: Target,
    /// The offset from the start of the region, perhaps beyond its end.
    pub(super) offset: usize,
    pub(super) operation: Operation,
    /// The length in the header minus the length of the payload.
    pub(super) excess: u32,
}

impl Request {
    /// Every second request asks for a solicited event.
    pub(super) fn is_solicited(&self) -> bool {
        self.psn.value() % 2 == 1
    }

    pub(super) fn psns(&self) -> u32 {
        match self.operation {
            Operation::Read { len } => len.div_ceil(MTU).max(1) as u32,
            _ => 1,
        }
    }

    /// Returns the READ request for the part of the response behind the first `packets` packets.
    pub(super) fn rest(mut self, packets: usize) -> Request {
        if let Operation::Read { len } = &mut self.operation {
            *len -= packets * MTU;
            self.offset += packets * MTU;
            self.psn = self.psn.add(packets as u32);
        }
        self
    }

    fn is_fetch(&self) -> bool {
        !matches!(self.operation, Operation::Write { .. } | Operation::Send { .. })
    }

    fn len(&self) -> usize {
        match &self.operation {
            Operation::Write { bytes, .. } | Operation::Send { bytes } => bytes.len(),
            Operation::Read { len } => *len,
            _ => 8,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    Only,
    First,
    Middle,
    Last,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Ack(Psn),
    Nak(Psn, NakCode),
    RnrNak(Psn),
    Data(Psn, Position, Vec<u8>),
    OldValue(Psn, u64),
}

/// The responder of one connection, and its memory.
pub(super) struct ResponderModel {
    pub(super) regions: [Vec<u8>; 4],
    pub(super) expected: Psn,
    max_fetches: usize,
    /// The posted receives: identifier, offset in the open region, and length in bytes.
    pub(super) receives: VecDeque<(u64, usize, usize)>,
    /// The receives that have completed since the last comparison, and whether each is solicited.
    pub(super) received: Vec<(u64, bool)>,
    pub(super) executed: VecDeque<Request>,
    saved: VecDeque<(Psn, u64)>,
    /// The number of PSNs of the READs and atomics since the last SEND or WRITE.
    trailing_fetches: u32,
    /// The number of executed messages, modulo 2^24.
    pub(super) messages: u32,
    /// Whether a NAK was sent since the last executed request. The responder sends one NAK for a
    /// gap.
    gap_reported: bool,
    pub(super) failed: bool,
}

impl ResponderModel {
    pub(super) fn new(regions: [Vec<u8>; 4], expected: Psn, max_fetches: usize) -> ResponderModel {
        ResponderModel {
            regions,
            expected,
            max_fetches,
            receives: VecDeque::new(),
            received: Vec::new(),
            executed: VecDeque::new(),
            saved: VecDeque::new(),
            trailing_fetches: 0,
            messages: 0,
            gap_reported: false,
            failed: false,
        }
    }

    /// Returns the answers to requests that arrive before the responder sends an answer. If there
    /// are several requests, all must be new READs and atomics.
    pub(super) fn handle_all(&mut self, requests: &[Request]) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (outstanding, request) in requests.iter().enumerate() {
            if !self.failed {
                answers.extend(self.handle(request, outstanding));
            }
        }
        answers
    }

    fn handle(&mut self, request: &Request, outstanding: usize) -> Vec<Answer> {
        let ahead = request.psn.distance(self.expected);
        if ahead == 0 {
            return self.execute(request, outstanding);
        }
        if ahead < HALF_CIRCLE {
            let is_reported = core::mem::replace(&mut self.gap_reported, true);
            let nak = (!is_reported).then_some(Answer::Nak(self.expected, NakCode::PsnSequence));
            return nak.into_iter().collect();
        }
        match &request.operation {
            Operation::Read { len } => self.data(request.psn, request.offset, *len),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                let saved = self.saved.iter().find(|(psn, _)| *psn == request.psn);
                saved.map(|&(psn, value)| Answer::OldValue(psn, value)).into_iter().collect()
            }
            _ => vec![Answer::Ack(self.expected.sub(1).sub(self.trailing_fetches))],
        }
    }

    fn data(&self, psn: Psn, offset: usize, len: usize) -> Vec<Answer> {
        let bytes = self.bytes(offset, len);
        let packets = len.div_ceil(MTU).max(1);
        let packet = |i: usize| {
            let position = match i + 1 {
                1 if packets == 1 => Position::Only,
                1 => Position::First,
                n if n == packets => Position::Last,
                _ => Position::Middle,
            };
            Answer::Data(psn.add(i as u32), position, bytes[i * MTU..len.min((i + 1) * MTU)].to_vec())
        };
        (0..packets).map(packet).collect()
    }

    fn execute(&mut self, request: &Request, outstanding: usize) -> Vec<Answer> {
        match self.check(request, outstanding) {
            Err(answer @ Answer::RnrNak(_)) => {
                self.gap_reported = true;
                return vec![answer];
            }
            Err(answer) => {
                self.failed = true;
                return vec![answer];
            }
            Ok(()) => {}
        }
        let psn = self.expected;
        let answers = match &request.operation {
            Operation::Write { bytes, imm } => {
                if imm.is_some() {
                    self.received
                        .extend(self.receives.pop_front().map(|(id, ..)| (id, request.is_solicited())));
                }
                self.place(request.offset, bytes);
                vec![Answer::Ack(psn)]
            }
            Operation::Send { bytes } => {
                if let Some((id, offset, _)) = self.receives.pop_front() {
                    self.place(offset, bytes);
                    self.received.push((id, request.is_solicited()));
                }
                vec![Answer::Ack(psn)]
            }
            Operation::Read { len } => self.data(psn, request.offset, *len),
            Operation::CompareSwap { compare, swap } => {
                let old = self.word(request.offset);
                if old == *compare {
                    self.place(request.offset, &swap.to_ne_bytes());
                }
                vec![self.save(psn, old)]
            }
            Operation::FetchAdd { add } => {
                let old = self.word(request.offset);
                self.place(request.offset, &old.wrapping_add(*add).to_ne_bytes());
                vec![self.save(psn, old)]
            }
        };
        self.trailing_fetches = if request.is_fetch() { self.trailing_fetches + request.psns() } else { 0 };
        self.expected = psn.add(request.psns());
        self.messages = (self.messages + 1) & 0xff_ffff;
        self.gap_reported = false;
        if self.executed.len() == HISTORY {
            self.executed.pop_front();
        }
        self.executed.push_back(request.clone());
        answers
    }

    /// # Errors
    /// The NAK that refuses the request.
    fn check(&self, request: &Request, outstanding: usize) -> Result<(), Answer> {
        let refuse = |code| Err(Answer::Nak(self.expected, code));
        let is_atomic = request.is_fetch() && !matches!(request.operation, Operation::Read { .. });
        if is_atomic && !request.offset.is_multiple_of(8) {
            return refuse(NakCode::InvalidRequest);
        }
        let is_read = matches!(request.operation, Operation::Read { .. });
        let is_write = matches!(request.operation, Operation::Write { .. });
        if (is_read || is_write || is_atomic) && request.len() + request.excess as usize > 0 {
            let is_permitted = match request.target {
                Target::Open => true,
                Target::ReadOnly => is_read,
                _ => false,
            };
            let end = request.offset + request.len() + request.excess as usize;
            if !is_permitted || end > REGION_LEN {
                return refuse(NakCode::RemoteAccess);
            }
        }
        if request.is_fetch() && outstanding >= self.max_fetches || request.excess > 0 {
            return refuse(NakCode::InvalidRequest);
        }
        let takes_receive =
            matches!(request.operation, Operation::Send { .. } | Operation::Write { imm: Some(_), .. });
        match self.receives.front() {
            None if takes_receive => Err(Answer::RnrNak(self.expected)),
            Some(&(_, _, room)) if !is_write && takes_receive && request.len() > room => {
                refuse(NakCode::InvalidRequest)
            }
            _ => Ok(()),
        }
    }

    fn save(&mut self, psn: Psn, old: u64) -> Answer {
        if self.saved.len() == self.max_fetches {
            self.saved.pop_front();
        }
        self.saved.push_back((psn, old));
        Answer::OldValue(psn, old)
    }

    fn place(&mut self, offset: usize, bytes: &[u8]) {
        self.regions[0][offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        &self.regions[0][offset..offset + len]
    }

    fn word(&self, offset: usize) -> u64 {
        self.bytes(offset, 8).first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
    }
}

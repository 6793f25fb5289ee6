//! A process's way to one memory: operations become one-sided requests, and their completions answers.
//!
//! A connection that breaks, be it by a NAK, is made anew, and the memory fences the old one first. What had been asked for there is then
//! refused, although it may have been done; but it will not be done any more. What only reads, settles or takes a right is asked
//! again instead.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use mitra_agreement::{Op, ProcessId, Region, Response};
use mitra_failover::{Completion, Domain, FailoverReport, NamedError, Outcome, RemoteRegion, VirtualMr};
use mitra_verbs::{Access, Buffer, Data, Error, SendOp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::greeting::{Hello, Token, VERSION, Welcome, knock};
use crate::layout::Layout;
use crate::link::{Event, Link};
use crate::memory::{Answer, LEARNT, LOOKED_THROUGH, MESSAGE, Request};
use crate::register::{self, Seen};
use crate::secret::secret;

/// Bytes of a READ, at most, unless a register is longer.
const READ: usize = 64 << 10;
/// READs, and WRITEs that are too long to go inline, under way at a time.
const READS: usize = 4;
const WRITES: usize = 16;
/// How long to wait before a door is knocked at again.
pub(crate) const AGAIN: Duration = Duration::from_millis(50);
/// So many registers before one is written whose sequence number is not known, it is asked for.
const AHEAD: u16 = 32;
/// Looks at a register that is torn each time, after which its writer is taken to lie. It then holds nothing.
const LOOKS: u32 = 256;

/// Who a process is, for those that it connects to.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) me: ProcessId,
    pub(crate) domain: Arc<Domain>,
    pub(crate) failover: mitra_failover::Config,
    pub(crate) token: Token,
    pub(crate) life: u64,
}

impl Identity {
    /// One end of a connection.
    pub(crate) fn link(&self, longest: usize) -> Result<Link, Error> {
        let secret = secret().map_err(|_| Error::Invalid("/dev/urandom cannot be read"))?;
        Link::new(&self.domain, self.failover, longest, secret)
    }

    /// Asks somebody to be its other end.
    pub(crate) fn call(&self, at: SocketAddr, link: Link, wait: Duration) -> Result<Call, Error> {
        let hello =
            Hello { version: VERSION, from: self.me, token: self.token, life: self.life, info: link.info()? };
        Ok(Call { link, answer: knock(at, hello, wait) })
    }
}

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) link: Link,
    pub(crate) answer: Receiver<io::Result<Welcome>>,
}

#[derive(Debug)]
enum State {
    Calling(Call),
    Connected(Link),
    /// It has lost what it held, or its regions are others: it counts as crashed.
    Dead,
}

/// What is known of a region.
#[derive(Debug, Default)]
struct Known {
    read: Option<RemoteRegion>,
    write: Option<RemoteRegion>,
    /// The sequence number of each register's last write; what another may have written since is not known.
    seqs: Vec<Option<u64>>,
}

/// Registers whose sequence numbers are asked for.
#[derive(Debug)]
struct Learning {
    region: u8,
    registers: Range<u16>,
}

/// What is under way for an operation.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing yet.
    Queued,
    /// A request that takes no memory here, or this much of it.
    Posted(Slot),
    /// The memory's processor is asked.
    Asked,
    /// A write of which nobody knows whether it was done.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    None,
    Read(usize),
    Write(usize),
}

#[derive(Debug)]
struct Pending<C> {
    number: u64,
    op: Op<C>,
    stage: Stage,
    /// Of a read: what was read so far, and what the register after that held when it was seen beside a torn place.
    cells: Vec<C>,
    half: Option<u64>,
    looks: u32,
}

impl<C> Pending<C> {
    fn new(number: u64, op: Op<C>) -> Pending<C> {
        Pending { number, op, stage: Stage::Queued, cells: Vec::new(), half: None, looks: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct Port<C> {
    address: SocketAddr,
    identity: Identity,
    layout: Layout,
    state: State,
    life: Option<u64>,
    known: Vec<Known>,
    pending: VecDeque<Pending<C>>,
    /// What the memory's processor was asked about, in order.
    learning: VecDeque<Learning>,
    next: u64,
    staging: Arc<Buffer>,
    mr: VirtualMr,
    read_len: usize,
    free_reads: Vec<usize>,
    free_writes: Vec<usize>,
    sealed: Vec<u8>,
    bytes: Vec<u8>,
    connections: u64,
}

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> Port<C> {
    pub(crate) fn new(
        identity: Identity,
        address: SocketAddr,
        regions: &[Region],
        room: usize,
    ) -> Result<Port<C>, Error> {
        let layout = Layout::new(regions, room);
        let place = register::place_len(room);
        let read_len = READ.max(2 * place);
        let staging = Arc::new(Buffer::new(READS * read_len + WRITES * place));
        let mr = identity.domain.register(&staging, Access::LOCAL_WRITE)?;
        let call = identity.call(address, identity.link(MESSAGE)?, Duration::ZERO)?;
        let known = (0..regions.len()).map(|_| Known::default()).collect();
        Ok(Port {
            address,
            identity,
            layout,
            state: State::Calling(call),
            life: None,
            known,
            pending: VecDeque::new(),
            learning: VecDeque::new(),
            next: 0,
            staging,
            mr,
            read_len,
            free_reads: (0..READS).collect(),
            free_writes: (0..WRITES).collect(),
            sealed: Vec::new(),
            bytes: Vec::new(),
            connections: 0,
        })
    }

    /// Asks for an operation.
    pub(crate) fn ask(&mut self, op: Op<C>) {
        self.next += 1;
        self.pending.push_back(Pending::new(self.next, op));
        self.post();
    }

    /// Whether it can be reached now.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Whether it has forgotten what it held, or is not what it should be.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, State::Dead)
    }

    /// How often it was connected.
    pub(crate) fn connections(&self) -> u64 {
        self.connections
    }

    /// The last move of its connection from one rail to another.
    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        let State::Connected(link) = &self.state else { return None };
        link.last_failover()
    }

    /// Asks for an event when something comes.
    pub(crate) fn arm(&self) {
        if let State::Connected(link) = &self.state {
            link.arm();
        }
    }

    /// Drives it. Appends answers, each with its place among those outstanding.
    pub(crate) fn poll(&mut self, answers: &mut Vec<(usize, Response<C>)>) {
        match &mut self.state {
            State::Dead => return,
            State::Calling(call) => match call.answer.try_recv() {
                Ok(Ok(welcome)) => self.connect(&welcome, answers),
                Err(TryRecvError::Empty) => return,
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => return self.call_again(),
            },
            State::Connected(link) => {
                let mut events = Vec::new();
                link.poll(|event| events.push(event));
                let broken = link.is_broken();
                for event in events {
                    match event {
                        Event::Done(done) => self.done(&done, answers),
                        Event::Message(message) => self.told(&message, answers),
                    }
                }
                if broken {
                    return self.call();
                }
            }
        }
        self.post();
        self.refuse(answers);
    }

    /// Begins a new connection.
    fn call(&mut self) {
        for pending in &mut self.pending {
            pending.stage = match (&pending.stage, &pending.op) {
                (Stage::Queued, _) => Stage::Queued,
                (_, Op::Write { .. }) => Stage::Unknown,
                _ => Stage::Queued,
            };
        }
        self.learning.clear();
        (self.free_reads, self.free_writes) = ((0..READS).collect(), (0..WRITES).collect());
        // The old link goes first, and with it its NIC's way to the staging memory.
        self.state = State::Dead;
        if let Ok(link) = self.identity.link(MESSAGE) {
            self.knock(link, Duration::ZERO);
        }
    }

    /// It was not answered: maybe it is not there yet, or not any more.
    fn call_again(&mut self) {
        if let State::Calling(Call { link, .. }) = std::mem::replace(&mut self.state, State::Dead) {
            self.knock(link, AGAIN);
        }
    }

    /// Out of queue pairs, or the last NIC is dead: as dead as the memory.
    fn knock(&mut self, link: Link, wait: Duration) {
        if let Ok(call) = self.identity.call(self.address, link, wait) {
            self.state = State::Calling(call);
        }
    }

    fn connect(&mut self, welcome: &Welcome, answers: &mut Vec<(usize, Response<C>)>) {
        let State::Calling(Call { mut link, .. }) = std::mem::replace(&mut self.state, State::Dead) else {
            return;
        };
        let same_life = *self.life.get_or_insert(welcome.life) == welcome.life;
        let same_shape =
            welcome.room as usize == self.layout.room() && welcome.regions.len() == self.layout.regions();
        if !same_life || !same_shape {
            return;
        }
        if link.connect(&welcome.info).is_err() {
            return self.call();
        }
        self.state = State::Connected(link);
        self.connections += 1;
        for (region, place) in welcome.regions.iter().enumerate() {
            let registers = self.layout.registers(region as u8).into();
            self.known[region] = Known { read: None, write: None, seqs: vec![None; registers] };
            self.known[region].read = self.import(region, place.read.as_deref());
            self.granted(region, place.write.as_deref());
        }
        // The memory has fenced the old connection: what was not done is not done any more.
        while let Some(at) = self.pending.iter().position(|p| p.stage == Stage::Unknown) {
            self.answer(at, Response::Nak, answers);
        }
    }

    /// A region of the memory's, if it says where, and it is as long as it should be.
    fn import(&mut self, region: usize, encoded: Option<&[u8]>) -> Option<RemoteRegion> {
        let found = RemoteRegion::decode(encoded?).ok()?;
        let State::Connected(link) = &mut self.state else { return None };
        let fits = found.len() == self.layout.len(region as u8) as u64;
        (fits && link.import(&found).is_ok()).then_some(found)
    }

    /// The memory lets this process write a region, by this key; or not. With a new key come registers that others may have
    /// written.
    fn granted(&mut self, region: usize, encoded: Option<&[u8]>) {
        let found = encoded.and_then(|bytes| RemoteRegion::decode(bytes).ok());
        if found.is_some() && found == self.known[region].write {
            return;
        }
        self.known[region].write = self.import(region, encoded);
        self.known[region].seqs.fill(None);
    }

    /// Asks what the last write of a register was, and of those behind it, which are probably written next.
    fn learn(&mut self, region: u8, first: u16) {
        let asked = |learning: &Learning| learning.region == region && learning.registers.contains(&first);
        if self.learning.iter().any(asked) {
            return;
        }
        let at_once = (LOOKED_THROUGH / self.layout.stride(region)).clamp(1, usize::from(LEARNT)) as u16;
        let end = first.saturating_add(at_once).min(self.layout.registers(region));
        let State::Connected(link) = &mut self.state else { return };
        let request = Request::Learn { region, first, count: end - first };
        if link.send(postcard::to_stdvec(&request).expect("plain data")) {
            self.learning.push_back(Learning { region, registers: first..end });
        }
    }

    /// Posts what can be posted.
    fn post(&mut self) {
        for at in 0..self.pending.len() {
            let State::Connected(link) = &mut self.state else { return };
            if self.pending[at].stage != Stage::Queued {
                continue;
            }
            if link.room() == 0 {
                return;
            }
            match &self.pending[at].op {
                Op::Write { .. } => self.post_write(at),
                Op::Read { .. } => self.post_read(at),
                Op::Settle { .. } => self.post_settle(at),
                Op::Change { region, rights } => {
                    let change = Request::Change { region: *region, read: rights.read, write: rights.write };
                    if link.send(postcard::to_stdvec(&change).expect("plain data")) {
                        self.pending[at].stage = Stage::Asked;
                    }
                }
            }
        }
    }

    fn post_write(&mut self, at: usize) {
        let Op::Write { region, register, cell } = &self.pending[at].op else { return };
        let known = self.known.get_mut(usize::from(*region));
        let Some(Known { write: Some(remote), seqs, .. }) = known else { return };
        let (region, register) = (*region, *register);
        let Some(last) = seqs.get_mut(usize::from(register)) else { return };
        let Some(last) = last else { return self.learn(region, register) };
        let seq = last.wrapping_add(1);
        self.bytes.clear();
        self.sealed.clear();
        // Longer than the room: it stays queued, and `refuse` says so.
        let Ok(bytes) = postcard::to_extend(cell, std::mem::take(&mut self.bytes)) else { return };
        self.bytes = bytes;
        if self.bytes.len() > self.layout.room() {
            return;
        }
        register::seal(seq, &self.bytes, &mut self.sealed);
        let to = remote.at(self.layout.place(region, register, seq));
        let inline = self.sealed.len() <= self.identity.domain.limits().inline as usize;
        let (slot, data) = if inline {
            (Slot::None, Data::inline(&self.sealed))
        } else {
            let Some(slot) = self.free_writes.pop() else { return };
            let offset = READS * self.read_len + slot * register::place_len(self.layout.room());
            self.staging.write_at(offset, &self.sealed);
            (Slot::Write(slot), Data::sge(self.mr.sge(offset as u64, self.sealed.len() as u32)))
        };
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].number, SendOp::Write(to), data).is_ok() {
            *last = seq;
            self.pending[at].stage = Stage::Posted(slot);
        } else {
            return self.free(slot);
        }
        // Ahead of need.
        let soon = register.saturating_add(AHEAD);
        if self.known[usize::from(region)].seqs.get(usize::from(soon)) == Some(&None) {
            self.learn(region, soon);
        }
    }

    fn post_read(&mut self, at: usize) {
        let pending = &self.pending[at];
        let Op::Read { region, first, count } = pending.op else { return };
        let done = pending.cells.len() as u16;
        let Some(Known { read: Some(remote), .. }) = self.known.get(usize::from(region)) else { return };
        let (from, to) = (first.saturating_add(done), first.saturating_add(count));
        let piece = self.layout.pieces(region, from..to, READ).next();
        let Some(piece) = piece.filter(|p| p.end <= self.layout.registers(region)) else { return };
        let Some(slot) = self.free_reads.pop() else { return };
        let stride = self.layout.stride(region);
        let len = usize::from(piece.end - piece.start) * stride;
        let data = Data::sge(self.mr.sge((slot * self.read_len) as u64, len as u32));
        let op = SendOp::Read(remote.at((usize::from(piece.start) * stride) as u64));
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].number, op, data).is_ok() {
            self.pending[at].stage = Stage::Posted(Slot::Read(slot));
        } else {
            self.free_reads.push(slot);
        }
    }

    fn post_settle(&mut self, at: usize) {
        let Op::Settle { region, register, cell } = &self.pending[at].op else { return };
        let Some(Known { write: Some(remote), .. }) = self.known.get(usize::from(*region)) else { return };
        let Some(swap) = word(cell).filter(|_| *register < self.layout.registers(*region)) else { return };
        let Some(slot) = self.free_reads.pop() else { return };
        let op = SendOp::CompareSwap { remote: remote.at(u64::from(*register) * 8), compare: 0, swap };
        let data = Data::sge(self.mr.sge((slot * self.read_len) as u64, 8));
        let State::Connected(link) = &mut self.state else { return };
        if link.post(self.pending[at].number, op, data).is_ok() {
            self.pending[at].stage = Stage::Posted(Slot::Read(slot));
        } else {
            self.free_reads.push(slot);
        }
    }

    /// Refuses what can never be posted.
    fn refuse(&mut self, answers: &mut Vec<(usize, Response<C>)>) {
        while matches!(self.state, State::Connected(_))
            && let Some(at) =
                self.pending.iter().position(|p| p.stage == Stage::Queued && self.is_hopeless(&p.op))
        {
            self.answer(at, Response::Nak, answers);
        }
    }

    /// Without the right, of registers that do not exist, or of more than a register has room for.
    fn is_hopeless(&self, op: &Op<C>) -> bool {
        let may_write = |region: u8, register: u16| {
            self.known.get(usize::from(region)).is_some_and(|known| known.write.is_some())
                && register < self.layout.registers(region)
        };
        match op {
            Op::Read { region, first, count } => {
                self.known.get(usize::from(*region)).is_none_or(|known| known.read.is_none())
                    || first.saturating_add(*count) > self.layout.registers(*region)
            }
            Op::Write { region, register, cell } => {
                let len = postcard::experimental::serialized_size(cell);
                !may_write(*region, *register)
                    || self.layout.is_settled(*region)
                    || len.map_or(true, |len| len > self.layout.room())
            }
            Op::Settle { region, register, cell } => {
                !may_write(*region, *register) || !self.layout.is_settled(*region) || word(cell).is_none()
            }
            Op::Change { .. } => false,
        }
    }

    /// A request has completed.
    fn done(&mut self, done: &Completion, answers: &mut Vec<(usize, Response<C>)>) {
        let Ok(at) = self.pending.binary_search_by_key(&done.wr_id, |p| p.number) else { return };
        let Stage::Posted(slot) = self.pending[at].stage else { return };
        self.free(slot);
        let refused = matches!(done.outcome, Outcome::Failed(_));
        match (&self.pending[at].op, done.is_success()) {
            (Op::Write { .. }, true) => self.answer(at, Response::Ack, answers),
            (Op::Write { .. }, false) if refused => self.answer(at, Response::Nak, answers),
            // It was executed, with something before it refused: the link is made anew.
            (Op::Write { .. }, false) if done.outcome == Outcome::Named(NamedError::ExecutedBehindError) => {
                self.answer(at, Response::Ack, answers);
            }
            (Op::Write { .. }, false) => self.pending[at].stage = Stage::Unknown,
            (_, false) => self.pending[at].stage = Stage::Queued,
            (Op::Settle { .. }, true) => self.settled(at, slot, answers),
            (_, true) => self.have_read(at, slot, answers),
        }
    }

    fn free(&mut self, slot: Slot) {
        match slot {
            Slot::None => {}
            Slot::Read(slot) => self.free_reads.push(slot),
            Slot::Write(slot) => self.free_writes.push(slot),
        }
    }

    fn settled(&mut self, at: usize, slot: Slot, answers: &mut Vec<(usize, Response<C>)>) {
        let Slot::Read(slot) = slot else { return };
        let before = self.staging.load(slot * self.read_len);
        let Op::Settle { cell, .. } = &self.pending[at].op else { return };
        let held = if before == 0 { cell.clone() } else { cell_of(before) };
        self.answer(at, Response::Cells(vec![held]), answers);
    }

    /// A piece has been read.
    fn have_read(&mut self, at: usize, slot: Slot, answers: &mut Vec<(usize, Response<C>)>) {
        let Slot::Read(slot) = slot else { return };
        let Op::Read { region, count, .. } = self.pending[at].op else { return };
        let stride = self.layout.stride(region);
        let mut register = vec![0; stride];
        let pending = &mut self.pending[at];
        pending.stage = Stage::Queued;
        for i in 0..(self.read_len / stride).min(usize::from(count) - pending.cells.len()) {
            self.staging.read_at(slot * self.read_len + i * stride, &mut register);
            let seen = if self.layout.is_settled(region) {
                let word = u64::from_le_bytes(register[..8].try_into().expect("eight bytes"));
                pending.cells.push(cell_of(word));
                continue;
            } else {
                register::look(&register)
            };
            let contents = match seen {
                Seen::Held(_, contents) => contents,
                Seen::Half(seq, contents) if pending.half == Some(seq) => contents,
                _ if pending.looks >= LOOKS => &[][..],
                Seen::Half(seq, _) => {
                    (pending.half, pending.looks) = (Some(seq), pending.looks + 1);
                    break;
                }
                Seen::Torn => {
                    (pending.half, pending.looks) = (None, pending.looks + 1);
                    break;
                }
            };
            (pending.half, pending.looks) = (None, 0);
            // What its writer should not have written is nothing.
            pending.cells.push(postcard::from_bytes(contents).unwrap_or_default());
        }
        if pending.cells.len() == usize::from(count) {
            let cells = std::mem::take(&mut pending.cells);
            self.answer(at, Response::Cells(cells), answers);
        }
    }

    /// The memory's processor has answered.
    fn told(&mut self, message: &[u8], answers: &mut Vec<(usize, Response<C>)>) {
        match postcard::from_bytes(message) {
            Ok(Answer::Changed { write }) => self.changed(write.as_deref(), answers),
            Ok(Answer::Learnt { seqs }) => {
                let Some(Learning { region, registers }) = self.learning.pop_front() else { return };
                let Some(known) = self.known.get_mut(usize::from(region)) else { return };
                for (register, seq) in registers.zip(seqs) {
                    // What was written since is known better here.
                    if let Some(unknown @ None) = known.seqs.get_mut(usize::from(register)) {
                        *unknown = Some(seq);
                    }
                }
            }
            Err(_) => {}
        }
    }

    /// The oldest change was made, if it is legal.
    fn changed(&mut self, write: Option<&[u8]>, answers: &mut Vec<(usize, Response<C>)>) {
        let Some(at) = self.pending.iter().position(|p| p.stage == Stage::Asked) else { return };
        let Op::Change { region, .. } = self.pending[at].op else { return };
        if usize::from(region) < self.known.len() {
            self.granted(region.into(), write);
        }
        self.answer(at, Response::Ack, answers);
    }

    fn answer(&mut self, at: usize, response: Response<C>, answers: &mut Vec<(usize, Response<C>)>) {
        if self.pending.remove(at).is_some() {
            answers.push((at, response));
        }
    }
}

impl<C> Drop for Port<C> {
    fn drop(&mut self) {
        self.state = State::Dead;
        // A NIC that does not confirm is dead, or hung: nothing is left to be done about it.
        let _ = self.identity.domain.deregister(&self.mr);
    }
}

/// A cell as a word that is not 0: its length, and at most seven bytes. None if it is longer.
fn word<C: Serialize>(cell: &C) -> Option<u64> {
    let mut bytes = [0; 8];
    let len = postcard::to_slice(cell, &mut bytes[1..]).ok()?.len();
    bytes[0] = len as u8 + 1;
    Some(u64::from_le_bytes(bytes))
}

/// What a word holds; 0, and what cannot be, is the default.
fn cell_of<C: DeserializeOwned + Default>(word: u64) -> C {
    let bytes = word.to_le_bytes();
    let contents = bytes[0].checked_sub(1).and_then(|len| bytes[1..].get(..usize::from(len)));
    contents.and_then(|contents| postcard::from_bytes(contents).ok()).unwrap_or_default()
}

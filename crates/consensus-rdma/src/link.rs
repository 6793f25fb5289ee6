//! A virtual queue pair, with room for messages both ways.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_failover::{Completion, ConnectInfo, Domain, FailoverReport, RemoteRegion, VirtualMr, VirtualQp};
use mitra_verbs::{Buffer, Data, Error, RecvWr, Result, SendOp, SendWr, WcOpcode};

use crate::poller::ReadyCqs;

/// Requests with a number below this are messages.
const MESSAGES: u64 = 16;
/// Messages that wait for room in the send queue, at most: a peer that takes none for so long has crashed, or will be heard of by its end.
const WAITING: usize = 4096;

/// What comes out of a link.
pub(crate) enum Event {
    /// A request of [`Link::post`] has completed.
    Done(Completion),
    /// The peer has sent this.
    Message(Vec<u8>),
}

impl Event {
    pub(crate) fn message(self) -> Option<Vec<u8>> {
        match self {
            Event::Message(message) => Some(message),
            Event::Done(_) => None,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    vqp: VirtualQp,
    domain: Arc<Domain>,
    longest: usize,
    /// Room for messages that go out, then for those that come in.
    memory: Arc<Buffer>,
    mr: VirtualMr,
    free: Vec<u64>,
    waiting: VecDeque<Vec<u8>>,
    completions: Vec<Completion>,
}

impl Link {
    /// One end, unconnected, for messages of at most `longest` bytes.
    pub(crate) fn new(domain: &Arc<Domain>, config: mitra_failover::Config, longest: usize) -> Result<Link> {
        let random = || {
            getrandom::u64().map_err(|e| Error::System {
                operation: "reading the system's random source",
                message: e.to_string(),
            })
        };
        let secret = [random()?, random()?];
        let vqp = VirtualQp::new(Arc::clone(domain), config, secret)?;
        let memory = Arc::new(Buffer::new(2 * MESSAGES as usize * longest));
        let mr = domain.register(&memory, mitra_verbs::Access::LOCAL_WRITE)?;
        let free = (0..MESSAGES).collect();
        let (waiting, completions) = Default::default();
        Ok(Link { vqp, domain: Arc::clone(domain), longest, memory, mr, free, waiting, completions })
    }

    /// What the peer must know.
    pub(crate) fn info(&self) -> Result<Vec<u8>> {
        Ok(self.vqp.local_info()?.encode())
    }

    /// Connects it to an end that says this of itself.
    pub(crate) fn connect(&mut self, info: &[u8]) -> Result<()> {
        self.vqp.connect(&ConnectInfo::decode(info)?)?;
        (0..MESSAGES).try_for_each(|slot| self.receive(slot))
    }

    fn receive(&mut self, slot: u64) -> Result<()> {
        let sge = self.mr.sge((MESSAGES + slot) * self.longest as u64, self.longest as u32);
        self.vqp.post_recv(RecvWr::new(slot, sge))
    }

    /// Makes memory of the peer's known.
    pub(crate) fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        self.vqp.import(region)
    }

    /// Posts a request. Its completion comes back with this number.
    pub(crate) fn post(&mut self, number: u64, op: SendOp, data: Data) -> Result<()> {
        // What is written is read by its checksum, and nobody else writes it: writing it again does no harm.
        let writes = mitra_failover::WritePolicy::Repeatable;
        self.vqp.post_send_with(SendWr::new(number + MESSAGES, op, data), writes).map(|_| ())
    }

    /// Requests that can be posted now.
    pub(crate) fn room(&self) -> usize {
        (self.vqp.config().send_wrs as usize).saturating_sub(self.vqp.outstanding() + MESSAGES as usize)
    }

    /// Sends a message, in order. One that is too long, or one too many, is not sent: false.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> bool {
        if message.len() > self.longest || self.waiting.len() >= WAITING {
            return false;
        }
        self.waiting.push_back(message);
        self.send_waiting();
        true
    }

    fn send_waiting(&mut self) {
        while !self.waiting.is_empty()
            && let Some(slot) = self.free.pop()
        {
            let Some(message) = self.waiting.front() else { return };
            let data = if message.len() <= self.domain.limits().inline as usize {
                Data::inline(message)
            } else {
                let at = slot * self.longest as u64;
                self.memory.write_at(at as usize, message);
                Data::sge(self.mr.sge(at, message.len() as u32))
            };
            if self.vqp.post_send(SendWr::new(slot, SendOp::Send, data)).is_err() {
                self.free.push(slot);
                return; // its end is told by `ended`
            }
            self.waiting.pop_front();
        }
    }

    /// Drives it, and hands over what came.
    pub(crate) fn poll(&mut self, event: impl FnMut(Event)) {
        self.vqp.poll(&mut self.completions);
        self.hand_over(event);
    }

    /// Hands over what came, without driving it: what it has just told of is not to wait for that.
    pub(crate) fn take(&mut self, event: impl FnMut(Event)) {
        self.vqp.poll_completions(&mut self.completions);
        self.hand_over(event);
    }

    fn hand_over(&mut self, mut event: impl FnMut(Event)) {
        let mut completions = std::mem::take(&mut self.completions);
        for done in completions.drain(..) {
            match done.opcode {
                WcOpcode::Recv | WcOpcode::RecvWithImm if done.is_success() => {
                    let len = (done.byte_len as usize).min(self.longest);
                    let mut message = vec![0; len];
                    self.memory.read_at((MESSAGES + done.wr_id) as usize * self.longest, &mut message);
                    // Refused only once the link has ended.
                    let _ = self.receive(done.wr_id);
                    event(Event::Message(message));
                }
                WcOpcode::Recv | WcOpcode::RecvWithImm => {}
                WcOpcode::Send => self.free.push(done.wr_id),
                _ => event(Event::Done(Completion { wr_id: done.wr_id - MESSAGES, ..done })),
            }
        }
        self.completions = completions;
        self.send_waiting();
    }

    /// Whether it is of no use any more: a request was refused or ended in an error, or nothing reaches the peer.
    pub(crate) fn is_broken(&self) -> bool {
        self.vqp.close_reason().is_some() || self.vqp.is_halted()
    }

    /// Its last move from one rail to another.
    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        self.vqp.last_failover()
    }

    /// Asks for an event on the domain's channels when something comes.
    pub(crate) fn arm(&self) {
        // What cannot be armed has failed, which polls find out.
        let _ = self.vqp.arm();
    }

    /// Whether that is about this link.
    pub(crate) fn is_among(&self, heard: &ReadyCqs) -> bool {
        heard.is_about(&self.vqp)
    }

    /// On return the peer reaches nothing through it any more.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.vqp.close()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A NIC that does not confirm is dead, or hung: nothing is left to be done about it.
        let _ = self.vqp.close();
        let _ = self.domain.deregister(&self.mr);
    }
}

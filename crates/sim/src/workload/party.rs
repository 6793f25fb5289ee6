use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Mr, RemoteAddr};

use super::requester::Requester;
use super::responder::Responder;
use super::{Asked, Endpoint, Plan, RECEIVE, Seen};
use crate::Prng;

/// One end of a connection: posts its own plan, serves its peer's.
pub struct Party {
    requester: Requester,
    responder: Responder,
    memory: Arc<Buffer>,
    rng: Prng,
    done: Vec<super::Done>,
}

impl Party {
    /// What its memory must be registered for.
    pub const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

    /// An end that posts `mine` and serves `theirs`, with memory of its own.
    pub fn new(mine: &Plan, theirs: &Plan) -> Party {
        let served = Responder::memory_len(theirs);
        let memory = Arc::new(Buffer::new(served + Requester::memory_len(mine)));
        Party {
            requester: Requester::new(mine, Arc::clone(&memory), served),
            responder: Responder::new(theirs, Arc::clone(&memory)),
            memory,
            rng: Prng::stream(mine.seed, "party"),
            done: Vec::new(),
        }
    }

    /// The memory to register, whole, with [`Party::ACCESS`].
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// How the own memory is registered, and the beginning of the peer's.
    pub fn connect(&mut self, local: Mr, remote: RemoteAddr) {
        self.requester.connect(local, remote);
        self.responder.connect(local);
    }

    /// One turn: takes what has ended, serves, posts. Whether anything happened.
    pub fn step(&mut self, endpoint: &mut impl Endpoint) -> bool {
        let mut busy = self.responder.post_receives(endpoint) > 0;
        let mut done = core::mem::take(&mut self.done);
        endpoint.poll(&mut done);
        busy |= !done.is_empty();
        for done in done.drain(..) {
            if done.wr_id & RECEIVE != 0 {
                self.responder.done(done);
            } else {
                self.requester.done(done);
            }
        }
        self.done = done;
        if endpoint.is_idle() {
            self.requester.settle();
        }
        // Consuming is slower than placing now and then, so that a second placement may come before or after.
        if self.rng.below(4) != 0 {
            busy |= self.responder.scan() > 0;
        }
        let most = self.rng.between(0, 6) as usize;
        busy |= self.requester.post(endpoint, most) > 0;
        busy
    }

    /// Whether everything that it posted or will post has ended.
    pub fn is_done(&self) -> bool {
        self.requester.is_done()
    }

    /// How many operations were posted so far.
    pub fn posted(&self) -> usize {
        self.requester.posted()
    }

    /// How many of them have ended.
    pub fn ended(&self) -> usize {
        self.requester.ended()
    }

    /// A last look at the memory. To be called once, when both ends are done and nothing is in flight.
    pub fn sweep(&mut self) {
        self.responder.sweep();
        self.requester.sweep();
    }

    /// What this end asked for.
    pub fn asked(&self) -> &Asked {
        &self.requester.asked
    }

    /// What this end saw of its peer's operations.
    pub fn seen(&self) -> &Seen {
        &self.responder.seen
    }
}

use core::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mitra_verbs::{Access, Buffer, Mr, RemoteAddr};

use super::requester::Requester;
use super::responder::Responder;
use super::{Endpoint, MemoryLayout, Plan, RECV_WR_FLAG, RequesterLog, ResponderLog};
use crate::{App, AppContext, Prng};

/// One end of a connection. The end posts the operations of its own plan and serves the operations
/// of its peer's plan.
pub struct WorkloadPeer {
    requester: Requester,
    responder: Responder,
    memory: Arc<Buffer>,
    rng: Prng,
    completions: Vec<super::EndpointCompletion>,
}

impl WorkloadPeer {
    /// The access flags with which [`WorkloadPeer::memory`] must be registered.
    pub const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

    /// Creates an end that posts `own_plan` and serves `peer_plan`. Allocates its memory.
    pub fn new(own_plan: &Plan, peer_plan: &Plan) -> WorkloadPeer {
        let peer_ops = peer_plan.ops();
        let responder_len = MemoryLayout::of(peer_plan, &peer_ops).end;
        let memory = Arc::new(Buffer::new(responder_len + Requester::memory_len(own_plan)));
        WorkloadPeer {
            requester: Requester::new(own_plan, Arc::clone(&memory), responder_len),
            responder: Responder::new(peer_plan, peer_ops, Arc::clone(&memory)),
            memory,
            rng: Prng::stream(own_plan.seed, "party"),
            completions: Vec::new(),
        }
    }

    /// Returns the memory of this end. The test must register all of it in one region, with
    /// [`WorkloadPeer::ACCESS`].
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// Sets the region of this end's memory, and the address of the start of the peer's memory.
    pub fn connect(&mut self, local: Mr, remote: RemoteAddr) {
        self.requester.regions = Some((local, remote));
        self.responder.local = Some(local);
    }

    /// Sets the counter of the changes that NICs make to this end's memory. With the counter, a
    /// turn scans the memory only after a change. The scans find the same as without the counter.
    pub fn watch(&mut self, changes: Arc<AtomicU64>) {
        self.responder.changes = Some(changes);
    }

    /// Runs one turn: posts receives, polls completions, serves the peer, and posts operations.
    /// Returns whether it did any of these.
    pub fn step(&mut self, endpoint: &mut impl Endpoint) -> bool {
        let mut active = self.responder.post_receives(endpoint) > 0;
        let mut completions = core::mem::take(&mut self.completions);
        endpoint.poll(&mut completions);
        active |= !completions.is_empty();
        for completion in completions.drain(..) {
            if completion.wr_id & RECV_WR_FLAG != 0 {
                self.responder.handle_completion(completion);
            } else {
                self.requester.handle_completion(completion);
            }
        }
        self.completions = completions;
        if endpoint.is_idle() {
            self.requester.finish_unsignalled();
        }
        // Some turns consume nothing. So if a NIC places the same data twice, the first consumption
        // comes in some runs after both placements, and in other runs between them.
        if self.rng.below(4) != 0 {
            active |= self.responder.scan() > 0;
        }
        let limit = self.rng.between(0, 6) as usize;
        active |= self.requester.post(endpoint, limit) > 0;
        active
    }

    /// Posts the receives that [`WorkloadPeer::step`] would post, before the peer can send.
    pub fn post_receives(&mut self, endpoint: &mut impl Endpoint) {
        self.responder.post_receives(endpoint);
    }

    /// Holds back the last `ops` operations of the plan, or all unposted operations if they are
    /// fewer. [`WorkloadPeer::is_done`] ignores operations that are held back. 0 releases them.
    pub fn hold_back(&mut self, ops: usize) {
        self.requester.held_back = ops.min(self.requester.ops.len() - self.requester.next);
    }

    /// Returns whether this end's memory shows the effect of an operation of the peer, or the
    /// effect was consumed. Also returns true for operations whose effect does not stay in memory
    /// until it is consumed.
    pub fn has_effect(&self, seq: usize) -> bool {
        self.responder.has_effect(seq)
    }

    /// Returns whether this end has no operation in flight and will post no more.
    pub fn is_done(&self) -> bool {
        self.requester.is_done()
    }

    /// Returns the number of operations that this end has posted.
    pub fn posted(&self) -> usize {
        self.requester.next
    }

    /// Returns kind, size and outcome of operations, by their positions in posting order.
    pub fn describe_operations(&self, positions: core::ops::Range<usize>) -> String {
        self.requester.describe(positions)
    }

    /// Returns the number of this end's operations that consumed a receive of the peer and were
    /// reported as executed.
    pub fn delivered_messages(&self) -> usize {
        self.requester.delivered_messages()
    }

    /// Returns the number of this end's operations that have ended.
    pub fn ended(&self) -> usize {
        self.requester.next - self.requester.in_flight.len()
    }

    /// Checks the memory a last time and completes both logs. Call it once, when both ends are done
    /// and nothing is in flight.
    pub fn sweep(&mut self) {
        self.responder.sweep();
        self.requester.sweep();
    }

    /// Returns the log of this end's requests.
    pub fn requester_log(&self) -> &RequesterLog {
        &self.requester.requester_log
    }

    /// Returns the log of the effects that this end observed.
    pub fn responder_log(&self) -> &ResponderLog {
        &self.responder.responder_log
    }
}

/// An application that runs a workload peer over its endpoint. The test shares both.
pub struct PeerApp<E> {
    /// The peer.
    pub peer: Rc<RefCell<WorkloadPeer>>,
    /// The endpoint of the peer.
    pub endpoint: Rc<RefCell<E>>,
}

impl<E: Endpoint> App for PeerApp<E> {
    fn step(&mut self, ctx: &mut AppContext<'_>) {
        if self.peer.borrow_mut().step(&mut *self.endpoint.borrow_mut()) {
            ctx.mark_active();
        }
    }
}

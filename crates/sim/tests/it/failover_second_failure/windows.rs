//! Memory windows of both ends, which the programs use, invalidate and bind again.
//!
//! The operations of a workload name the peer's region. [`Windows::replace_key`] makes them name
//! the window of the peer while the window is bound, and [`Windows::advance`] posts the binds and
//! invalidations. So the verdict on the workload also says whether an operation that a window
//! permits is executed once.

use std::cell::RefCell;
use std::rc::Rc;

use mitra_failover::{VirtualMw, VirtualQp};
use mitra_sim::workload::{EndpointCompletion, ReportedOutcome, WorkloadPeer};
use mitra_verbs::{Access, Data, Key, Mr, RemoteAddr, SendOp, SendWr, WindowBind, WindowType};

/// The bit that marks the `wr_id` of a bind or an invalidation.
pub const WINDOW_WR_FLAG: u64 = 1 << 62;
/// The number of accesses by a key after which the key is invalidated.
const USES: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The owner binds the window next.
    Unbound,
    /// The owner has posted the bind.
    Binding,
    /// The peer may use the window.
    Bound,
    /// The peer has posted the SEND that invalidates the window.
    InvalidatedByPeer,
    /// The peer no longer uses the window. The owner invalidates it next.
    Returned,
    /// The owner has posted the invalidation.
    Invalidating,
}

/// A window of one end, the owner. The other end uses it.
struct Window {
    mw: VirtualMw,
    mr: Mr,
    state: State,
    tag: u8,
    uses: usize,
    /// The number, from 1, of the user's last request by the current key (`last_use`), and of its
    /// last READ by that key (`last_read`). 0 before such a request.
    last_use: usize,
    last_read: usize,
    /// The SEND that invalidates the current key, if the user has posted one.
    invalidating_send: Option<u64>,
    invalidated: usize,
}

impl Window {
    fn key(&self) -> Key {
        self.mw.primary().rkey.with_consumer_bits(self.tag)
    }

    fn bind(&self, len: u64) -> SendOp {
        let (mw, rkey, mr, addr) = (self.mw.primary().id, self.key(), self.mr.id, self.mr.addr);
        let access = Access::REMOTE;
        SendOp::BindWindow(WindowBind { mw, rkey, mr, addr, len, access, zero_based: false })
    }

    /// The request that the owner posts next, and the state after it.
    fn next_request(&mut self) -> Option<(SendOp, State)> {
        match self.state {
            State::Unbound => {
                self.tag = self.tag.wrapping_add(1);
                (self.uses, self.last_use, self.last_read) = (0, 0, 0);
                Some((self.bind(self.mr.len), State::Binding))
            }
            State::Returned if self.mw.window_type() == WindowType::Type1 => {
                Some((self.bind(0), State::Invalidating))
            }
            State::Returned => Some((SendOp::LocalInvalidate(self.key()), State::Invalidating)),
            _ => None,
        }
    }
}

/// The windows, by owner.
pub struct Windows {
    windows: [Window; 2],
    /// The errors in the use of windows.
    pub errors: Vec<String>,
    next_id: u64,
}

fn with_remote(op: SendOp, remote: RemoteAddr) -> SendOp {
    match op {
        SendOp::Write(_) => SendOp::Write(remote),
        SendOp::WriteWithImm(_, imm) => SendOp::WriteWithImm(remote, imm),
        SendOp::Read(_) => SendOp::Read(remote),
        SendOp::CompareSwap { compare, swap, .. } => SendOp::CompareSwap { remote, compare, swap },
        SendOp::FetchAdd { add, .. } => SendOp::FetchAdd { remote, add },
        other => other,
    }
}

impl Windows {
    /// Allocates a window for each end. `first` is the type of the first end's window. The second
    /// end's window has the other type.
    pub fn new(vqps: [&VirtualQp; 2], peers: [&WorkloadPeer; 2], first: WindowType) -> Rc<RefCell<Windows>> {
        let other = if first == WindowType::Type1 { WindowType::Type2 } else { WindowType::Type1 };
        let types = [first, other];
        let windows = [0, 1].map(|h| {
            let domain = vqps[h].domain();
            let access = WorkloadPeer::ACCESS | Access::WINDOW_BIND;
            let mr = domain.register(peers[h].memory(), access).expect("the NICs have room").primary();
            let mw = domain.alloc_mw(types[h]).expect("the NICs have room");
            let state = State::Unbound;
            Window {
                mw,
                mr,
                state,
                tag: 0,
                uses: 0,
                last_use: 0,
                last_read: 0,
                invalidating_send: None,
                invalidated: 0,
            }
        });
        Rc::new(RefCell::new(Windows { windows, errors: Vec::new(), next_id: WINDOW_WR_FLAG }))
    }

    /// Makes a request of `user` name the window of its peer, if the window is bound and `user` may
    /// still use it. May turn a SEND into a SEND that invalidates the window.
    pub fn replace_key(&self, user: usize, wr: &mut SendWr, vqp: &mut VirtualQp, completed: usize) {
        let window = &self.windows[1 - user];
        if window.state != State::Bound {
            return;
        }
        // The responder may execute a READ again until the READ has completed, so the key must be
        // valid until then.
        let may_invalidate = window.mw.window_type() == WindowType::Type2 && window.last_read <= completed;
        let op = match wr.op.remote() {
            Some(remote) if window.uses < USES => {
                with_remote(wr.op, RemoteAddr { rkey: window.key(), ..remote })
            }
            None if wr.op == SendOp::Send && window.uses >= USES && may_invalidate => {
                SendOp::SendWithInvalidate(window.key())
            }
            _ => return,
        };
        // If the vQP has closed, it refuses the request anyway.
        let _ = vqp.import(&window.mw.remote(window.key()));
        wr.op = op;
    }

    /// Records that `user` has posted an operation as request number `posted`, counted from 1.
    pub fn note_posted(&mut self, user: usize, wr_id: u64, op: SendOp, posted: usize) {
        let window = &mut self.windows[1 - user];
        if op.remote_key() != Some(window.key()) {
            return;
        }
        match op {
            SendOp::SendWithInvalidate(_) => {
                (window.state, window.invalidating_send) = (State::InvalidatedByPeer, Some(wr_id));
            }
            SendOp::Read(_) => window.last_read = posted,
            _ => {}
        }
        window.uses += 1;
        window.last_use = posted;
    }

    /// Ends the use of the peer's window if all accesses of `user` have ended. `completed` is the
    /// number of completed requests of `user`.
    pub fn note_completed(&mut self, user: usize, completed: usize) {
        let window = &mut self.windows[1 - user];
        // Every second window of type 2 is invalidated by a SEND, if the workload posts another
        // SEND.
        let is_for_send = window.mw.window_type() == WindowType::Type2 && window.tag % 2 == 1;
        let limit = if is_for_send { USES + 1 } else { USES };
        if window.state == State::Bound && window.uses >= limit && window.last_use <= completed {
            window.state = State::Returned;
        }
    }

    pub fn advance(&mut self, owner: usize) -> Option<SendWr> {
        let (op, next) = self.windows[owner].next_request()?;
        self.windows[owner].state = next;
        self.next_id += 1;
        Some(SendWr::new(self.next_id, op, Data::empty()))
    }

    /// Takes back the last request of an owner, which was not executed.
    pub fn take_back(&mut self, owner: usize) {
        let window = &mut self.windows[owner];
        window.state = match window.state {
            State::Binding => State::Unbound,
            State::Invalidating => State::Returned,
            state => state,
        };
    }

    /// Returns whether the completion belongs to a bind or an invalidation.
    pub fn on_completion(&mut self, end: usize, completion: &EndpointCompletion, is_closed: bool) -> bool {
        let used = &mut self.windows[1 - end];
        let is_not_executed = completion.outcome == ReportedOutcome::NotExecuted;
        if is_not_executed && used.invalidating_send == Some(completion.wr_id) {
            (used.state, used.invalidating_send) = (State::Bound, None);
        }
        let window = &mut self.windows[end];
        if let Some(key) = completion.invalidated {
            if (key, State::InvalidatedByPeer) != (window.key(), window.state) {
                self.errors.push(format!("{key} was invalidated at end {end} in {:?}", window.state));
            }
            window.state = State::Unbound;
            window.invalidated += 1;
        }
        if completion.wr_id & WINDOW_WR_FLAG == 0 {
            return false;
        }
        match (completion.outcome, window.state) {
            (ReportedOutcome::Success, State::Binding) => window.state = State::Bound,
            (ReportedOutcome::Success, State::Invalidating) => {
                window.state = State::Unbound;
                window.invalidated += 1;
            }
            (ReportedOutcome::NotExecuted, _) => self.take_back(end),
            _ if is_closed => {}
            (outcome, state) => {
                self.errors.push(format!("{outcome:?} of a window of end {end} in {state:?}"))
            }
        }
        true
    }

    pub fn is_settled(&self, owner: usize) -> bool {
        self.windows[owner].state == State::Bound
    }

    pub fn invalidated_keys(&self) -> usize {
        self.windows.iter().map(|window| window.invalidated).sum()
    }

    /// Returns a WRITE of `user` by the last invalidated key of its peer's window, if the peer's
    /// program no longer uses that key.
    pub fn stale_write(&self, user: usize, vqp: &mut VirtualQp) -> Option<SendWr> {
        let window = &self.windows[1 - user];
        let rkey = window.key().with_consumer_bits(window.tag.wrapping_sub(1));
        if window.invalidated == 0 || !self.is_settled(1 - user) {
            return None;
        }
        vqp.import(&window.mw.remote(rkey)).ok()?;
        let to = RemoteAddr { addr: window.mr.addr, rkey };
        Some(SendWr::new(WINDOW_WR_FLAG, SendOp::Write(to), Data::inline(b"too late")))
    }
}

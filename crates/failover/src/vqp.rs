//! The virtual queue pair: drives the ledger and the agreement over the rails' queue pairs.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{
    Access, AsyncEvent, Buffer, CqId, Data, Error, Mtu, PostError, Qpn, RecvWr, Result, RnrTimer, SendOp,
    SendWr, Time, Wc,
};

use crate::agreement::{Agreement, CloseReason};
use crate::ballot::Role;
use crate::config::{Config, WritePolicy};
use crate::connect::ConnectInfo;
use crate::domain::{Domain, RemoteRegion};
use crate::evidence::Contradiction;
use crate::ledger::Ledger;
use crate::log::{self, Log};
use crate::message::MAX_SAVED;
use crate::outcome::Completion;
use crate::rail::{self, Rail};
use crate::recovery::{FailoverReport, Fence, Fruitless};
use crate::traffic::BURST;
use crate::translate::{self, Known, RemoteKeys};

/// Time between two looks at control messages, events and timers, of an end that does not post. One that does looks right
/// behind a post, where the answer is not to be expected yet and nobody waits for the look ...
const LOOK: Duration = Duration::from_micros(30);
/// ... and while it waits for that only after so long.
const LOOK_OF_POSTER: Duration = Duration::from_micros(120);
/// Polls within [`LOOK`] between two readings of the clock, and polls before a post reads it: neither a tight loop nor a
/// stream of posts should do so each time.
const POLLS: u64 = 4;
/// A queue pair over several rails that survives the loss of one.
///
/// It is driven by [`VirtualQp::poll`]; between two calls nothing happens, so an end that waits for its peer must poll
/// too, or it cannot take part in a recovery.
#[derive(Debug)]
pub struct VirtualQp {
    pub(crate) domain: Arc<Domain>,
    pub(crate) config: Config,
    pub(crate) cookie: u64,
    /// What first PSNs come from.
    pub(crate) secret: u64,
    /// Its number.
    pub(crate) qpn: Qpn,
    pub(crate) rails: Vec<Rail>,
    /// The log that the peer writes about its operations.
    pub(crate) log: Option<Log>,
    pub(crate) peer: Option<Peer>,
    pub(crate) ledger: Ledger,
    pub(crate) recvs: VecDeque<RecvWr>,
    /// Receives posted on `recv_rail`, from the front of `recvs`.
    pub(crate) posted_recvs: usize,
    /// The active rail, or the one that a move under way leads to.
    pub(crate) recv_rail: usize,
    /// Successful receives in this epoch, and in all.
    pub(crate) received: u64,
    pub(crate) received_total: u64,
    /// After a move: receives that wait for the peer's Resume. `None` when nothing has to wait.
    pub(crate) held: Option<VecDeque<Completion>>,
    /// Bytes to add to the first receive of this epoch.
    pub(crate) torn_in: u32,
    pub(crate) fence: Fence,
    /// Rails that were given up one after another since anything got through.
    pub(crate) fruitless: Fruitless,
    /// A move under way, for the report.
    pub(crate) moving: Option<FailoverReport>,
    /// The last move; its `completed` is open while operations below this sequence number are.
    pub(crate) last: Option<(FailoverReport, u64)>,
    pub(crate) ended: Option<CloseReason>,
    /// The event of a NIC's that ended it, under its own number.
    pub(crate) broken_rule: Option<AsyncEvent>,
    /// It has ended, and what that means for each request is still to be said.
    pub(crate) ending: bool,
    /// Completions are being handled: what ends the vQP must leave those behind it their turn.
    pub(crate) polling: bool,
    /// Its queue pairs are gone.
    closed: bool,
    /// Bytes of a message that every rail takes.
    longest: u64,
    pub(crate) contradiction: Option<Contradiction>,
    pub(crate) ready: VecDeque<Completion>,
    pub(crate) down: u8,
    /// The peer was heard of, on any rail: from then on its silence says something.
    pub(crate) met: bool,
    pub(crate) next_heartbeat: Time,
    /// When rails that were left are probed next.
    pub(crate) next_probe: Time,
    pub(crate) last_look: Time,
    /// Looks so far.
    pub(crate) looks: u32,
    polls: u64,
    /// `polls` when one reads the clock next, and when one last did.
    next_reading: u64,
    read_at: Time,
    /// `polls` when a post last read the clock.
    polls_at_post: u64,
    /// Whether one has since the last look.
    has_posted: bool,
    pub(crate) rejected: u64,
    pub(crate) wcs: Vec<Wc>,
    known: Known,
    /// What is being posted.
    pub(crate) burst: Vec<SendWr>,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) role: Role,
    pub(crate) cookie: u64,
    pub(crate) agreement: Agreement,
    pub(crate) log_region: Option<RemoteRegion>,
    pub(crate) keys: RemoteKeys,
    /// Whether the peer's NIC, by rail, acknowledges only what it has placed.
    pub(crate) placed_acks: Vec<bool>,
}

/// Makes the rails, and the log if there is to be one.
fn make(domain: &Domain, config: &Config, secret: u64, rails: &mut Vec<Rail>) -> Result<Option<Log>> {
    for (i, nic) in domain.nics().iter().enumerate() {
        rails.push(Rail::new(nic, config, mix(secret, i as u64))?);
    }
    if !config.completion_log {
        return Ok(None);
    }
    let memory =
        Arc::new(Buffer::new(log::slots(config.completion_log_entries.unwrap_or(config.send_wrs)) * 8));
    let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    Ok(Some(Log { memory, mr }))
}

impl VirtualQp {
    /// Makes one end, unconnected. `secret` must be unpredictable on a network (from the system's generator); the
    /// connection's cookie, Q_Keys and first PSNs come from it.
    pub fn new(domain: Arc<Domain>, config: Config, secret: [u64; 2]) -> Result<VirtualQp> {
        let most = domain.limits();
        let per_op = if config.completion_log { 2 } else { 1 };
        translate::within("send queue entries", u64::from(config.send_wrs) * per_op, most.wrs.into())?;
        translate::within("receive queue entries", config.recv_wrs.into(), most.wrs.into())?;
        let limits = domain.nics().iter().map(|n| n.provider.attr().limits.rd_atomic).min().unwrap_or(0);
        if config.rd_atomic == 0 || usize::from(config.rd_atomic) > MAX_SAVED || config.rd_atomic > limits {
            let limit = u64::from(limits).min(MAX_SAVED as u64);
            return Err(Error::Limit { attribute: "rd_atomic", requested: config.rd_atomic.into(), limit });
        }
        if config.completion_log
            && domain.nics().iter().any(|nic| !nic.provider.attr().capabilities.write_order)
        {
            return Err(Error::Unsupported(
                "a completion log: it does not keep the order between work requests",
            ));
        }
        let longest = most.message_bytes.into();
        let mut rails = Vec::new();
        let log = match make(&domain, &config, secret[1], &mut rails) {
            Ok(log) => log,
            Err(e) => {
                for rail in &rails {
                    let _ = rail.destroy(); // best effort: the first error is the one to tell
                }
                return Err(e);
            }
        };
        let ledger = Ledger::new(
            config.send_wrs,
            config.rd_atomic,
            config.completion_log,
            Mtu::M256,
            rails[0].first_psn,
        );
        Ok(VirtualQp {
            domain,
            config,
            cookie: secret[0],
            secret: secret[1],
            qpn: rails[0].qpn,
            rails,
            log,
            peer: None,
            ledger,
            recvs: VecDeque::new(),
            posted_recvs: 0,
            recv_rail: 0,
            received: 0,
            received_total: 0,
            held: None,
            torn_in: 0,
            fence: Fence::None,
            fruitless: Fruitless::default(),
            moving: None,
            last: None,
            ended: None,
            broken_rule: None,
            ending: false,
            polling: false,
            closed: false,
            longest,
            contradiction: None,
            ready: VecDeque::new(),
            down: 0,
            met: false,
            next_heartbeat: Time::ZERO,
            next_probe: Time::ZERO,
            last_look: Time::ZERO,
            looks: 0,
            polls: 0,
            next_reading: 0,
            read_at: Time::ZERO,
            polls_at_post: 0,
            has_posted: false,
            rejected: 0,
            wcs: Vec::with_capacity(64),
            known: Known::default(),
            burst: Vec::with_capacity(BURST + 1),
        })
    }

    /// Its number: that of its first rail's first queue pair, for good.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// How it behaves.
    pub fn config(&self) -> Config {
        self.config
    }

    /// The domain whose memory it uses.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// What the peer needs to connect.
    pub fn local_info(&self) -> Result<ConnectInfo> {
        Ok(ConnectInfo {
            cookie: self.cookie,
            policy: self.config.policy,
            log: self.config.completion_log,
            rd_atomic: self.config.rd_atomic,
            rails: self.rails.iter().map(Rail::info).collect::<Result<_>>()?,
            log_region: self.log.as_ref().map(|log| log.mr.remote()),
        })
    }

    /// Connects all rails. Both ends must have called this before either posts.
    ///
    /// # Errors
    /// `Invalid` if the two ends do not agree on what the configuration says they must.
    pub fn connect(&mut self, peer: &ConnectInfo) -> Result<()> {
        self.modify_to_rtr(peer, self.config.min_rnr_timer)?;
        self.modify_to_rts(self.config.rnr_retry)
    }

    /// The second half of [`VirtualQp::connect`], as from RTR to RTS: from here on it sends, so often again to a receiver that is not
    /// ready (7 is for ever).
    pub fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        self.config.rnr_retry = rnr_retry;
        self.rails.iter_mut().try_for_each(|rail| rail.start(&self.config))
    }

    /// The first half of [`VirtualQp::connect`], as from INIT to RTR: from here on it receives. A sender that finds no receive waits
    /// so long (the 5-bit code).
    ///
    /// # Errors
    /// As [`VirtualQp::connect`].
    pub fn modify_to_rtr(&mut self, peer: &ConnectInfo, min_rnr_timer: RnrTimer) -> Result<()> {
        if self.peer.is_some() {
            return Err(Error::Invalid("this virtual queue pair is connected already"));
        }
        let mine = self.local_info()?;
        let rule = [
            (peer.rails.len() != mine.rails.len(), "the two ends have different numbers of rails"),
            (peer.policy != mine.policy, "the two ends have different policies"),
            (peer.log != mine.log, "one end keeps a completion log and the other does not"),
            (peer.rd_atomic != mine.rd_atomic, "the two ends have different rd_atomic"),
            (peer.cookie == mine.cookie, "the two ends have the same secret"),
            (
                peer.log
                    && peer.log_region.as_ref().is_none_or(|r| {
                        let least = (log::slots(self.config.send_wrs) * 8) as u64;
                        r.len < least || r.len % 8 != 0 || r.rails.len() != peer.rails.len()
                    }),
                "the peer's completion log has no room for this end's send_wrs; set its log_wrs",
            ),
        ];
        if let Some((_, why)) = rule.into_iter().find(|(broken, _)| *broken) {
            return Err(Error::Invalid(why));
        }
        let mtu = mine.rails.iter().chain(&peer.rails).map(|r| r.mtu).min().unwrap_or(Mtu::M256);
        let now = self.now();
        self.config.min_rnr_timer = min_rnr_timer;
        for (rail, info) in self.rails.iter_mut().zip(&peer.rails) {
            rail.connect(info, mtu, &self.config)?;
            rail.heard = now;
        }
        let role = if mine.cookie < peer.cookie { Role::Zero } else { Role::One };
        let (depth, c) = (self.config.send_wrs, &self.config);
        self.ledger = Ledger::new(depth, c.rd_atomic, c.completion_log, mtu, self.rails[0].first_psn);
        self.peer = Some(Peer {
            role,
            cookie: peer.cookie,
            agreement: Agreement::new(role, self.rails.len(), c.control_retry_interval, c.peer_timeout),
            log_region: peer.log_region.clone(),
            keys: RemoteKeys::default(),
            placed_acks: peer.rails.iter().map(|r| r.placed_acks).collect(),
        });
        (self.last_look, self.next_heartbeat) = (now, now);
        if self.is_active() {
            self.post_recvs_on(self.active_rail());
        }
        Ok(())
    }

    /// Makes a region of the peer's known, on every rail, before it is used.
    pub fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        let rails = self.rails.len();
        let Some(peer) = &mut self.peer else { return Err(NOT_CONNECTED) };
        if region.rails.len() != rails {
            return Err(Error::Invalid("the region is registered for another number of rails"));
        }
        peer.keys.insert(region.clone());
        Ok(())
    }

    /// Posts a send, with the vQP's own rule for WRITEs at the edge of a failure.
    pub fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        self.post_send_with(wr, self.config.write_policy)
    }

    /// Posts a send. Its sequence number is returned. During a recovery it waits; its place in the order is kept.
    ///
    /// # Errors
    /// Nothing is posted when the queue is full, when the vQP has ended or halted, when a key has no name on some rail,
    /// or when a limit of the queue pairs is exceeded.
    pub fn post_send_with(&mut self, wr: SendWr, writes: WritePolicy) -> Result<u64> {
        let seq = self.enter(wr, writes)?;
        self.entered();
        Ok(seq)
    }

    /// Posts sends, all or none, as [`VirtualQp::post_send`] does each.
    ///
    /// # Errors
    /// As for one; the first that is refused is named.
    pub fn post_send_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let first = self.ledger.next_seq();
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(error) = self.enter(wr, self.config.write_policy) {
                self.ledger.take_back(first);
                return Err(PostError { index, error });
            }
        }
        self.entered();
        Ok(())
    }

    /// Enters a send in the ledger, if it may be posted.
    fn enter(&mut self, wr: SendWr, writes: WritePolicy) -> Result<u64> {
        let Some(peer) = &self.peer else { return Err(NOT_CONNECTED) };
        if self.ended.is_some() {
            return Err(Error::Invalid("this virtual queue pair has ended"));
        }
        if self.ledger.is_halted() {
            return Err(Error::Invalid(
                "an operation ended in an error: take its completions, then resume()",
            ));
        }
        if !self.ledger.has_room() {
            return Err(Error::QueueFull {
                queue: "send queue",
                qpn: self.qpn(),
                depth: self.config.send_wrs,
            });
        }
        translate::limits(&wr, &rail::WIDTH, self.longest)?;
        translate::check(&wr, &self.domain, &mut self.known, &peer.keys)?;
        self.ledger.push(wr, writes).map_err(|_| NO_WINDOWS)
    }

    /// Checks a send as [`VirtualQp::post_send`] does, except for its remote key, and posts nothing: for a caller that queues
    /// requests until it has called [`VirtualQp::import`] for their keys.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send`], but never `QueueFull`.
    pub fn check_send(&mut self, wr: &SendWr) -> Result<()> {
        if self.peer.is_none() {
            return Err(NOT_CONNECTED);
        }
        if self.ended.is_some() {
            return Err(Error::Invalid("this virtual queue pair has ended"));
        }
        if matches!(wr.op, SendOp::SendWithInvalidate(_) | SendOp::BindWindow(_) | SendOp::LocalInvalidate(_))
        {
            return Err(NO_WINDOWS);
        }
        translate::limits(wr, &rail::WIDTH, self.longest)?;
        match &wr.data {
            Data::Sges(list) => self.known.check(list, &self.domain),
            Data::Inline(_) => Ok(()),
        }
    }

    /// Posts what was entered, if it can be now.
    fn entered(&mut self) {
        // What was in flight at a failure comes first: until it has completed, polls post, and between them they look.
        if !self.is_replaying() {
            self.pump();
        }
        if self.polls - self.polls_at_post >= POLLS {
            self.look_behind_post();
        }
    }

    /// Posts a receive. It belongs to the vQP: it moves with it.
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        if self.ended.is_some() {
            return Err(Error::Invalid("this virtual queue pair has ended"));
        }
        if self.recvs.len() >= self.config.recv_wrs as usize {
            return Err(Error::QueueFull {
                queue: "receive queue",
                qpn: self.qpn(),
                depth: self.config.recv_wrs,
            });
        }
        translate::within("scatter entries", wr.sges.len() as u64, rail::WIDTH.recv_sges.into())?;
        let bytes = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        translate::within("bytes of a receive", bytes, self.longest)?;
        self.known.check(&wr.sges, &self.domain)?;
        self.recvs.push_back(wr);
        if self.is_active() {
            self.post_recvs_on(self.active_rail());
        }
        Ok(())
    }

    /// Goes on after an operation ended in an error and the application has decided what that means.
    pub fn resume(&mut self) {
        if self.ended.is_none() {
            self.ledger.resume();
        }
    }

    /// Whether the queue has stopped at an operation that ended in an error.
    pub fn is_halted(&self) -> bool {
        self.ledger.is_halted()
    }

    /// Why it ended, if it has.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.ended
    }

    /// The event that its NIC raised when the peer's request broke a rule, if that ended it: as a queue pair's own, by its number.
    pub fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.broken_rule
    }

    /// What contradicted what, if it ended in [`CloseReason::Contradiction`].
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.contradiction
    }

    /// The rail in use.
    pub fn active_rail(&self) -> usize {
        self.peer.as_ref().map_or(0, |p| p.agreement.active())
    }

    /// Whether operations flow: no move is under way.
    pub fn is_active(&self) -> bool {
        self.ended.is_none() && self.peer.as_ref().is_some_and(|p| p.agreement.is_active())
    }

    /// Whether the rail in use has failed, and there is none yet to move to.
    pub(crate) fn is_stranded(&self) -> bool {
        self.peer.as_ref().is_some_and(|p| p.agreement.is_stranded())
    }

    /// Whether the peer has confirmed the last move.
    pub fn is_move_confirmed(&self) -> bool {
        self.ended.is_none() && self.peer.as_ref().is_some_and(|p| p.agreement.is_move_confirmed())
    }

    /// Whether something that was in flight at the last failure has not completed.
    fn is_replaying(&self) -> bool {
        self.last.is_some_and(|(report, _)| report.completed_at.is_none())
    }

    /// Sends that have not completed.
    pub fn outstanding(&self) -> usize {
        self.ledger.len()
    }

    /// The last failover.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.last.map(|(report, _)| report)
    }

    /// Control datagrams that were malformed or not of this vQP's peer.
    pub fn rejected_messages(&self) -> u64 {
        self.rejected
    }

    /// When [`VirtualQp::poll`] has something to do by itself, at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let agreement = self.peer.as_ref().and_then(|p| p.agreement.poll_timeout());
        let heartbeat = (self.config.detector.max_missed_heartbeats > 0 && self.is_active())
            .then_some(self.next_heartbeat);
        let probe = self.peer.as_ref().is_some_and(|p| {
            (0..self.rails.len()).any(|rail| self.down & (1 << rail) == 0 && p.agreement.is_waiting(rail))
        });
        let probe = probe.then_some(self.next_probe);
        [agreement, heartbeat, probe].into_iter().flatten().min()
    }

    /// Drives everything, and appends completions: sends in posting order, receives in order of arrival.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.closed {
            out.extend(self.ready.drain(..));
            return out.len() - before;
        }
        self.polls += 1;
        let due = self.polls >= self.next_reading && self.is_time_to_look();
        self.poll_rail();
        if due || self.moving.is_some() {
            self.look();
        }
        if !self.ready.is_empty() {
            out.extend(self.ready.drain(..));
        }
        out.len() - before
    }

    /// Appends completions as [`VirtualQp::poll`] does, and leaves everything else to it: for an end that an event has woken, and that
    /// polls all the same every millisecond or so.
    pub fn poll_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if !self.closed {
            self.poll_rail();
        }
        out.extend(self.ready.drain(..));
        out.len() - before
    }

    /// Reads the clock; not at every poll of one that polls in a tight loop.
    fn is_time_to_look(&mut self) -> bool {
        let now = self.now();
        let gap = now.saturating_since(core::mem::replace(&mut self.read_at, now));
        self.next_reading = self.polls + if gap < LOOK { POLLS } else { 1 };
        let every = if self.has_posted { LOOK_OF_POSTER } else { LOOK };
        now.saturating_since(self.last_look) >= every
    }

    fn look(&mut self) {
        self.has_posted = false;
        self.housekeeping();
    }

    /// A look in the shade of a post.
    fn look_behind_post(&mut self) {
        self.polls_at_post = self.polls;
        if self.now().saturating_since(self.last_look) >= LOOK {
            self.look();
        }
        self.has_posted = true;
    }

    /// Drives everything and keeps the completions for the next [`VirtualQp::poll`]: for an end that only lends its memory,
    /// and must still take part in a recovery. Call it every few hundred microseconds, or as soon as a recovery should go.
    pub fn progress(&mut self) {
        if !self.closed {
            self.poll_rail();
            self.housekeeping();
        }
    }

    /// Asks for an event on the channel of the domain's NIC, in use or to be used, at the next completion. Poll once more after
    /// that. Without [`Domain::with_completion_channels`] nobody hears of it.
    pub fn arm(&self) -> Result<()> {
        let rails = [self.active_rail(), self.recv_rail];
        for &rail in &rails[..1 + usize::from(rails[0] != rails[1])] {
            match self.rails[rail].provider().req_notify_cq(self.rails[rail].cq, false) {
                // A dead NIC notifies nobody: whoever attends to the vQP sees that.
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether an event of this completion queue, of the domain's NIC `rail`, is about this queue pair.
    pub fn uses_cq(&self, rail: usize, cq: CqId) -> bool {
        self.rails.get(rail).is_some_and(|rail| rail.cq == cq)
    }

    /// Another under the same number, unconnected, as after a reset. This one is shut down: whoever has it polls it for a while, for the
    /// peer's sake, and closes it.
    ///
    /// # Errors
    /// As [`VirtualQp::new`].
    pub fn reset_replacement(&mut self, secret: [u64; 2]) -> Result<VirtualQp> {
        let mut heir = VirtualQp::new(Arc::clone(&self.domain), self.config, secret)?;
        self.shutdown();
        if let Err(error) = self.rails[0].bequeath(&mut heir.rails[0]) {
            let _ = heir.close(); // the first error is the one to tell
            return Err(error);
        }
        heir.qpn = self.qpn;
        Ok(heir)
    }

    /// Ends it: what is in flight ends undecided, and the peer is told. As long as it is polled, a peer that has not heard
    /// is told again.
    pub fn shutdown(&mut self) {
        self.end(CloseReason::Closed);
    }

    /// Ends it as [`VirtualQp::shutdown`] does and frees the rails. What is freed at once may take its last message with it:
    /// then the peer finds out by its detector, and gives up. Completions can still be polled.
    pub fn close(&mut self) -> Result<()> {
        if core::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        self.end(CloseReason::Closed);
        let mut first = Ok(());
        for (i, rail) in self.rails.iter().enumerate() {
            first = first.and(rail.destroy());
            let _ = self.domain.take_qp_error(i, rail.qpn); // nobody is to hear of it
        }
        if let Some(log) = &self.log {
            first = first.and(self.domain.deregister(&log.mr));
        }
        first
    }

    pub(crate) fn now(&self) -> Time {
        self.rails[0].provider().now()
    }
}

const NOT_CONNECTED: Error = Error::Invalid("this virtual queue pair is not connected yet");
const NO_WINDOWS: Error = Error::Unsupported(
    "memory windows and invalidation on virtual queue pairs (they come with a later version)",
);

/// Spreads a secret over the rails (the finalizer of SplitMix64).
pub(crate) fn mix(secret: u64, i: u64) -> u64 {
    let mut z = secret.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

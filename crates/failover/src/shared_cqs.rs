//! The completion queues that the members of the poll group share on one NIC.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use mitra_verbs::{CqId, Error, Provider, QpAttr, QpState, Qpn, Result, Wc};

use crate::group_member::Member;
use crate::local_nic::LocalNic;
use crate::lock::lock;

/// The number of completions that one call takes from a completion queue of a NIC.
const BATCH: usize = if cfg!(test) { 2 } else { 64 };

/// The minimum number of entries of a shared completion queue.
const MIN_DEPTH: u32 = if cfg!(test) { 8 } else { 1 << 12 };

/// The completions of a member's queue pair that were taken from the shared completion queue.
#[derive(Debug)]
pub(crate) struct Inbox {
    cq: CqId,
    /// The number of entries of the completion queue that are reserved for the queue pair.
    entries: u32,
    wcs: Mutex<VecDeque<Wc>>,
    /// The number of completions in `wcs`. Changed only while `wcs` is locked.
    len: AtomicUsize,
    member: Arc<Member>,
}

impl Inbox {
    pub(crate) fn cq(&self) -> CqId {
        self.cq
    }

    /// The entries that are reserved for the queue pair.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    fn clear(&self) {
        let mut wcs = lock(&self.wcs);
        wcs.clear();
        self.len.store(0, Ordering::Release);
    }

    /// Wakes the member if completions are left.
    #[inline]
    pub(crate) fn take(&self, max: usize, out: &mut Vec<Wc>) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let (n, left) = {
            let mut wcs = lock(&self.wcs);
            let n = max.min(wcs.len());
            out.extend(wcs.drain(..n));
            self.len.store(wcs.len(), Ordering::Release);
            (n, wcs.len())
        };
        if left > 0 {
            self.member.waker().wake_by_ref();
        }
        n
    }

    /// Wakes the member if the inbox was empty. Otherwise the member was woken before, and takes
    /// this completion too.
    fn push(&self, wc: Wc) {
        let was_empty = {
            let mut wcs = lock(&self.wcs);
            wcs.push_back(wc);
            self.len.store(wcs.len(), Ordering::Release);
            wcs.len() == 1
        };
        if was_empty {
            self.member.waker().wake_by_ref();
        }
    }
}

/// The completion queues that the members share on one NIC.
#[derive(Debug)]
pub(crate) struct SharedCqs {
    nic: LocalNic,
    /// The number of members whose active rail is this NIC's.
    active: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of creation. A further queue is created when no queue has room.
    cqs: Vec<SharedCq>,
    inboxes: BTreeMap<Qpn, Arc<Inbox>>,
    /// Empty between calls; kept for its capacity.
    wcs: Vec<Wc>,
    /// Whether the members know that the NIC refuses to poll.
    has_failed: bool,
}

#[derive(Debug)]
struct SharedCq {
    id: CqId,
    depth: u32,
    /// The number of entries that are reserved for queue pairs.
    reserved: u32,
}

impl SharedCqs {
    pub(crate) fn new(nic: &LocalNic) -> Arc<SharedCqs> {
        let (active, state) = (AtomicU32::new(0), Mutex::default());
        Arc::new(SharedCqs { nic: nic.clone(), active, state })
    }

    fn provider(&self) -> &dyn Provider {
        &*self.nic.provider
    }

    /// Reserves `entries` of a queue for a queue pair. Creates a queue as deep as all others
    /// together if none has room.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn reserve(&self, entries: u32) -> Result<CqId> {
        let cqs = &mut lock(&self.state).cqs;
        if let Some(cq) = cqs.iter_mut().find(|cq| cq.depth - cq.reserved >= entries) {
            cq.reserved += entries;
            return Ok(cq.id);
        }
        let depth = cqs.iter().map(|cq| cq.depth).fold(MIN_DEPTH, u32::saturating_add);
        let depth = depth.min(self.provider().attr().limits.cqe).max(entries);
        let id = self.provider().create_cq(depth, self.nic.channel.as_ref())?;
        cqs.push(SharedCq { id, depth, reserved: entries });
        Ok(id)
    }

    /// Adds a queue pair that was created with a reserved queue and has not left RESET.
    pub(crate) fn join(&self, qpn: Qpn, cq: CqId, entries: u32, member: &Arc<Member>) -> Arc<Inbox> {
        let inbox = Inbox {
            cq,
            entries,
            wcs: Mutex::default(),
            len: AtomicUsize::new(0),
            member: Arc::clone(member),
        };
        let inbox = Arc::new(inbox);
        lock(&self.state).inboxes.insert(qpn, Arc::clone(&inbox));
        inbox
    }

    /// Moves a queue pair to RESET, in which it has no completions.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn reset(&self, qpn: Qpn, inbox: &Inbox) -> Result<()> {
        self.provider().modify_qp(qpn, &QpAttr::to(QpState::Reset))?;
        // A thread that has polled a completion of before the change holds the lock until the
        // completion is in the inbox.
        let _state = lock(&self.state);
        inbox.clear();
        Ok(())
    }

    /// Destroys a queue pair, and ends its reservation. Returns the results of both.
    pub(crate) fn destroy(&self, qpn: Qpn, inbox: &Arc<Inbox>) -> [Result<()>; 2] {
        let destroyed = self.destroy_qp(qpn, inbox);
        [destroyed, self.release(inbox.cq, inbox.entries)]
    }

    /// Destroys a queue pair whose reservation stays. Its inbox keeps the completions that the NIC
    /// has written.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn destroy_qp(&self, qpn: Qpn, inbox: &Arc<Inbox>) -> Result<()> {
        let mut state = lock(&self.state);
        let destroyed = self.provider().destroy_qp(qpn);
        // The NIC may now give the number to another queue pair, which joins only after this
        // thread unlocks the state. It must not find the completions of this queue pair.
        let _ = self.dispatch(&mut state, |_| false); // the next poll fails, too
        if state.inboxes.get(&qpn).is_some_and(|known| Arc::ptr_eq(known, inbox)) {
            state.inboxes.remove(&qpn);
        }
        destroyed
    }

    /// Ends the reservation of a queue pair that does not exist. Destroys the queue if it has no
    /// other reservation.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn release(&self, id: CqId, entries: u32) -> Result<()> {
        let cqs = &mut lock(&self.state).cqs;
        let Some(at) = cqs.iter().position(|cq| cq.id == id) else { return Ok(()) };
        cqs[at].reserved -= entries;
        if cqs[at].reserved > 0 {
            return Ok(());
        }
        cqs.remove(at);
        self.provider().destroy_cq(id)
    }

    /// Appends up to `max` completions of a queue pair to `out`, oldest first. Returns 0 only if
    /// the NIC has no completion of the queue pair.
    ///
    /// # Errors
    /// Any error of [`Provider::poll_cq`], once all completions were returned.
    #[inline]
    pub(crate) fn poll(&self, qpn: Qpn, inbox: &Inbox, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        let n = inbox.take(max, out);
        if n > 0 {
            return Ok(n);
        }
        let mut state = lock(&self.state);
        // Only a thread that holds the lock fills inboxes.
        let n = inbox.take(max, out);
        if n > 0 {
            return Ok(n);
        }
        // The inbox is empty, so completions of the queue pair need not go through it.
        let before = out.len();
        let polled = self.dispatch(&mut state, |wc| {
            let is_taken = wc.qpn == qpn && out.len() - before < max;
            if is_taken {
                out.push(*wc);
            }
            is_taken
        });
        match out.len() - before {
            0 => polled.map(|()| 0),
            n => Ok(n),
        }
    }

    /// Moves the completions of all queues to their inboxes, except for those that `takes` takes.
    ///
    /// # Errors
    /// The first error of [`Provider::poll_cq`]. All queues are polled nevertheless.
    #[inline]
    fn dispatch(&self, state: &mut State, mut takes: impl FnMut(&Wc) -> bool) -> Result<()> {
        let State { cqs, inboxes, wcs, .. } = state;
        let mut result = Ok(());
        for cq in cqs {
            // At most the entries of a full queue, because more may arrive all the time.
            for _ in 0..=cq.depth as usize / BATCH {
                wcs.clear();
                let polled = self.provider().poll_cq(cq.id, BATCH, wcs);
                result = result.and(polled.map(drop));
                for wc in &*wcs {
                    if takes(wc) {
                        continue;
                    }
                    // A destroyed queue pair completes nothing.
                    if let Some(inbox) = inboxes.get(&wc.qpn) {
                        inbox.push(*wc);
                    }
                }
                if wcs.len() < BATCH {
                    break;
                }
            }
        }
        result
    }

    /// Moves completions to their inboxes. Wakes all members if the NIC refuses for the first time.
    pub(crate) fn poll_all(&self) {
        let mut state = lock(&self.state);
        let fails = self.dispatch(&mut state, |_| false).is_err();
        if !core::mem::replace(&mut state.has_failed, fails) && fails {
            drop(state);
            self.wake_all();
        }
    }

    pub(crate) fn wake_all(&self) {
        lock(&self.state).inboxes.values().for_each(|inbox| inbox.member.request_maintenance());
    }

    /// Wakes the member with this queue pair.
    pub(crate) fn wake(&self, qpn: Qpn) {
        if let Some(inbox) = lock(&self.state).inboxes.get(&qpn) {
            inbox.member.request_maintenance();
        }
    }

    pub(crate) fn add_active(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_active(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// # Errors
    /// Any error of the NIC but [`Error::DeviceFatal`].
    pub(crate) fn arm(&self) -> Result<()> {
        for cq in &lock(&self.state).cqs {
            match self.provider().req_notify_cq(cq.id, false) {
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};
    use std::thread;

    use mitra_nics::NicKind;
    use mitra_verbs::{Access, QpBuilder, QpCap, RecvWr, SgeList};

    use super::*;

    const RECVS: u64 = 5;

    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    fn shared_cqs() -> Arc<SharedCqs> {
        let provider: Arc<dyn Provider> = NicKind::Soft.open_free().expect("a loopback NIC opens");
        let pd = provider.alloc_pd().expect("the NIC has room");
        SharedCqs::new(&LocalNic { provider, pd, channel: None })
    }

    /// Joins a queue pair in RESET, for which most of a shared queue is reserved.
    fn join(shared: &SharedCqs) -> (Qpn, Arc<Inbox>) {
        let entries = MIN_DEPTH - 1;
        let cq = shared.reserve(entries).expect("the NIC has room");
        let cap = QpCap { send_wrs: 1, recv_wrs: RECVS as u32, ..QpCap::default() };
        let built = QpBuilder::rc(shared.nic.pd, cq).cap(cap).build(shared.provider());
        let qpn = built.expect("the NIC has room");
        let member = Arc::new(Member::new(Waker::from(Arc::new(Nothing))));
        (qpn, shared.join(qpn, cq, entries, &member))
    }

    /// Moves the queue pair from RESET to ERR, so that `n` receives complete.
    fn complete(shared: &SharedCqs, qpn: Qpn, n: u64) {
        let p = shared.provider();
        let init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttr::to(QpState::Init)
        };
        p.modify_qp(qpn, &init).expect("the queue pair is in RESET");
        let recvs: Vec<_> = (0..n).map(|wr_id| RecvWr { wr_id, sges: SgeList::new() }).collect();
        p.post_recv(qpn, &recvs).expect("the queue has room");
        p.modify_qp(qpn, &QpAttr::to(QpState::Err)).expect("any state may change to ERR");
    }

    fn wr_ids(wcs: &[Wc]) -> Vec<u64> {
        wcs.iter().map(|wc| wc.wr_id).collect()
    }

    /// All completions of a queue pair, and the error of the last poll.
    fn poll(shared: &SharedCqs, (qpn, inbox): &(Qpn, Arc<Inbox>)) -> (Vec<u64>, Result<usize>) {
        let mut found = Vec::new();
        loop {
            let polled = shared.poll(*qpn, inbox, BATCH, &mut found);
            if !matches!(polled, Ok(1..)) {
                return (wr_ids(&found), polled);
            }
        }
    }

    #[test]
    fn reset_of_the_nic_loses_no_completion_of_any_queue() {
        let shared = shared_cqs();
        let qps = [(); 3].map(|()| join(&shared));
        assert_eq!(lock(&shared.state).cqs.len(), 2, "the second queue is deeper");
        qps.iter().for_each(|(qpn, _)| complete(&shared, *qpn, RECVS));
        shared.provider().reset().expect("a software NIC can be reset");
        for qp in &qps {
            assert_eq!(poll(&shared, qp), ((0..RECVS).collect(), Err(Error::DeviceFatal)));
        }
    }

    #[test]
    fn one_poll_finds_a_completion_behind_many_others() {
        let shared = shared_cqs();
        let [_, first, second] = [(); 3].map(|()| join(&shared));
        assert_eq!(first.1.cq(), second.1.cq());
        complete(&shared, first.0, RECVS);
        complete(&shared, second.0, 1);
        shared.poll_all();
        assert_eq!(second.1.len.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn completions_of_a_destroyed_queue_pair_do_not_reach_the_next_with_its_number() {
        let shared = shared_cqs();
        let [_, old, other] = [(); 3].map(|()| join(&shared));
        assert_eq!(old.1.cq(), other.1.cq());
        complete(&shared, old.0, RECVS);
        assert_eq!(shared.destroy(old.0, &old.1), [Ok(()), Ok(())]);
        let next = shared.join(old.0, other.1.cq(), 0, &old.1.member);
        assert_eq!(poll(&shared, &(old.0, next)), (Vec::new(), Ok(0)));
    }

    #[test]
    fn late_end_of_a_queue_pair_leaves_the_next_with_its_number_in_the_group() {
        let shared = shared_cqs();
        let old = join(&shared);
        let next = shared.join(old.0, old.1.cq(), 0, &old.1.member);
        assert_eq!(shared.destroy(old.0, &old.1), [Ok(()), Ok(())]);
        assert!(lock(&shared.state).inboxes.get(&old.0).is_some_and(|known| Arc::ptr_eq(known, &next)));
    }

    #[test]
    fn queue_pair_has_no_completions_after_a_reset() {
        let shared = shared_cqs();
        let (qpn, inbox) = join(&shared);
        thread::scope(|scope| {
            let poller = scope.spawn(|| (0..10_000).for_each(|_| shared.poll_all()));
            while !poller.is_finished() {
                complete(&shared, qpn, RECVS);
                shared.reset(qpn, &inbox).expect("any state may change to RESET");
                shared.poll_all();
                assert_eq!(inbox.len.load(Ordering::Relaxed), 0);
            }
        });
    }
}

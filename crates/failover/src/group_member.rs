use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A vQP of the poll group, as far as other threads wake it.
#[derive(Debug)]
pub(crate) struct Member {
    waker: Waker,
    /// Whether the next poll of the vQP runs maintenance.
    needs_maintenance: AtomicBool,
    /// Whether heartbeats of the peer wake the vQP, too.
    awaits_heartbeats: AtomicBool,
}

impl Member {
    pub(crate) fn new(waker: Waker) -> Member {
        Member { waker, needs_maintenance: AtomicBool::new(false), awaits_heartbeats: AtomicBool::new(true) }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Wakes the vQP, whose next poll then runs maintenance.
    pub(crate) fn request_maintenance(&self) {
        self.needs_maintenance.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    pub(crate) fn needs_maintenance(&self) -> bool {
        self.needs_maintenance.load(Ordering::Acquire)
    }

    /// To be called before the maintenance, so that a later request is not lost.
    pub(crate) fn take_maintenance_request(&self) {
        self.needs_maintenance.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn set_awaits_heartbeats(&self, awaits: bool) {
        self.awaits_heartbeats.store(awaits, Ordering::Release);
    }

    /// Wakes the vQP after a control message has arrived.
    pub(crate) fn on_message(&self, is_solicited: bool) {
        if is_solicited || self.awaits_heartbeats.load(Ordering::Acquire) {
            self.request_maintenance();
        }
    }
}

/// Members that wait for the same thing. A member whose vQP was dropped does not count.
#[derive(Clone, Default, Debug)]
pub(crate) struct Members {
    /// By address, which no other member has while there is a weak reference.
    members: BTreeMap<usize, Weak<Member>>,
    /// The number of members at which those that were dropped are removed.
    sweep_at: usize,
}

/// The minimum of [`Members::sweep_at`].
const MIN_SWEEP: usize = 16;

impl Members {
    /// Adds a member, unless it was added before.
    pub(crate) fn add(&mut self, member: &Arc<Member>) {
        self.members.entry(Arc::as_ptr(member).addr()).or_insert_with(|| Arc::downgrade(member));
        if self.members.len() > self.sweep_at {
            self.members.retain(|_, known| known.strong_count() > 0);
            self.sweep_at = (2 * self.members.len()).max(MIN_SWEEP);
        }
    }

    pub(crate) fn add_all(&mut self, members: &Members) {
        members.iter().for_each(|member| self.add(&member));
    }

    pub(crate) fn wake(&self) {
        self.iter().for_each(|member| member.waker.wake_by_ref());
    }

    fn iter(&self) -> impl Iterator<Item = Arc<Member>> {
        self.members.values().filter_map(Weak::upgrade)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A member, alone and in a list, and a function that returns how often the member was woken
    /// since the last call.
    pub(crate) fn counted_member() -> (Arc<Member>, Members, impl Fn() -> usize) {
        let count = Arc::<Count>::default();
        let member = Arc::new(Member::new(Waker::from(Arc::clone(&count))));
        let mut members = Members::default();
        members.add(&member);
        (member, members, move || count.0.swap(0, Ordering::Relaxed))
    }

    #[test]
    fn member_is_in_a_list_once_and_until_it_is_dropped() {
        let (first, mut members, first_wakes) = counted_member();
        let (second, others, second_wakes) = counted_member();
        members.add(&first);
        members.add_all(&others);
        members.wake();
        assert_eq!((first_wakes(), second_wakes(), members.members.len()), (1, 1, 2));
        drop(second);
        for _ in 0..10 * MIN_SWEEP {
            members.add(&counted_member().0);
            assert!(members.members.len() <= MIN_SWEEP);
        }
        members.wake();
        assert_eq!(first_wakes(), 1);
    }
}

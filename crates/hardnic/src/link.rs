//! The link of a device, which can be made to fail on demand.
//!
//! The device's own link stays up, so every queue pair has to be kept from it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The most significant bit of the Q_Key of a request selects the Q_Key of the queue pair in place
/// of the request's, and a queue pair needs privileges to have one with it (IBTA volume 1, 10.2.5).
const QKEY_MASK: u32 = u32::MAX >> 1;

/// What tells the two Q_Keys of a link that is down apart.
const DIFFERENCE: u32 = 1 << 16;

/// Whether the link of a device is held down.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// A random Q_Key while the link is held down, else 0.
    qkey: AtomicU32,
}

impl Link {
    /// Holds the link down. Changes and posts that lock their queue pair after this call find it
    /// down.
    pub(crate) fn hold_down(&self) {
        // Without random bits the key may be a program's, which is no error of memory safety.
        let random = getrandom::u32().unwrap_or(0) & QKEY_MASK;
        self.qkey.store(random.max(DIFFERENCE + 1), Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        self.qkey.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.qkey.load(Ordering::SeqCst) != 0
    }

    /// Returns the Q_Key of each datagram that is sent while the link is down: no receiver has it.
    #[inline]
    pub(crate) fn sent_qkey(&self) -> Option<u32> {
        let qkey = self.qkey.load(Ordering::Relaxed);
        (qkey != 0).then_some(qkey)
    }

    /// Returns the Q_Key of datagram queue pairs while the link is down: no sender uses it. It
    /// differs from [`Link::sent_qkey`], because a device can be its own peer.
    pub(crate) fn received_qkey(&self) -> Option<u32> {
        self.sent_qkey().map(|qkey| qkey ^ DIFFERENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_link_that_is_down_differ_and_need_no_privileges() {
        let link = Link::default();
        for _ in 0..1000 {
            assert_eq!((link.is_down(), link.sent_qkey(), link.received_qkey()), (false, None, None));
            link.hold_down();
            let keys = [link.sent_qkey(), link.received_qkey()].map(|qkey| qkey.expect("a key"));
            assert!(keys[0] != keys[1] && keys.iter().all(|key| key >> 31 == 0), "{keys:x?}");
            assert!(link.is_down());
            link.release();
        }
    }
}

//! The signals that end `mitra txn local`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, process};

use nix::sys::signal::{SigSet, Signal};

/// SIGINT and SIGTERM. They end the process at once until [`EndSignals::defer`] is called. Then the
/// first signal only asks for the end, and the second one ends the process at once.
#[derive(Clone, Debug, Default)]
pub(super) struct EndSignals {
    is_deferred: Arc<AtomicBool>,
    is_asked: Arc<AtomicBool>,
}

impl EndSignals {
    /// Handles the signals from now on. Threads and processes inherit the signal mask, so this
    /// precedes the start of all others.
    pub(super) fn handle() -> io::Result<EndSignals> {
        let set = set();
        set.thread_block()?;
        let signals = EndSignals::default();
        let EndSignals { is_deferred, is_asked } = signals.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(signal) = set.wait() {
                if !is_deferred.load(Ordering::Relaxed) || is_asked.swap(true, Ordering::Relaxed) {
                    // The exit code of a shell for a program that a signal has ended.
                    process::exit(128 + signal as i32);
                }
            }
        })?;
        Ok(signals)
    }

    /// Lets the program end by itself after the first signal.
    pub(super) fn defer(&self) {
        self.is_deferred.store(true, Ordering::Relaxed);
    }

    /// Whether a deferred signal has asked for the end.
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }
}

/// Lets SIGTERM end a memory node that a process with [`EndSignals`] has started. SIGINT stays
/// blocked: a terminal sends it to both processes, and the memory node must outlive the other one.
pub(super) fn unblock_sigterm() -> nix::Result<()> {
    SigSet::from(Signal::SIGTERM).thread_unblock()
}

fn set() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM])
}

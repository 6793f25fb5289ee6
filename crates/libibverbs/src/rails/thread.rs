//! Threads of Mitra's in the program's process.

use std::io;
use std::sync::mpsc;
use std::thread;

use nix::sys::signal::{SigSet, Signal};

/// Starts one. It has begun when this returns: a starting thread frees memory, and libfabric rewrites the code of `munmap` at
/// its own start; one that is in there meanwhile crashes.
pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (started, has_started) = mpsc::sync_channel(1);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        block_signals();
        let _ = started.send(());
        run();
    })?;
    let _ = has_started.recv();
    Ok(())
}

/// Signals are for the program's own threads, but those that a fault raises must reach who faulted.
fn block_signals() {
    let mut signals = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL] {
        signals.remove(fault);
    }
    // It can only fail on a wrong argument.
    let _ = signals.thread_block();
}

//! Threads of Mitra's in a program's process.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Starts a thread that takes none of the program's signals, but those that tell it of a fault of its own.
///
/// It has begun when this returns: a starting thread frees memory, and libfabric rewrites the code of `munmap` at its own start;
/// one that is in there meanwhile crashes.
///
/// # Errors
/// The system has no room for a thread.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut mask = SigSet::all();
    for own in
        [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS]
    {
        mask.remove(own);
    }
    let (started, has_started) = mpsc::sync_channel(1);
    // Before it starts: a thread begins with its creator's mask.
    let before = mask.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        let _ = started.send(());
        run();
    });
    before.thread_set_mask()?;
    let thread = thread?;
    let _ = has_started.recv();
    Ok(thread)
}

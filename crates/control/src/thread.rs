//! Background threads in the process of an application.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Starts a thread that blocks all signals but the synchronous ones, so that the application's signal handlers run on the
/// application's own threads. The kernel kills a process that raises a synchronous signal while it blocks it (`sigprocmask(2)`).
///
/// Returns after the thread has started to run. A starting thread frees memory, and libfabric rewrites the code of `munmap` when
/// libfabric is loaded: a thread that executes `munmap` at that moment crashes.
///
/// # Errors
/// The system cannot create another thread.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut mask = SigSet::all();
    for synchronous in
        [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS]
    {
        mask.remove(synchronous);
    }
    let (started, has_started) = mpsc::sync_channel(1);
    // A thread inherits the mask of its creator, so the mask is set here and restored below.
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

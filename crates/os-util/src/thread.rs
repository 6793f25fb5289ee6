//! Threads that take none of the program's signals.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// The signals of a thread's own faults. They stay unblocked: the kernel ends a process that faults while it blocks them
/// (sigprocmask(2)), and a handler of this process may be able to recover from the fault.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// Starts a thread that blocks all signals but those of its own faults.
///
/// The thread has begun to run `f` when this function returns. A starting thread calls `munmap`, and libfabric
/// rewrites the code of `munmap` while it initialises: a thread inside the function at that time crashes.
///
/// # Errors
/// The system refuses another thread.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut mask = SigSet::all();
    FAULTS.into_iter().for_each(|fault| mask.remove(fault));
    let (started, has_started) = mpsc::sync_channel(1);
    // The mask is set before the thread exists, because a thread inherits its creator's mask.
    let before = mask.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        let _ = started.send(());
        f();
    });
    before.thread_set_mask()?;
    let thread = thread?;
    let _ = has_started.recv();
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spawned_thread_blocks_signals_but_those_of_its_faults() {
        let (send, receive) = mpsc::channel();
        let thread = spawn("test", move || send.send(SigSet::thread_get_mask().unwrap()).unwrap()).unwrap();
        thread.join().unwrap();
        let mask = receive.recv().unwrap();
        assert!(mask.contains(Signal::SIGTERM) && mask.contains(Signal::SIGUSR1));
        assert!(FAULTS.iter().all(|&fault| !mask.contains(fault)));
        assert!(
            !SigSet::thread_get_mask().unwrap().contains(Signal::SIGUSR1),
            "the creator's mask is restored"
        );
    }
}

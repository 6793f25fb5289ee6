//! Threads that do not handle signals of the program.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// The signals that the kernel sends to a thread for its own faults. They stay unblocked. If they
/// were blocked, the kernel would kill the process at a fault (sigprocmask(2)), although a signal
/// handler of the program may be able to handle it.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// Starts a thread that blocks all signals except those that its own faults raise.
///
/// The function returns only after the start of the thread is complete. A starting thread calls
/// `munmap`, and libfabric overwrites the code of `munmap` while it initializes. A thread that
/// executes `munmap` at that time would crash.
///
/// # Errors
/// The error of the operating system, if it cannot create the thread.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut mask = SigSet::all();
    FAULTS.into_iter().for_each(|fault| mask.remove(fault));
    let (started_sender, started_receiver) = mpsc::sync_channel(1);
    // The mask is set before the thread exists, because a thread inherits its creator's mask.
    let previous_mask = mask.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        let _ = started_sender.send(());
        f();
    });
    previous_mask.thread_set_mask()?;
    let thread = thread?;
    let _ = started_receiver.recv();
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

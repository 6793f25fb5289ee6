//! The thread on which slow calls run.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::qp::Qp;

/// How long the number of a destroyed queue pair is not used again: a packet that is still on its
/// way to it would fit a new queue pair of the same number.
const QUARANTINE: Duration = Duration::from_secs(1);

/// Destroys queue pairs. On soft-RoCE a destruction takes up to 0.4 s under traffic. The queue pair
/// is in RESET, which keeps its number and takes no packets.
#[derive(Debug)]
pub(crate) struct Reaper {
    sender: Option<Sender<Arc<Qp>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(crate) fn start() -> io::Result<Reaper> {
        let (sender, receiver) = channel();
        let thread = mitra_os_util::thread::spawn("mitra-reaper", move || reap(&receiver))?;
        Ok(Reaper { sender: Some(sender), thread: Some(thread) })
    }

    /// Destroys the queue pair after its quarantine.
    pub(crate) fn take(&self, qp: Arc<Qp>) {
        if let Some(sender) = &self.sender {
            // The thread ends after the sender is dropped, so it receives what is sent.
            let _ = sender.send(qp);
        }
    }
}

fn reap(receiver: &Receiver<Arc<Qp>>) {
    let mut waiting: VecDeque<(Instant, Arc<Qp>)> = VecDeque::new();
    loop {
        let wait = match waiting.front() {
            Some((due, _)) => due.saturating_duration_since(Instant::now()),
            None => Duration::from_secs(3600),
        };
        match receiver.recv_timeout(wait) {
            Ok(qp) => waiting.push_back((Instant::now() + QUARANTINE, qp)),
            Err(RecvTimeoutError::Timeout) => {
                while waiting.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                    waiting.pop_front();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Drop for Reaper {
    /// Destroys what is left, and ends the thread.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics only if the library does
        }
    }
}

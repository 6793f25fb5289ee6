//! The processes: the first starts the two ends (this program again) and hears them; an end hears the first.
//!
//! An end lives as long as its standard input is open: however the first process ends, its ends do too.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use anyhow::{Context, anyhow};

use super::plan::Side;
use super::protocol::{FromEnd, ToEnd};

/// What the first process hears.
pub(super) enum Event {
    /// An end's message; none if it has ended.
    End(Side, Option<FromEnd>),
    /// Ctrl-C, or a request to terminate.
    Interrupted,
}

/// An end, as the first process sees it. It is ended when this is dropped.
pub(super) struct End {
    side: Side,
    child: Child,
    /// None once it was told to go.
    input: Option<ChildStdin>,
}

impl End {
    /// Starts it; what it says goes to `events`.
    pub(super) fn start(side: Side, events: Sender<Event>) -> anyhow::Result<End> {
        // The program that runs, also when its file was replaced meanwhile.
        let mut child = Command::new("/proc/self/exe")
            .arg0("mitra")
            .args(["demo-end", side.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the {} process", side.name()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("a child without standard output")?;
        thread::Builder::new().name(format!("hears the {}", side.name())).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line)
                    .unwrap_or_else(|error| FromEnd::Failed(format!("unexpected {line:.80}: {error}")));
                if events.send(Event::End(side, Some(message))).is_err() {
                    return;
                }
            }
            let _ = events.send(Event::End(side, None)); // nobody listens any more: the demo is over
        })?;
        Ok(End { side, child, input })
    }

    pub(super) fn tell(&mut self, message: &ToEnd) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("it was told to end")?;
        // Not as a cause: it is not our own output that was closed.
        say(input, message).map_err(|error| anyhow!("the {} process has gone: {error}", self.side.name()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        drop(self.input.take());
        // It ends by itself now; if it is stuck, by force. Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(to: &mut impl Write, message: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The first process, as an end sees it.
pub(super) struct Parent(Receiver<ToEnd>);

impl Parent {
    /// Starts to listen.
    pub(super) fn hear() -> Parent {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else { break };
                if sender.send(message).is_err() {
                    break;
                }
            }
            // The first process has gone: nobody wants to know how this ends.
            std::process::exit(0);
        });
        Parent(receiver)
    }

    /// Waits for a message.
    pub(super) fn next(&self) -> ToEnd {
        self.0.recv().unwrap_or_else(|_| std::process::exit(0))
    }

    /// A message, if there is one.
    pub(super) fn try_next(&self) -> Option<ToEnd> {
        match self.0.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => std::process::exit(0),
        }
    }

    pub(super) fn tell(&self, message: &FromEnd) {
        if say(&mut io::stdout().lock(), message).is_err() {
            std::process::exit(0); // the first process has gone
        }
    }
}

//! Messages on standard error.
//!
//! A program that runs with this library does not know that the library uses `tracing`. The library
//! therefore installs its own subscriber, which writes a line `mitra: …` for each event. Warnings
//! are written, unless `MITRA_QUIET=1` is set, as `mitra run --quiet` does. Events of debug level,
//! such as a repeated refusal of a call, are written only with `MITRA_VERBOSE=1`
//! (`mitra run --verbose`). The steps of failovers are written with `MITRA_TRACE=1`
//! (`mitra run --trace`), also with `MITRA_QUIET=1`.

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Installs the subscriber for the process on the first call, unless the process already has
/// another subscriber.
pub(crate) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // Only the first of several threads succeeds. None waits for another one, which would not exist
    // in the child of a fork.
    if !INSTALLED.load(Ordering::Acquire) {
        let is_set = |variable| std::env::var_os(variable).is_some_and(|value| value == "1");
        let max_level = match (is_set("MITRA_QUIET"), is_set("MITRA_VERBOSE")) {
            (true, _) => LevelFilter::ERROR,
            (false, true) => LevelFilter::DEBUG,
            (false, false) => LevelFilter::WARN,
        };
        let subscriber = StderrSubscriber { max_level, traces_failovers: is_set("MITRA_TRACE") };
        let _ = tracing::subscriber::set_global_default(subscriber);
        INSTALLED.store(true, Ordering::Release);
    }
}

/// A subscriber that writes the events of Mitra's crates to standard error. It ignores spans.
struct StderrSubscriber {
    max_level: LevelFilter,
    traces_failovers: bool,
}

impl StderrSubscriber {
    /// Returns whether the event is a step of a failover and these are written.
    fn traces(&self, metadata: &Metadata<'_>) -> bool {
        self.traces_failovers && metadata.target() == FAILOVER_STEPS
    }
}

/// The target of the events that `mitra-failover` emits at each step of a failover.
const FAILOVER_STEPS: &str = "mitra_failover::recovery";

impl Subscriber for StderrSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("mitra")
            && (*metadata.level() <= self.max_level || self.traces(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.traces_failovers { self.max_level.max(LevelFilter::INFO) } else { self.max_level })
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line("mitra: ".to_owned());
        event.record(&mut line);
        line.0.push('\n');
        // If the program has closed its standard error, the message is lost.
        if has_reader(io::stderr().as_fd()) {
            write_all(io::stderr().as_fd(), line.0.as_bytes());
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Whether a write can reach a reader. A write to a pipe without one would end the program by
/// `SIGPIPE`.
fn has_reader(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..)) || fds[0].any() != Some(true)
}

/// Writes bytes as far as the descriptor accepts them. In contrast to [`io::Stderr`] takes no lock,
/// which a forked child could inherit locked.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match unistd::write(fd, bytes) {
            Ok(0) => return,
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// The line that is written for an event. As a visitor, it appends the event's message.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_without_reader_is_recognized() {
        let (reader, writer) = std::io::pipe().expect("a pipe can be created");
        assert!(has_reader(writer.as_fd()));
        drop(reader);
        assert!(!has_reader(writer.as_fd()));
    }

    #[test]
    fn message_is_formatted_without_quotes() {
        struct Capture(std::sync::Mutex<String>);

        impl Subscriber for Capture {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn event(&self, event: &Event<'_>) {
                let mut line = Line("mitra: ".to_owned());
                event.record(&mut line);
                *self.0.lock().expect("no test panics here") = line.0;
            }
            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }

        let capture = std::sync::Arc::new(Capture(std::sync::Mutex::default()));
        tracing::subscriber::with_default(std::sync::Arc::clone(&capture), || {
            tracing::warn!("queue pair {}: {}", 7, "moved");
        });
        assert_eq!(*capture.0.lock().expect("no test panics here"), "mitra: queue pair 7: moved");
    }
}

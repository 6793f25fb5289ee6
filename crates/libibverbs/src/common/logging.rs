//! Messages on standard error.
//!
//! The program does not know that the library uses `tracing`. The library therefore installs a
//! subscriber, which writes a line `mitra: …` for each event:
//!
//! - Warnings, without `MITRA_QUIET=1` (`mitra run --quiet`).
//! - Events of debug level, with `MITRA_VERBOSE=1` (`mitra run --verbose`).
//! - Steps of failovers, with `MITRA_TRACE=1` (`mitra run --trace`), also with `MITRA_QUIET=1`.

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

/// Installs the subscriber in the first call, if the process has no other subscriber.
pub(crate) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // Only the first of several threads succeeds. A thread that waited for another thread would
    // wait forever in the child of a fork.
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

/// Writes the events of Mitra's crates, and ignores spans.
struct StderrSubscriber {
    max_level: LevelFilter,
    traces_failovers: bool,
}

impl StderrSubscriber {
    /// Whether the event is a step of a failover, and such steps are to be written.
    fn traces(&self, metadata: &Metadata<'_>) -> bool {
        self.traces_failovers && metadata.target() == FAILOVER_STEPS
    }
}

/// The target of `mitra-failover`'s events at the steps of a failover.
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
        // A program that has closed its standard error gets no message.
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

/// A write to a pipe without a reader would end the program by `SIGPIPE`.
fn has_reader(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..)) || fds[0].any() != Some(true)
}

/// In contrast to [`io::Stderr`], the function takes no lock, which a forked child could inherit
/// locked.
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

/// A line to which the visit of an event appends the event's message.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
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

//! A progress bar on standard error. It is hidden if standard error is not a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Progress {
    bar: ProgressBar,
    /// The operations of a round.
    ops: u64,
    /// The operations of all earlier rounds.
    before: std::cell::Cell<u64>,
}

impl Progress {
    pub(super) fn new(rounds: usize, ops: usize) -> Progress {
        let target =
            if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some((rounds * ops) as u64), target);
        let style =
            ProgressStyle::with_template("  {msg:24} {bar:40} {human_pos}/{human_len} operations {elapsed}");
        bar.set_style(style.expect("the template is valid").progress_chars("━╸·"));
        Progress { bar, ops: ops as u64, before: 0.into() }
    }

    /// Returns the bar, for the thread that ends the process.
    pub(super) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Announces round `number`, counted over all policies.
    pub(super) fn round(&self, policy: &str, number: usize) {
        self.before.set(number as u64 * self.ops);
        self.bar.set_message(format!("{policy}, failure {}", number + 1));
        self.completed(0);
    }

    /// Sets the number of completed operations of the current round.
    pub(super) fn completed(&self, operations: u64) {
        self.bar.set_position(self.before.get() + operations);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

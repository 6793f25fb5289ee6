//! Live progress on a terminal; elsewhere nothing.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Progress {
    bar: ProgressBar,
    ops: u64,
    before: std::cell::Cell<u64>,
}

impl Progress {
    /// Of so many rounds of so many operations.
    pub(super) fn new(rounds: usize, ops: usize) -> Progress {
        let target =
            if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some((rounds * ops) as u64), target);
        let style =
            ProgressStyle::with_template("  {msg:24} {bar:40} {human_pos}/{human_len} operations {elapsed}");
        bar.set_style(style.expect("a template that is a constant").progress_chars("━╸·"));
        Progress { bar, ops: ops as u64, before: 0.into() }
    }

    /// The `number`th of all rounds begins.
    pub(super) fn round(&self, policy: &str, number: usize) {
        self.before.set(number as u64 * self.ops);
        self.bar.set_message(format!("{policy}, failure {}", number + 1));
        self.done(0);
    }

    /// So many operations of this round are done.
    pub(super) fn done(&self, operations: u64) {
        self.bar.set_position(self.before.get() + operations);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

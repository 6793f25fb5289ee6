//! Runs the seeds of a sweep on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_sweep::Workload;
use mitra_sweep::seeded::SeedRun;

use super::seed_range::SeedRange;
use super::summary::Summary;

/// The number of failing seeds that are reported during the sweep, one line each.
const REPORTED_SEEDS: u64 = 20;
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Sweep<'a> {
    pub(super) workload: &'a Workload,
    pub(super) seeds: SeedRange,
    pub(super) run: &'a (dyn Fn(u64) -> SeedRun + Sync),
    /// Whether progress is shown, if standard error is a terminal.
    pub(super) shows_progress: bool,
}

impl Sweep<'_> {
    /// Runs the seeds, and adds their results to the summary. The result does not depend on the
    /// number of threads.
    pub(super) fn run(&self, summary: Summary) -> anyhow::Result<Summary> {
        let progress = Progress::new(self)?;
        let shared = Mutex::new((summary, progress));
        let next = AtomicU64::new(0);
        let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
        thread::scope(|scope| {
            for _ in 0..threads.min(self.seeds.count.unwrap_or(threads)) {
                scope.spawn(|| {
                    while let Some(seed) = self.seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = (self.run)(seed);
                        let mut shared = shared.lock().unwrap_or_else(|e| e.into_inner());
                        let (summary, progress) = &mut *shared;
                        summary.add(seed, &result);
                        progress.update(summary);
                        let failed = summary.violations + summary.stuck;
                        if let (Some(finding), 1..=REPORTED_SEEDS) = (result.findings.first(), failed) {
                            let what = finding.detail.lines().next().unwrap_or_default();
                            let command = self.workload.reproduce_command(seed);
                            progress.print(&format!(
                                "seed {seed}, checker {}: {what}; {command}",
                                finding.checker
                            ));
                        }
                    }
                });
            }
        });
        let (summary, progress) = shared.into_inner().unwrap_or_else(|e| e.into_inner());
        progress.bar.finish_and_clear();
        Ok(summary)
    }
}

/// The progress bar on standard error. It is hidden if standard error is not a terminal.
struct Progress {
    bar: ProgressBar,
    begin: Instant,
    updated: Option<Instant>,
    ends_by_time: bool,
}

impl Progress {
    fn new(sweep: &Sweep<'_>) -> anyhow::Result<Progress> {
        let time = sweep.seeds.time_left();
        let (length, template) = match (sweep.seeds.count, time) {
            (Some(seeds), _) => (seeds, "{bar:30} {human_pos}/{human_len} seeds, {msg}, {eta} left"),
            (None, time) => {
                let millis = time.unwrap_or_default().as_millis() as u64;
                (millis, "{bar:30} {elapsed}, {msg}")
            }
        };
        let target = match sweep.shows_progress {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        bar.set_style(ProgressStyle::with_template(template)?.progress_chars("━╸·"));
        Ok(Progress { bar, begin: Instant::now(), updated: None, ends_by_time: time.is_some() })
    }

    fn update(&mut self, summary: &Summary) {
        let now = Instant::now();
        if self.bar.is_hidden() || self.updated.is_some_and(|last| now - last < UPDATE_INTERVAL) {
            return;
        }
        self.updated = Some(now);
        let elapsed = now - self.begin;
        let per_second = summary.seeds as f64 / elapsed.as_secs_f64().max(1e-3);
        let [seeds, operations, faults] =
            [summary.seeds, summary.operations, summary.faults].map(|n| HumanCount(n).to_string());
        let message = format!("{per_second:.0} seeds/s, {operations} operations, {faults} faults");
        if self.ends_by_time {
            self.bar.set_position(elapsed.as_millis() as u64);
            self.bar.set_message(format!("{seeds} seeds, {message}"));
        } else {
            self.bar.set_position(summary.seeds);
            self.bar.set_message(message);
        }
    }

    fn print(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }
}

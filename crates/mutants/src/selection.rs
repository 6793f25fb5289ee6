//! The mutant that a thread runs.

use core::cell::Cell;

use crate::{Mutant, Running};

thread_local! {
    static RUNNING: Cell<Option<Mutant>> = const { Cell::new(None) };
}

impl Mutant {
    /// Returns whether the calling thread runs this mutant.
    pub fn is_on(self) -> bool {
        RUNNING.get() == Some(self)
    }

    /// Calls a function with this mutant switched on for the calling thread.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        Running(Some(self)).run(f)
    }
}

impl Running {
    /// Returns the mutant that the calling thread runs, if any.
    pub fn now() -> Running {
        Running(RUNNING.get())
    }

    /// Calls a function with the same mutant, if one runs, switched on for the calling thread.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let _restored = Restored(RUNNING.replace(self.0));
        f()
    }
}

/// Restores the mutant that ran before, also when a panic unwinds.
struct Restored(Option<Mutant>);

impl Drop for Restored {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutant_is_on_in_its_thread_and_until_its_run_ends() {
        let [first, second, ..] = Mutant::ALL else { panic!("two mutants") };
        first.run(|| {
            assert!(first.is_on() && !second.is_on());
            second.run(|| assert!(second.is_on() && !first.is_on()));
            assert!(first.is_on());
            let running = Running::now();
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!first.is_on()));
                scope.spawn(move || running.run(|| assert!(first.is_on())));
            });
            assert!(std::panic::catch_unwind(|| second.run(|| panic!("a mutant"))).is_err());
            assert!(first.is_on() && !second.is_on());
        });
        assert!(!first.is_on());
    }
}

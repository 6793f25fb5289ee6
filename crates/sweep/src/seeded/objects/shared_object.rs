use std::cell::RefCell;
use std::rc::Rc;

use mitra_verbs::Buffer;

use super::Finding;
use super::client::Script;
use mitra_sim::Prng;

/// An object that the clients of a world share, and its checker.
pub(super) trait SharedObject {
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script>;

    /// Runs one turn of the server. Returns whether the server was active.
    fn serve(&self, _memory: &Buffer, _rng: &mut Prng) -> bool {
        false
    }

    /// Checks the results of all clients, and the memory in the end. `all_finished`: no client
    /// ended early.
    fn findings(&self, memory: &Buffer, all_finished: bool) -> Vec<Finding>;
}

/// The number of violations of an object that are kept, since an object may be wrong in every turn.
const MAX_VIOLATIONS: usize = 8;

/// The violations that the clients of an object have seen.
#[derive(Clone, Default)]
pub(super) struct Violations(Rc<RefCell<Vec<String>>>);

impl Violations {
    pub(super) fn add(&self, what: impl Into<String>) {
        let violations = &mut *self.0.borrow_mut();
        if violations.len() < MAX_VIOLATIONS {
            violations.push(what.into());
        }
    }

    pub(super) fn require(&self, rule: bool, what: impl FnOnce() -> String) {
        if !rule {
            self.add(what());
        }
    }

    pub(super) fn findings(&self, checker: &'static str) -> Vec<Finding> {
        self.0.borrow().iter().map(|what| Finding::violation(checker, what.clone())).collect()
    }
}

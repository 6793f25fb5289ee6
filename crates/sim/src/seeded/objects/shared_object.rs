use std::cell::RefCell;
use std::rc::Rc;

use mitra_verbs::Buffer;

use super::Finding;
use super::client::Script;
use crate::Prng;

/// An object that the clients of a world share, with the check of what they see.
pub(super) trait SharedObject {
    /// Returns the script of a client.
    fn script(&self, client: usize, rng: &mut Prng) -> Box<dyn Script>;

    /// Runs one turn of the server's program. Returns whether it found something to do.
    fn serve(&self, _memory: &Buffer, _rng: &mut Prng) -> bool {
        false
    }

    /// Checks what the clients saw, and what the memory has in the end. `all_finished` says whether
    /// no client ended early.
    fn findings(&self, memory: &Buffer, all_finished: bool) -> Vec<Finding>;
}

/// The number of violations of an object that are kept.
const MAX_VIOLATIONS: usize = 8;

/// What the clients of an object have found wrong.
#[derive(Clone, Default)]
pub(super) struct Violations(Rc<RefCell<Vec<String>>>);

impl Violations {
    pub(super) fn add(&self, what: impl Into<String>) {
        let violations = &mut *self.0.borrow_mut();
        // An object that is wrong in every turn adds no more.
        if violations.len() < MAX_VIOLATIONS {
            violations.push(what.into());
        }
    }

    /// Records a violation unless the rule holds.
    pub(super) fn require(&self, rule: bool, what: impl FnOnce() -> String) {
        if !rule {
            self.add(what());
        }
    }

    /// Returns the violations as findings of this checker.
    pub(super) fn findings(&self, checker: &'static str) -> Vec<Finding> {
        self.0.borrow().iter().map(|what| Finding::violation(checker, what.clone())).collect()
    }
}

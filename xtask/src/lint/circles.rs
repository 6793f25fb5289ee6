//! Circles of imports between the modules of a crate.
//!
//! A module uses another module if it names an item of that module, by an import or by a path. A
//! module is a file, and inline modules belong to the module of their file. An item that a module
//! imports or re-exports belongs to the module that defines the item, so `super::Item` may be a use
//! of a sibling. These are no uses:
//!
//! - an item of an ancestor, because the methods of a type are in the children of the type's
//!   module;
//! - a re-export of an item of a descendant;
//! - the name of a module by itself, as in `use crate::module`;
//! - everything in code that is compiled for tests only, and in documentation.
//!
//! The exceptions are uses, `crate: user -> used`: without them no crate has a circle.

mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use self::modules::{Module, uses};
use super::exceptions::{self, Findings};

/// The modules that each module uses.
type Uses = BTreeMap<Module, BTreeSet<Module>>;

const LIST: &str = "xtask/src/lint/circles.txt";

pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let list = super::read(Path::new(LIST))?;
    let mut found = Findings::new();
    let mut crates = 0;
    for root in files.iter().filter(|path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")) {
        crates += 1;
        found.extend(circles(&root.display().to_string(), uses(root)?, &list));
    }
    ensure!(crates > 0, "no crate was found");
    Ok(exceptions::excess(found, &list, LIST))
}

/// Finds, in the crate `name`, the uses of `list` that close a circle, and one use of every other
/// circle.
fn circles(name: &str, mut all: Uses, list: &str) -> Findings {
    let entry = |user: &Module, used: &Module| format!("{name}: {} -> {}", shown(user), shown(used));
    let listed = exceptions::entries(list);
    let mut permitted = Vec::new();
    for (user, targets) in &mut all {
        let (kept, removed) =
            std::mem::take(targets).into_iter().partition(|used| !listed.contains_key(&*entry(user, used)));
        *targets = kept;
        permitted.extend(BTreeSet::into_iter(removed).map(|used| (user.clone(), used)));
    }
    let mut found = Findings::new();
    for (user, used) in &permitted {
        if reaches(&all, used, user) {
            found.insert(entry(user, used), vec![format!("{}: a circle", entry(user, used))]);
        }
    }
    let mut search = Search { uses: &all, done: BTreeSet::new(), path: Vec::new(), circles: Vec::new() };
    all.keys().for_each(|module| search.visit(module));
    for circle in search.circles {
        let [used, .., user] = &circle[..] else { continue };
        let names: Vec<String> = circle.iter().map(|module| shown(module)).collect();
        let finding = format!("{} closes a circle: {}", entry(user, used), names.join(" -> "));
        found.insert(entry(user, used), vec![finding]);
    }
    found
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "crate".to_owned() } else { module.join("::") }
}

fn reaches(uses: &Uses, from: &Module, to: &Module) -> bool {
    let mut reached = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        next.extend(uses[module].iter().filter(|used| reached.insert(used)));
    }
    reached.contains(to)
}

/// A depth-first search for circles.
struct Search<'a> {
    uses: &'a Uses,
    done: BTreeSet<&'a Module>,
    path: Vec<&'a Module>,
    /// Each circle's last module uses its first module.
    circles: Vec<Vec<&'a Module>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, module: &'a Module) {
        if let Some(begin) = self.path.iter().position(|&m| m == module) {
            self.circles.push(self.path[begin..].to_vec());
        } else if !self.done.contains(module) {
            self.path.push(module);
            self.uses[module].iter().for_each(|used| self.visit(used));
            self.path.pop();
            self.done.insert(module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(uses: &[(&str, &[&str])], list: &str) -> Vec<String> {
        let module = |name: &&str| vec![(*name).to_owned()];
        let uses = uses.iter().map(|(user, used)| (module(user), used.iter().map(module).collect()));
        let found = circles("x", uses.collect(), list);
        exceptions::excess(found, list, "list.txt")
    }

    #[test]
    fn circle_is_reported_with_its_modules() {
        let uses: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &["a", "c"])];
        assert_eq!(circles_of(uses, ""), ["x: c -> b closes a circle: b -> c"]);
        assert!(circles_of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])], "").is_empty());
    }

    #[test]
    fn exception_must_close_a_circle() {
        let circle: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["a"])];
        assert!(circles_of(circle, "x: b -> a\n").is_empty());
        assert!(circles_of(circle, "x: a -> b\n").is_empty());
        assert_eq!(circles_of(circle, "x: a -> b\nx: b -> a\n").len(), 2);
        assert_eq!(circles_of(&[("a", &["b"]), ("b", &[])], "x: a -> b\n").len(), 1);
    }

    #[test]
    fn exception_permits_no_second_circle() {
        let uses: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["a", "c"]), ("c", &["b"])];
        assert_eq!(circles_of(uses, "x: b -> a\n"), ["x: c -> b closes a circle: b -> c"]);
    }
}

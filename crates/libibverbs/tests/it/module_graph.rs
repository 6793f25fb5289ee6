//! The imports between the crate's modules form no circle: `rdmacm` → `calls` → `rails` → `common` → `abi`, and none
//! within `calls`, `rails` and `common`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

type Module = Vec<String>;

/// The source of every module by its path. Modules of tests are left out.
fn modules(dir: &Path, prefix: &Module, out: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(dir).expect("the sources are readable") {
        let path = entry.expect("the sources are readable").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("names are ASCII").to_owned();
        let module = [prefix.as_slice(), std::slice::from_ref(&stem)].concat();
        if path.is_dir() {
            modules(&path, &module, out);
        } else if stem != "tests" {
            let source = fs::read_to_string(&path).expect("the sources are readable");
            let module = if ["mod", "lib"].contains(&stem.as_str()) { prefix.clone() } else { module };
            out.insert(module, without_comments_and_tests(&source));
        }
    }
}

fn without_comments_and_tests(source: &str) -> String {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn flatten(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let body = rest.trim_end().strip_suffix('}').expect("braces are balanced");
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (i, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&body[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    items.push(&body[start..]);
    let items = items.into_iter().filter(|item| !item.trim().is_empty());
    items.flat_map(|item| flatten(&format!("{}{}", prefix.trim(), item.trim()))).collect()
}

/// The paths that a source names: its imports, and other paths that begin with `crate` or `super`.
fn paths(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (i, _) in source.match_indices("use ").filter(|(i, _)| *i == 0 || " \n".contains(&source[i - 1..*i]))
    {
        found.extend(flatten(source[i + 4..].split(';').next().unwrap_or_default()));
    }
    for root in ["crate::", "super::"] {
        for (i, _) in source.match_indices(root) {
            let path: String =
                source[i..].chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
            found.push(path);
        }
    }
    found
}

/// The module that a path in `from` leads to, if it is one of this crate.
fn resolve(path: &str, from: &Module, modules: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts: Vec<&str> = path.split("::").map(str::trim).collect();
    let mut target = match parts[0] {
        "crate" => Vec::new(),
        "self" | "super" => from.clone(),
        child if modules.contains_key(&[from.as_slice(), &[child.to_owned()]].concat()) => from.clone(),
        _ => return None,
    };
    while parts.first() == Some(&"super") {
        target.pop();
        parts.remove(0);
    }
    if ["crate", "self"].contains(parts.first()?) {
        parts.remove(0);
    }
    for part in parts {
        let child = [target.as_slice(), &[part.to_owned()]].concat();
        if !modules.contains_key(&child) {
            break;
        }
        target = child;
    }
    (target != *from && modules.contains_key(&target)).then_some(target)
}

#[test]
fn imports_of_calls_rails_and_common_form_no_circle() {
    let mut all = BTreeMap::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &Vec::new(), &mut all);
    all.retain(|module, _| {
        module.first().is_some_and(|top| ["calls", "rails", "common"].contains(&top.as_str()))
    });
    assert!(all.len() > 50, "only {} modules were found", all.len());
    let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, source) in &all {
        let targets = paths(source).into_iter().filter_map(|path| resolve(&path, module, &all)).collect();
        imports.insert(module.clone(), targets);
    }
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 100, "imports were not found");
    // Remove modules that import nothing that is left. What remains imports each other in a circle.
    while let Some(leaf) =
        imports.iter().find(|(_, targets)| targets.is_empty()).map(|(leaf, _)| leaf.clone())
    {
        imports.remove(&leaf);
        imports.values_mut().for_each(|targets| {
            targets.remove(&leaf);
        });
    }
    let circle: Vec<_> = imports.iter().map(|(module, targets)| (module.join("::"), targets)).collect();
    assert!(circle.is_empty(), "modules in a circle, or that import one: {circle:#?}");
}

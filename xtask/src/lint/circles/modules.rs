//! The modules of a crate, and the uses between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Item, ItemUse, Lit, Meta, UseTree, Visibility};

use super::Uses;

/// The path of a module, which is empty for the root of the crate.
pub(super) type Module = Vec<String>;

/// The contents of one module.
#[derive(Default)]
struct Source {
    /// The module whose file contains this one.
    file: Module,
    /// The names of the module's items, without imported items.
    items: BTreeSet<String>,
    /// The path of each name that it imports.
    imports: BTreeMap<String, Module>,
    /// The modules that it imports with `*`.
    globs: Vec<Module>,
    /// The paths that it names, and whether each is in a re-export.
    paths: Vec<(Module, bool)>,
}

/// Returns the modules that each module of a crate uses. `root` is the file of the crate's root.
pub(super) fn uses(root: &Path) -> Result<Uses> {
    let mut modules = Crate::default();
    modules.load(root, Module::new(), root.parent().context("a file is in a directory")?)?;
    Ok(modules.uses())
}

#[derive(Default)]
struct Crate(BTreeMap<Module, Source>);

impl Crate {
    /// Reads a module's file and its descendants, whose files are in `folder`.
    fn load(&mut self, file: &Path, module: Module, folder: &Path) -> Result<()> {
        let parsed =
            syn::parse_file(&super::super::read(file)?).with_context(|| file.display().to_string())?;
        self.add(parsed.items, module.clone(), module, file, folder)
    }

    /// Adds a module with these items, in the file of the module `file_module`.
    fn add(
        &mut self,
        items: Vec<Item>,
        module: Module,
        file_module: Module,
        file: &Path,
        folder: &Path,
    ) -> Result<()> {
        let mut source = Source { file: file_module.clone(), ..Source::default() };
        for item in &items {
            source.visit_item(item);
        }
        self.0.insert(module.clone(), source);
        for item in items {
            let Item::Mod(child) = item else { continue };
            if is_for_tests(&child.attrs) {
                continue;
            }
            let name = child.ident.to_string();
            let path = [module.as_slice(), std::slice::from_ref(&name)].concat();
            match child.content {
                Some((_, items)) => self.add(items, path, file_module.clone(), file, &folder.join(name))?,
                None => {
                    let (file, folder) = child_file(&child.attrs, &name, file, folder);
                    self.load(&file, path, &folder)?;
                }
            }
        }
        Ok(())
    }

    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (module, source) in &self.0 {
            let used = uses.entry(source.file.clone()).or_default();
            for (path, is_reexport) in &source.paths {
                let Some(Target { module: target, is_item: true }) = self.resolve(path, module, 0) else {
                    continue;
                };
                let target = &self.0[&target].file;
                let is_ancestor = source.file.starts_with(target);
                let is_reexport_of_descendant = *is_reexport && target.starts_with(module);
                if !is_ancestor && !is_reexport_of_descendant {
                    used.insert(target.clone());
                }
            }
        }
        uses
    }

    /// Returns the target of a path in the module `from`, if the target is in this crate. `depth`
    /// is the number of imports followed so far.
    fn resolve(&self, path: &[String], from: &Module, depth: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::module(Module::new()),
            "self" => Target::module(from.clone()),
            "super" => Target::module(from[..from.len().checked_sub(1)?].to_vec()),
            name => self.lookup(name, from, depth)?,
        };
        while let (false, Some((name, after))) = (target.is_item, rest.split_first()) {
            target = match name.as_str() {
                "self" => target,
                "super" => Target::module(target.module[..target.module.len().checked_sub(1)?].to_vec()),
                "*" => Target { is_item: true, ..target },
                // A name that was not found may be an item that a macro defines.
                name => self
                    .lookup(name, &target.module, depth)
                    .unwrap_or(Target { module: target.module, is_item: true }),
            };
            rest = after;
        }
        Some(target)
    }

    /// Returns the target of a name in a module.
    fn lookup(&self, name: &str, module: &Module, depth: usize) -> Option<Target> {
        // Globs that import each other would be followed forever.
        if depth > 8 {
            return None;
        }
        let source = self.0.get(module)?;
        let child = [module.as_slice(), &[name.to_owned()]].concat();
        if self.0.contains_key(&child) {
            return Some(Target::module(child));
        }
        if source.items.contains(name) {
            return Some(Target { module: module.clone(), is_item: true });
        }
        if let Some(path) = source.imports.get(name) {
            // `use name::Item as name` and imports of other crates do not lead back here.
            return if path[0] == name { None } else { self.resolve(path, module, depth + 1) };
        }
        source.globs.iter().find_map(|glob| {
            let target = self.resolve(glob, module, depth + 1)?;
            if target.is_item { None } else { self.lookup(name, &target.module, depth + 1) }
        })
    }
}

/// The target of a path: a module, or an item of a module.
struct Target {
    module: Module,
    is_item: bool,
}

impl Target {
    fn module(module: Module) -> Target {
        Target { module, is_item: false }
    }
}

/// Returns the file of a module `mod name;` in `file`, and the folder of its children.
fn child_file(attributes: &[Attribute], name: &str, file: &Path, folder: &Path) -> (PathBuf, PathBuf) {
    let path = attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(value) => match &value.lit {
                Lit::Str(path) => Some(path.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    if let Some(path) = path {
        let file = file.with_file_name(path);
        let folder = file.parent().unwrap_or(folder).to_owned();
        return (file, folder);
    }
    let children = folder.join(name);
    let own_folder = children.join("mod.rs");
    let is_in_own_folder = crate::root().join(&own_folder).is_file();
    (if is_in_own_folder { own_folder } else { folder.join(format!("{name}.rs")) }, children)
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            Item::Use(item) => (&item.attrs, None),
            // The crate visits its modules itself.
            _ => return,
        };
        if !is_for_tests(attributes) {
            self.items.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        self.add_imports(&item.tree, Module::new(), is_reexport);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.paths.push((path.segments.iter().map(|s| s.ident.to_string()).collect(), false));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.add_paths_of_tokens(invocation.tokens.clone());
        visit::visit_macro(self, invocation);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

impl Source {
    fn add_imports(&mut self, tree: &UseTree, prefix: Module, is_reexport: bool) {
        let join = |name: &dyn ToString| [prefix.as_slice(), &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_imports(&path.tree, join(&path.ident), is_reexport),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_imports(tree, prefix.clone(), is_reexport));
            }
            UseTree::Glob(_) => {
                self.paths.push((join(&"*"), is_reexport));
                self.globs.push(prefix);
            }
            UseTree::Name(name) if name.ident == "self" => {
                self.imports.insert(prefix.last().cloned().unwrap_or_default(), prefix);
            }
            UseTree::Name(name) => self.add_import(name.ident.to_string(), join(&name.ident), is_reexport),
            UseTree::Rename(name) => self.add_import(name.rename.to_string(), join(&name.ident), is_reexport),
        }
    }

    fn add_import(&mut self, name: String, path: Module, is_reexport: bool) {
        self.paths.push((path.clone(), is_reexport));
        self.imports.insert(name, path);
    }

    /// Adds the paths of two names or more in the arguments of a macro.
    fn add_paths_of_tokens(&mut self, tokens: TokenStream) {
        let mut path = Module::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                token => {
                    self.end_path(&mut path);
                    colons = 0;
                    if let TokenTree::Group(group) = token {
                        self.add_paths_of_tokens(group.stream());
                    }
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Module) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.paths.push((path, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the modules that `user` uses in a crate of these files.
    fn uses_of(user: &str, files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("the folder of a file")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let uses = uses(&folder.path().join("lib.rs")).expect("the crate is parsed");
        let module: Module = user.split("::").map(str::to_owned).collect();
        uses[&module].iter().map(|used| used.join("::")).collect()
    }

    #[test]
    fn item_belongs_to_the_module_that_defines_it() {
        let files = |user| {
            [
                ("lib.rs", "mod a; mod b; mod user;"),
                ("a/mod.rs", "mod child; pub use child::Item; pub struct Own; use super::b::Other;"),
                ("a/child.rs", "pub struct Item;"),
                ("b.rs", "pub struct Other;"),
                ("user.rs", user),
            ]
        };
        assert_eq!(uses_of("user", &files("use crate::a::Item;")), ["a::child"]);
        assert_eq!(
            uses_of("user", &files("use super::a; fn f(_: a::Item, _: a::Own) {}")),
            ["a", "a::child"]
        );
        assert_eq!(uses_of("user", &files("fn f() { g!(x, crate::b::Other { y: 1 }); }")), ["b"]);
        assert_eq!(uses_of("user", &files("use crate::a::Other;")), ["b"]);
        assert_eq!(uses_of("user", &files("mod inner { use crate::b::*; }")), ["b"]);
        assert_eq!(uses_of("user", &files("use crate::{a, b};")), [""; 0]);
        assert_eq!(uses_of("user", &files("use std::a::Own;")), [""; 0]);
        assert_eq!(uses_of("user", &files("#[cfg(test)] mod tests { use crate::b::Other; }")), [""; 0]);
    }

    #[test]
    fn ancestors_and_reexports_of_descendants_are_not_used() {
        let files = [
            ("lib.rs", "mod a; pub use a::{Item, Other};"),
            ("a.rs", "mod child; mod sibling; pub use child::Item; use sibling::Other; struct Own;"),
            ("a/child.rs", "use super::{Other, Own}; pub struct Item;"),
            ("a/sibling.rs", "pub struct Other;"),
        ];
        assert_eq!(uses_of("a", &files), ["a::sibling"]);
        assert_eq!(uses_of("a::child", &files), ["a::sibling"]);
    }
}

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{env, fs};

use proc_macro::TokenStream;

/// Expands to the bytes of a dependency's shared library. A string literal names the dependency as
/// in Rust code (`"my_crate"`).
///
/// Where nothing is linked (`cargo check`, `cargo clippy`, an editor), cargo does not build the
/// shared library, and the macro expands to no bytes.
#[proc_macro]
pub fn shared_library(input: TokenStream) -> TokenStream {
    let input = input.to_string();
    let expression = match find(input.trim_matches('"'), &arguments(env::args())) {
        Ok(Some(library)) => format!("::core::include_bytes!({library:?})"),
        Ok(None) => "b\"\"".to_owned(),
        Err(error) => format!("::core::compile_error!({error:?})"),
    };
    expression.parse().expect("the text is one expression with a string literal")
}

/// Replaces each argument of the form `@file` (`rustc @file`) by the arguments in the file.
fn arguments(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let expand = |argument: String| match argument.strip_prefix('@').map(fs::read_to_string) {
        Some(Ok(lines)) => lines.lines().map(str::to_owned).collect(),
        _ => vec![argument],
    };
    arguments.flat_map(expand).collect()
}

/// Returns the shared library beside the `rlib` that the compiler's arguments name for a
/// dependency. Returns `None` if the arguments name no file to link with.
fn find(dependency: &str, arguments: &[String]) -> Result<Option<PathBuf>, String> {
    let values = arguments.iter().enumerate().filter_map(|(at, argument)| match argument.as_str() {
        "--extern" => arguments.get(at + 1).map(String::as_str),
        argument => argument.strip_prefix("--extern="),
    });
    let mut has_dependencies = false;
    for value in values {
        has_dependencies = true;
        // The form is [OPTION,...:]NAME[=PATH].
        let Some((name, path)) = value.split_once('=') else { continue };
        if name.rsplit(':').next() != Some(dependency) {
            continue;
        }
        let path = Path::new(path);
        if path.extension().is_some_and(|extension| extension == "rmeta") {
            return Ok(None);
        }
        let library = path.with_extension("so");
        return match library.try_exists() {
            Ok(true) => Ok(Some(library)),
            _ => Err(format!(
                "there is no {}; add \"cdylib\" to the crate-type of {dependency}",
                library.display()
            )),
        };
    }
    // An editor expands macros in a process of its own, which has no arguments of the compiler.
    if has_dependencies {
        Err(format!("{dependency} is not a dependency of this crate; add it"))
    } else {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(dependency: &str, line: &str) -> Result<Option<PathBuf>, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        find(dependency, &words)
    }

    #[test]
    fn library_is_beside_the_rlib() {
        let dir = env::temp_dir().join(format!("mitra-embed-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let library = dir.join("liba-1.so");
        fs::write(&library, "").unwrap();
        let rlib = dir.join("liba-1.rlib");
        for option in ["--extern a=", "--extern=a=", "--extern noprelude,priv:a="] {
            let line = format!("rustc --extern b --extern c=/c.rlib {option}{}", rlib.display());
            assert_eq!(find_in("a", &line), Ok(Some(library.clone())), "{line}");
        }
        let file = dir.join("arguments");
        fs::write(&file, format!("--extern\na={}\n", rlib.display())).unwrap();
        let words = arguments(["rustc".to_owned(), format!("@{}", file.display())].into_iter());
        assert_eq!(find("a", &words), Ok(Some(library)));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn nothing_is_embedded_where_nothing_is_linked() {
        assert_eq!(find_in("a", "rustc --extern a=/target/deps/liba-1.rmeta"), Ok(None));
        assert_eq!(find_in("a", "rust-analyzer-proc-macro-srv"), Ok(None));
    }

    #[test]
    fn missing_library_or_dependency_is_an_error() {
        let error = find_in("a", "rustc --extern a=/no/such/liba.rlib").unwrap_err();
        assert!(error.contains("/no/such/liba.so") && error.contains("cdylib"), "{error}");
        let error = find_in("a", "rustc --extern b=/liba.rlib").unwrap_err();
        assert!(error.contains("a is not a dependency"), "{error}");
    }
}

//! Options for programs that were built with a sanitizer.
//!
//! AddressSanitizer of GCC refuses a program in which another library precedes its own, as a
//! preloaded one does. ThreadSanitizer sees the memory that Mitra's library writes by functions of
//! the C library, but not the locks of that library, which was built without it, and so reports
//! races that are none. With a kernel driver, these copies would be the kernel's.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::digest_file::{self, DigestFile, Kind};

const TSAN_OPTIONS: &str = "TSAN_OPTIONS";
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
/// ThreadSanitizer ignores the functions that it intercepts when a library calls them whose path
/// contains this text.
const SUPPRESSION: &str = "called_from_lib:libmitra_preload";
const SUPPRESSIONS: Kind = Kind { begins: "tsan-suppressions-", ends: ".txt" };

/// The sanitizers that need options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sanitizer {
    Address,
    Thread,
}

impl Sanitizer {
    /// A function of ThreadSanitizer that a program exports if it contains ThreadSanitizer.
    pub(super) const THREAD_FUNCTION: &str = "__tsan_init";

    /// Returns the sanitizer whose library, of GCC or Clang, is among a program's libraries.
    pub(super) fn among(libraries: &str) -> Option<Sanitizer> {
        let has = |names: [&str; 2]| names.iter().any(|name| libraries.contains(name));
        if has(["libasan.so", "libclang_rt.asan"]) {
            Some(Sanitizer::Address)
        } else if has(["libtsan.so", "libclang_rt.tsan"]) {
            Some(Sanitizer::Thread)
        } else {
            None
        }
    }

    /// Returns a note for the user.
    pub(super) fn note(self, program: &Path, options: &Options) -> String {
        let program = program.display();
        match (self, &options.unread) {
            (Sanitizer::Address, _) => format!(
                "{program} has AddressSanitizer; {ASAN_OPTIONS} allows it that Mitra's library is loaded first (verify_asan_link_order=0)"
            ),
            (Sanitizer::Thread, None) => format!(
                "{program} has ThreadSanitizer; {TSAN_OPTIONS} names suppressions that leave Mitra's library out of the reports"
            ),
            (Sanitizer::Thread, Some(unread)) => format!(
                "{program} has ThreadSanitizer, and {} cannot be read to add Mitra's library to these suppressions; add the line {SUPPRESSION}",
                unread.display()
            ),
        }
    }
}

/// The environment variables with the options.
pub(super) struct Options {
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// The user's file of suppressions that cannot be read. The user's options then stay.
    pub(super) unread: Option<PathBuf>,
}

/// Returns the options. Every program gets them, because a script may start one with a sanitizer,
/// and other programs do not read them. Writes a file to `dir`.
///
/// # Errors
/// Fails if the file cannot be written.
pub(super) fn options(dir: &Path) -> anyhow::Result<Options> {
    let of_user = |name| env::var_os(name).unwrap_or_default();
    let address = of_user(ASAN_OPTIONS);
    let address = match option(&address, "verify_asan_link_order") {
        Some(_) => address,
        None => joined(&address, OsStr::new("verify_asan_link_order=0")),
    };
    let mut options = Options { variables: vec![(ASAN_OPTIONS, address)], unread: None };
    let thread = of_user(TSAN_OPTIONS);
    let own = option(&thread, "suppressions").filter(|path| !path.is_empty()).map(PathBuf::from);
    let own = match own.map(|path| fs::read(&path).map_err(|_| path)).transpose() {
        Ok(own) => own.unwrap_or_default(),
        Err(unread) => {
            options.unread = Some(unread);
            return Ok(options);
        }
    };
    let file = digest_file::write(&DigestFile::new(SUPPRESSIONS, &with_suppression(own)), dir)?;
    // The last value of an option counts.
    options.variables.push((TSAN_OPTIONS, joined(&thread, &suppressions_option(&file))));
    Ok(options)
}

/// Adds the line for Mitra's library, if it is not there yet.
fn with_suppression(mut suppressions: Vec<u8>) -> Vec<u8> {
    if !suppressions.split(|&byte| byte == b'\n').any(|line| line == SUPPRESSION.as_bytes()) {
        if suppressions.last().is_some_and(|&last| last != b'\n') {
            suppressions.push(b'\n');
        }
        suppressions.extend_from_slice(SUPPRESSION.as_bytes());
        suppressions.push(b'\n');
    }
    suppressions
}

/// The path is in quotes, because spaces, commas and colons separate options.
fn suppressions_option(file: &Path) -> OsString {
    let quote = if file.as_os_str().as_bytes().contains(&b'"') { "'" } else { "\"" };
    let mut option = OsString::from("suppressions=");
    for part in [OsStr::new(quote), file.as_os_str(), OsStr::new(quote)] {
        option.push(part);
    }
    option
}

fn joined(options: &OsStr, option: &OsStr) -> OsString {
    let mut joined = options.to_owned();
    if !joined.is_empty() {
        joined.push(":");
    }
    joined.push(option);
    joined
}

/// Returns the last value of an option, as the sanitizers read their variables
/// (`sanitizer_flag_parser.cpp`): separators are white space, commas and colons; a value may be in
/// quotes.
fn option(options: &OsStr, wanted: &str) -> Option<OsString> {
    let is_separator = |byte: &u8| b" ,:\t\n\r".contains(byte);
    let (mut rest, mut found) = (options.as_bytes(), None);
    while let Some(begin) = rest.iter().position(|byte| !is_separator(byte)) {
        rest = &rest[begin..];
        let name_end = rest.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&rest[..name_end], &rest[name_end + 1..]);
        let (value, after) = match value.first() {
            Some(quote @ (b'"' | b'\'')) => {
                let end = 1 + value[1..].iter().position(|byte| byte == quote)?;
                (&value[1..end], &value[end + 1..])
            }
            _ => value.split_at(value.iter().position(is_separator).unwrap_or(value.len())),
        };
        if name == wanted.as_bytes() {
            found = Some(OsString::from_vec(value.to_vec()));
        }
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_value_of_an_option_counts() {
        let found = |options: &str| option(OsStr::new(options), "suppressions");
        let is = |path: &str| Some(OsString::from(path));
        assert_eq!(found(""), None);
        assert_eq!(found("halt_on_error=1:exitcode=3"), None);
        assert_eq!(found("xsuppressions=/a"), None);
        assert_eq!(found("suppressions=/a"), is("/a"));
        assert_eq!(found("suppressions=/a,exitcode=3 suppressions=/b\n"), is("/b"));
        assert_eq!(found("suppressions='/a:b c' exitcode=3"), is("/a:b c"));
        assert_eq!(found(suppressions_option(Path::new("/a \"b")).to_str().unwrap()), is("/a \"b"));
    }

    #[test]
    fn suppression_is_added_once() {
        let whole = format!("race:own\n{SUPPRESSION}\n").into_bytes();
        assert_eq!(with_suppression(b"race:own".to_vec()), whole);
        assert_eq!(with_suppression(whole.clone()), whole);
        assert_eq!(with_suppression(Vec::new()), format!("{SUPPRESSION}\n").into_bytes());
    }
}

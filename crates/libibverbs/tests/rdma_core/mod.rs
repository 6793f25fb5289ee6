//! Access to the installed rdma-core and C compiler, for several test files.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::Path;
use std::process::{Command, Output};

use mitra_test_process::command;

const ADVICE: &str = "this test needs gcc, binutils and libibverbs-dev: run `cargo xtask setup`";

/// Runs a command and returns its standard output.
///
/// # Panics
///
/// See [`stdout_of`].
pub fn output_of(command: &mut Command) -> String {
    let output = mitra_test_process::output(command);
    stdout_of(command, output)
}

/// Returns the standard output of a command that has ended. A failed command panics with its
/// output, and a failed compiler also with advice about missing headers.
pub fn stdout_of(command: &Command, output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let advice = if command.get_args().any(|word| word == "cc") { ADVICE } else { "" };
    assert!(output.status.success(), "{command:?}: {}\n{stderr}\n{advice}", output.status);
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

pub fn compile(source: &str, to: &Path, options: &[&str]) {
    let file = to.with_extension("c");
    std::fs::write(&file, source).expect("the directory is writable");
    output_of(command("cc").args(options).arg(&file).arg("-o").arg(to));
}

/// Returns the path of the installed `libibverbs.so.1`, as the compiler finds it.
pub fn installed_library() -> String {
    let path = output_of(command("cc").arg("-print-file-name=libibverbs.so.1")).trim().to_owned();
    assert!(Path::new(&path).is_absolute(), "the compiler finds no libibverbs.so.1; {ADVICE}");
    path
}

/// Returns the dynamic symbols that a library defines, sorted: the name with its version, and
/// `FUNC` or `OBJECT`.
pub fn definitions(library: &str) -> Vec<(String, String)> {
    let table = output_of(command("readelf").args(["--dyn-syms", "-W"]).arg(library));
    let mut found = Vec::new();
    for line in table.lines() {
        // The columns are Num: Value Size Type Bind Vis Ndx Name
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, _, _, section, name, ..] = columns[..] else { continue };
        // The version nodes themselves are in section ABS.
        if section.parse::<u32>().is_ok() {
            found.push((name.to_owned(), kind.to_owned()));
        }
    }
    found.sort();
    found
}

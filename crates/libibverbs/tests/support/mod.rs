//! What both tests need of the installed rdma-core.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::Path;
use std::process::Command;

/// What to do where something is missing.
const WAY_OUT: &str = "this test needs gcc, binutils and libibverbs-dev: run `cargo xtask setup`";

/// Runs a command and gives what it printed; a failure fails the test and says the way out.
pub fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; {WAY_OUT}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{WAY_OUT}", output.status);
    String::from_utf8(output.stdout).expect("tools print UTF-8")
}

/// Compiles `source` to `to`.
pub fn compile(source: &str, to: &Path, options: &[&str]) {
    let file = to.with_extension("c");
    std::fs::write(&file, source).expect("can write the C file");
    output_of(Command::new("cc").args(options).arg(&file).arg("-o").arg(to));
}

/// The installed `libibverbs.so.1`, as the compiler finds it.
pub fn installed_library() -> String {
    let path = output_of(Command::new("cc").arg("-print-file-name=libibverbs.so.1")).trim().to_owned();
    assert!(Path::new(&path).is_absolute(), "the compiler finds no libibverbs.so.1; {WAY_OUT}");
    path
}

/// The definitions among a library's dynamic symbols, sorted: name with version, and `FUNC` or `OBJECT`.
pub fn definitions(library: &str) -> Vec<(String, String)> {
    let table = output_of(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(library));
    let mut found = Vec::new();
    for line in table.lines() {
        // Num: Value Size Type Bind Vis Ndx Name
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, _, _, section, name, ..] = columns[..] else { continue };
        // ABS are the nodes themselves.
        if section.parse::<u32>().is_ok() {
            found.push((name.to_owned(), kind.to_owned()));
        }
    }
    found.sort();
    found
}

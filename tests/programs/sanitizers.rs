//! Programs that were built with a sanitizer run under `mitra run` as they are.

use std::process::Command;

use mitra_test_process::command;

use super::build_programs::{compile, output_of};

fn under_mitra(rails: &str) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_mitra"));
    command.args(["run", "--rails", rails, "--"]);
    command.env_remove("TSAN_OPTIONS").env_remove("ASAN_OPTIONS");
    command
}

/// Runs a program that writes to itself, and checks that `mitra run` names the sanitizer.
fn runs_with_note(command: &mut Command, note: &str) -> Result<(), String> {
    let text = output_of(command)?;
    if text.contains("written by mitra0") && text.contains(note) { Ok(()) } else { Err(text) }
}

/// ThreadSanitizer ends a program with code 66 after any report. Without options, it reports the
/// copies of Mitra's threads over two rails.
pub(crate) fn tsan() -> Result<(), String> {
    let flags = ["-g", "-fsanitize=thread", "-libverbs"];
    let program = compile("write_to_self.c", "with-thread-sanitizer", &flags);
    for rails in ["1", "2"] {
        runs_with_note(under_mitra(rails).arg(&program), "has ThreadSanitizer; TSAN_OPTIONS names")?;
    }
    // `mitra run` sees only the shell.
    output_of(under_mitra("2").args(["sh", "-c", "\"$0\" && exit"]).arg(program)).map(drop)
}

/// A program that contains the sanitizer itself is recognised by the functions that it exports, as
/// one of Clang is.
pub(crate) fn tsan_in_the_program() -> Result<(), String> {
    let flags = ["-g", "-fsanitize=thread", "-static-libtsan", "-rdynamic", "-libverbs"];
    let program = compile("write_to_self.c", "contains-thread-sanitizer", &flags);
    runs_with_note(under_mitra("2").arg(program), "has ThreadSanitizer; TSAN_OPTIONS names")
}

/// AddressSanitizer ends a program at its start if another library was loaded first.
pub(crate) fn asan() -> Result<(), String> {
    let flags = ["-g", "-fsanitize=address", "-libverbs"];
    let program = compile("write_to_self.c", "with-address-sanitizer", &flags);
    // The program does not free what it uses.
    let own_options = |rails| {
        let mut command = under_mitra(rails);
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    };
    runs_with_note(own_options("2").arg(&program), "has AddressSanitizer; ASAN_OPTIONS allows")?;
    output_of(own_options("1").args(["sh", "-c", "\"$0\" && exit"]).arg(program)).map(drop)
}

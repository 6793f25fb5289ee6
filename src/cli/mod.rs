//! The subcommands of `mitra`. The module of each subcommand has its arguments, `Args`, and its
//! function `run`.

/// What help says of fault scripts.
macro_rules! faults_in_help {
    () => {
        "A fault is a rail, what happens to it, and optionally `at` DELAY (500ms, 2s). Semicolons separate faults. What happens:
  down, up           the link loses all packets; `up` ends this and not-placed
  nic-dead           the NIC does nothing any more
  nic-hung           the NIC executes and answers what arrives, and its program can neither post nor poll any more
  not-placed         the NIC acknowledges what it receives, and places it in memory at `up`, unless the NIC dies
  FAILURE@STAGE:NTH  link-down, nic-dead or nic-hung when the NTH packet from then on reaches a stage, as in link-down@6:40
                     (`mitra demo --help` lists the stages)
  noise KIND=RATE    packets are lost (drop), copied (dup), changed (corrupt) or overtaken (reorder, which needs delay=50us),
                     as in drop=1000ppm,dup=10ppm; `noise none` ends it
  address ADDRESS    the rail gets another address; `free` takes a free one
NICs of the kernel: down, up and nic-dead. docs/faults.md says more.
"
    };
}

/// What help says of processes and memory nodes on several machines.
macro_rules! machines_in_help {
    () => {
        "ADDRESS is an IP address, not a host name. On several machines, every process and memory node needs --rails with addresses
of its own machine, in the same order, and the same --secret.
"
    };
}

pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod decode;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod fault;
pub(crate) mod help;
pub(crate) mod man;
pub(crate) mod run;
pub(crate) mod second_process;
pub(crate) mod seeded_runs;
mod text_table;
pub(crate) mod topology;
pub(crate) mod txn;
pub(crate) mod watch;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches};
use serde::Serialize;

/// Returns whether the reader of the output has closed the pipe, as `| head` does. `mitra` then
/// exits with success.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Writes a message to standard error. If standard error is closed or full, the message is lost,
/// and only the exit code reports the error.
pub(crate) fn complain(message: impl Display) {
    let _ = writeln!(io::stderr(), "mitra: {}", without_error_numbers(&message.to_string()));
}

/// Removes the numbers that Rust appends to the texts of the operating system's errors: " (os error
/// 2)".
fn without_error_numbers(message: &str) -> String {
    let mut parts = message.split(" (os error ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => text.push_str(rest),
            _ => text.extend([" (os error ", part]),
        }
    }
    text
}

/// Writes a value as one line of JSON.
pub(crate) fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

/// Describes an error of a command in one line.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    // Only writing the output fails with a bare error of this kind. Files are named.
    let is_full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    if error.downcast_ref::<io::Error>().is_some_and(is_full) && error.chain().count() == 1 {
        return format!("cannot write the output; redirect it to a disk with free space: {error}");
    }
    format!("{error:#}")
}

/// Parses the command line. On an error, prints one line that refers to `--help`, and exits with
/// code 2.
pub(crate) fn parse<T: FromArgMatches>(command: Command) -> T {
    let words = without_help_command(&command, std::env::args_os().collect());
    command.try_get_matches_from(words).and_then(|matches| T::from_arg_matches(&matches)).unwrap_or_else(
        |error| match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => {
                complain(in_one_line(&error.to_string()));
                std::process::exit(2);
            }
        },
    )
}

/// Removes `help` from a command line such as `mitra kv help --help`, so that it shows the help of
/// `mitra kv`. clap's command `help` has no options.
fn without_help_command(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let mut parent = command;
    for at in 1..words.len() {
        let asks = || words[at + 1..].iter().any(|word| word == "--help" || word == "-h");
        if words[at] == "help" && parent.has_subcommands() && asks() {
            words.remove(at);
            break;
        }
        match parent.find_subcommand(&words[at]) {
            Some(child) => parent = child,
            None => break,
        }
    }
    words
}

/// The standard library's reasons for the refusal of a value, each with the correction.
const VALUE_REASONS: [(&str, &str); 5] = [
    ("invalid digit found in string", "use a whole number"),
    ("cannot parse integer from empty string", "use a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid socket address syntax", "use ADDRESS:PORT, for example 127.0.0.1:7001"),
    ("invalid UTF-8 was detected in one or more arguments", "an argument is not UTF-8; use UTF-8"),
];

/// Shortens clap's message to its first paragraph and its tips.
fn in_one_line(message: &str) -> String {
    let mut line = String::new();
    for (i, paragraph) in message.split("\n\n").map(str::trim).enumerate() {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if i == 0 {
            line.push_str(paragraph.strip_prefix("error: ").unwrap_or(&paragraph));
        } else if let Some(tip) = paragraph.strip_prefix("tip: ")
            // This tip suggests that an unknown option is a value.
            && !tip.starts_with("to pass '")
        {
            line.push_str("; ");
            line.push_str(tip);
        }
    }
    for (reason, instead) in VALUE_REASONS {
        line = line.replace(reason, instead);
    }
    line.push_str("; see --help");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_removed() {
        let message = "cannot open a: No such file or directory (os error 2)";
        assert_eq!(without_error_numbers(message), "cannot open a: No such file or directory");
        assert_eq!(without_error_numbers("x (os error 2): y (os error 13), z"), "x: y, z");
        assert_eq!(without_error_numbers("a file (os error x) and"), "a file (os error x) and");
    }

    #[test]
    fn help_of_the_command_help_is_that_of_its_parent() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, becomes) in [
            ("mitra help --help", "mitra --help"),
            ("mitra kv help --help", "mitra kv --help"),
            ("mitra kv help -h", "mitra kv -h"),
            ("mitra help kv --help", "mitra kv --help"),
            ("mitra help kv", "mitra help kv"),
            ("mitra run -- help --help", "mitra run -- help --help"),
            ("mitra run help --help", "mitra run help --help"),
            ("mitra kv get help --help", "mitra kv get help --help"),
        ] {
            let given = without_help_command(&crate::command(), words(line));
            assert_eq!(given, words(becomes), "{line}");
        }
    }

    #[test]
    fn clap_message_is_shortened_to_one_line() {
        let message = "error: unexpected argument '--op' found\n\n  tip: a similar argument exists: '--ops'\n\n\
                       Usage: mitra demo --ops <OPS>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            in_one_line(message),
            "unexpected argument '--op' found; a similar argument exists: '--ops'; see --help"
        );
    }
}

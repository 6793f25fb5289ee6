//! The subcommands of `mitra`. The module of each subcommand has its arguments, `Args`, and its function `run`.

pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod decode;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod fault;
pub(crate) mod man;
pub(crate) mod run;
pub(crate) mod second_process;
pub(crate) mod seeded_runs;
mod svg_units;
mod text_table;
pub(crate) mod topology;

use std::io;

use clap::Parser;
use clap::error::ErrorKind;

/// Returns whether the reader of the output has closed the pipe, as `| head` does. `mitra` then exits with success.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Parses the command line. On an error, prints one line that refers to `--help`, and exits with code 2.
pub(crate) fn parse<T: Parser>() -> T {
    T::try_parse().unwrap_or_else(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => {
            eprintln!("mitra: {}", in_one_line(&error.to_string()));
            std::process::exit(2);
        }
    })
}

/// Shortens clap's message to its first paragraph and its tips.
fn in_one_line(message: &str) -> String {
    let mut line = String::new();
    for (i, paragraph) in message.split("\n\n").map(str::trim).enumerate() {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if i == 0 {
            line.push_str(paragraph.strip_prefix("error: ").unwrap_or(&paragraph));
        } else if let Some(tip) = paragraph.strip_prefix("tip: ") {
            line.push_str("; ");
            line.push_str(tip);
        }
    }
    line.push_str("; see --help");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

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

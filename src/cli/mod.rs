//! The subcommands of `mitra`, one file each with its `Args` and its `run`.

pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod decode;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod fault;
mod page;
pub(crate) mod peer;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod topology;

use std::io;

use clap::Parser;
use clap::error::ErrorKind;

/// Whether the reader of our output went away, as `| head` does: the end of our work, not a failure.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// The command line; what is wrong with it is said in one line that names the way out, and the exit code is 2.
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

/// The first paragraph of clap's message and its tips; its usage and its pointer to the help, shortened.
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
    line.push_str("; --help tells more");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_several_paragraphs_becomes_a_line() {
        let message = "error: unexpected argument '--op' found\n\n  tip: a similar argument exists: '--ops'\n\n\
                       Usage: mitra demo --ops <OPS>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            in_one_line(message),
            "unexpected argument '--op' found; a similar argument exists: '--ops'; --help tells more"
        );
    }
}

//! `mitra completions`: prints the completions of a shell, from the definitions of the command
//! line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Print the completions for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  D=~/.local/share/bash-completion/completions; mkdir -p $D; mitra completions bash > $D/mitra
  mkdir -p ~/.zfunc; mitra completions zsh > ~/.zfunc/_mitra   (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  mkdir -p ~/.config/fish/completions; mitra completions fish > ~/.config/fish/completions/mitra.fish
Exit codes: 0 success, 2 bad arguments.")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the completions of `command`, the whole command line.
pub(crate) fn run(args: &Args, command: &Command) -> anyhow::Result<ExitCode> {
    // The generators complete hidden commands too.
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    let mut visible = Command::new("mitra").version(env!("CARGO_PKG_VERSION")).subcommands(visible);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible, "mitra", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

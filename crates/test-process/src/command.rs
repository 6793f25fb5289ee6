//! Commands that reset what a test process may have inherited.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Makes the kernel kill the process when the thread that started it ends.
static SETPRIV: LazyLock<PathBuf> = LazyLock::new(|| tool("setpriv", "util-linux"));
/// Gives all signals their default dispositions. Processes inherit ignored signals: a shell starts
/// background commands with SIGINT ignored, and nohup(1) ignores SIGHUP.
static ENV: LazyLock<PathBuf> = LazyLock::new(|| tool("env", "coreutils"));

/// The number of words before the program: arguments of setpriv, the path of env, and arguments of
/// env. [`program_of`] skips these words.
const BEFORE: usize = 5;

/// Returns a command that runs `program` as described in the [crate's documentation](crate).
///
/// The process becomes the program by exec, so its id is the program's.
///
/// # Panics
///
/// Panics if `setpriv` or `env` is not installed.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    with_preload(OsString::new(), program.as_ref())
}

/// Like [`command`], with a library in `LD_PRELOAD`. The variable is set for the program only, so
/// that the library is not loaded into the tools that start it.
///
/// # Panics
///
/// Panics if `setpriv` or `env` is not installed.
pub fn preloaded(library: &Path, program: impl AsRef<OsStr>) -> Command {
    with_preload(library.into(), program.as_ref())
}

fn with_preload(library: OsString, program: &OsStr) -> Command {
    let mut command = Command::new(&*SETPRIV);
    command.args(["--pdeathsig", "KILL", "--"]).arg(&*ENV).arg("--default-signal");
    if !library.is_empty() {
        let mut assignment = OsString::from("LD_PRELOAD=");
        assignment.push(library);
        command.arg(assignment);
    }
    // A test in a background process group would be stopped if it read from the terminal.
    command.arg(program).stdin(Stdio::null());
    command
}

/// Returns a command's program and arguments, without the words that [`command`] puts before them.
pub(crate) fn program_of(command: &Command) -> Vec<&OsStr> {
    let is_ours = command.get_program() == SETPRIV.as_os_str();
    let before = if is_ours { BEFORE } else { 0 };
    let whole = command.get_args().skip(before);
    let whole = whole.skip_while(|word| is_ours && word.as_encoded_bytes().starts_with(b"LD_PRELOAD="));
    if is_ours { whole.collect() } else { std::iter::once(command.get_program()).chain(whole).collect() }
}

/// Returns the command line for messages.
pub(crate) fn line(command: &Command) -> String {
    program_of(command).iter().map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Panics if the program of a command does not exist: the tools that start it would only end with
/// code 127.
pub(crate) fn require_program(command: &Command) {
    let Some(&program) = program_of(command).first() else { panic!("{command:?} has no program") };
    let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
    let path = path.map(OsStr::to_owned).or_else(|| env::var_os("PATH")).unwrap_or_default();
    let exists = if program.as_encoded_bytes().contains(&b'/') {
        command.get_current_dir().unwrap_or(Path::new("")).join(program).exists()
    } else {
        find(program, &path).is_some()
    };
    assert!(
        exists,
        "cannot start {}: there is no such program; `cargo xtask setup` installs what the tests need",
        program.display()
    );
}

fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Returns the path of a tool. It must be absolute, because a test may give the program another
/// `PATH`.
fn tool(name: &str, package: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = find(name.as_ref(), &path).and_then(|file| std::path::absolute(file).ok());
    found.unwrap_or_else(|| panic!("tests start processes with {name}: install Debian's package {package}"))
}

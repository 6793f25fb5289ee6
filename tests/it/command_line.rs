//! Properties of every command: `--json`, completions, manual pages, and texts without Rust's debug
//! format.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use mitra_test_process::{command, output};
use serde_json::{Value, json};

fn mitra(words: &[&str]) -> Output {
    output(command(env!("CARGO_BIN_EXE_mitra")).args(words))
}

/// Returns the standard output of a command that succeeds.
fn text(words: &[&str]) -> String {
    let output = mitra(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// Returns every command with its subcommands, such as `kv get`, and its help.
fn commands() -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let mut words: Vec<&str> = path.iter().map(String::as_str).collect();
        words.push("--help");
        let help = text(&words);
        // Those of `mitra` are in groups, which precede its options.
        let listed = match path.is_empty() {
            true => help.split_once("\nOptions:\n").map(|(groups, _)| groups),
            false => {
                help.split_once("\nCommands:\n").map(|(_, rest)| rest.split("\n\n").next().unwrap_or(rest))
            }
        };
        for line in listed.unwrap_or_default().lines() {
            // A name is indented by two spaces, and a description that is continued by more.
            let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
            match name.and_then(|rest| rest.split_whitespace().next()) {
                Some("help") | None => {}
                Some(name) => open.push([path.clone(), vec![name.to_owned()]].concat()),
            }
        }
        if listed.is_none() {
            found.push((path, help));
        }
    }
    found
}

#[test]
fn every_command_with_a_result_takes_json() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:?}");
    for (path, help) in commands {
        // `run` becomes the program, `completions` writes for a shell, and `man` for man(1).
        let has_result = !["run", "completions", "man"].contains(&path[0].as_str());
        assert_eq!(help.contains("--json"), has_result, "{path:?}: {help}");
    }
}

#[test]
fn help_of_help_is_that_of_the_parent() {
    assert_eq!(text(&["help", "--help"]), text(&["--help"]));
    assert_eq!(text(&["kv", "help", "--help"]), text(&["kv", "--help"]));
    assert_eq!(text(&["help", "kv", "get", "--help"]), text(&["kv", "get", "--help"]));
}

#[test]
fn exploration_in_a_browser_excludes_json() {
    let output = mitra(&["check", "paxos", "--explore", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--explore") && said.contains("cannot be used with '--json'"), "{said}");
    let list: Value = serde_json::from_str(&text(&["check", "--list", "--json"])).expect("one JSON object");
    assert!(
        list["protocols"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == "paxos")),
        "{list}"
    );
}

#[test]
fn key_is_reported_as_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("key");
    let report: Value = serde_json::from_str(&text(&["key", "--json", file.to_str().expect("a path")]))
        .expect("one JSON object");
    assert_eq!(report["file"], json!(file));
    assert_eq!(report["public_key"].as_str().map(str::len), Some(64), "{report}");
}

/// Returns the long options in a help text.
fn options(help: &str) -> BTreeSet<&str> {
    let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.len() > 2 && word.starts_with("--")).collect()
}

#[test]
fn completions_have_every_command_and_option() {
    let commands = commands();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for (path, help) in &commands {
            let name = path.last().expect("a command has a name");
            assert!(script.contains(name.as_str()), "{shell}: {path:?}");
            // Other sections of a help text name options of other programs and commands.
            let own = help.split_once("\nOptions:\n").map_or("", |(_, rest)| rest);
            let own =
                own.lines().filter(|line| line.trim_start().starts_with('-')).collect::<Vec<_>>().join("\n");
            for option in options(&own) {
                let bare = option.trim_start_matches('-');
                let has = script.contains(option) || script.contains(&format!("-l {bare}"));
                assert!(has, "{shell}: {path:?} {option}");
            }
        }
        assert!(!script.contains("demo-server"), "{shell}: the hidden command is not for users");
    }
}

#[test]
fn bash_completes_with_the_script() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("mitra.bash");
    fs::write(&script, text(&["completions", "bash"])).expect("written");
    let complete =
        "source \"$1\"; COMP_WORDS=(mitra kv g); COMP_CWORD=2; _mitra mitra g kv; echo \"${COMPREPLY[@]}\"";
    let output = output(command("bash").args(["-c", complete, "bash"]).arg(&script));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "get\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn manual_pages_are_complete_and_valid() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man1");
    text(&["man", pages.to_str().expect("a path")]);
    for (path, help) in commands() {
        let page = pages.join(format!("mitra-{}.1", path.join("-")));
        // All warnings, except for warnings about lines that cannot be adjusted to the width.
        let flags = ["-Kutf8", "-man", "-Tutf8", "-ww", "-Wbreak", "-P-cbou"];
        let output = output(command("groff").args(flags).arg(&page));
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", page.display());
        let formatted = String::from_utf8_lossy(&output.stdout);
        let title = format!("mitra-{}(1)", path.join("-"));
        assert!(formatted.starts_with(&title), "{formatted}");
        let own =
            help.lines().filter(|line| line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
        for option in options(&own) {
            assert!(formatted.contains(option), "{}: {option}", page.display());
        }
    }
    let overview = fs::read_to_string(pages.join("mitra.1")).expect("the overview exists");
    assert!(overview.contains("mitra\\-run(1)") && !overview.contains("peer"), "{overview}");
}

/// docs/run.md names this version. The library that `mitra run` preloads is in the program, and its
/// symbols are those of the file beside it.
#[test]
fn program_and_library_need_no_glibc_after_2_34() {
    let program = Path::new(env!("CARGO_BIN_EXE_mitra"));
    for file in [program.to_owned(), program.with_file_name("deps/libmitra_preload.so")] {
        let output = output(command("objdump").arg("--dynamic-syms").arg(&file));
        let symbols = String::from_utf8(output.stdout).expect("the names of symbols are UTF-8");
        let minor = |line: &str| -> Option<u32> {
            line.split_once("GLIBC_2.")?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        assert!(symbols.lines().any(|line| minor(line) == Some(34)), "{}: {symbols}", file.display());
        let newer: Vec<&str> = symbols.lines().filter(|line| minor(line) > Some(34)).collect();
        assert!(newer.is_empty(), "{} needs {newer:#?}", file.display());
    }
}

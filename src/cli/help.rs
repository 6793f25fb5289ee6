//! The list of commands in `mitra --help`, in groups. clap has no groups of subcommands.

use std::fmt::Write;

use clap::Command;

/// The groups, each with its commands.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run programs", &["run", "demo", "devices"]),
    ("Watch and break", &["watch", "fault", "decode"]),
    ("Stores and agreement", &["kv", "txn", "memory", "propose", "elect", "key"]),
    ("Check and simulate", &["check", "sim", "topology"]),
    ("Measure", &["bench"]),
    ("Help", &["man", "completions", "help"]),
];

/// Replaces the list of commands in the help of `command` by one in groups.
pub(crate) fn with_groups(command: Command) -> Command {
    // The command `help` exists only in a command that was built.
    let mut built = command.clone();
    built.build();
    let (header, literal) = (*built.get_styles().get_header(), *built.get_styles().get_literal());
    let width = built.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut template = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let mut add = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = template.write_fmt(line);
    };
    for (group, names) in GROUPS {
        add(format_args!("\n{header}{group}:{header:#}\n"));
        for command in names.iter().filter_map(|name| built.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            add(format_args!("  {literal}{:width$}{literal:#}  {about}\n", command.get_name()));
        }
    }
    add(format_args!("\n{header}Options:{header:#}\n{{options}}{{after-help}}"));
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::error::ErrorKind;

    use super::*;

    /// The commands that `mitra --help` shows.
    fn built() -> Command {
        let mut command = crate::command();
        command.build();
        command
    }

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let built = built();
        let mut shown: Vec<_> =
            built.get_subcommands().filter(|it| !it.is_hide_set()).map(Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn help_shows_each_command_once_with_its_summary() {
        let help = crate::command().render_help().to_string();
        for command in built().get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = command.get_about().expect("a summary").to_string();
            let line = format!("  {:11}  {about}", command.get_name());
            assert_eq!(help.lines().filter(|shown| *shown == line).count(), 1, "{line}\n{help}");
        }
        for part in ["Usage: mitra <COMMAND>", "Run programs:", "Options:\n  -h, --help", "Exit codes:"] {
            assert!(help.contains(part), "{part}\n{help}");
        }
    }

    /// Splits a line of a shell script into its simple commands. Redirections are dropped.
    fn simple_commands(line: &str) -> Vec<Vec<String>> {
        let mut commands = vec![vec![String::new()]];
        let (mut quoted, mut redirected) = (false, false);
        for letter in line.chars() {
            let commands_so_far = commands.len();
            let words = &mut commands[commands_so_far - 1];
            let last = words.len() - 1;
            match letter {
                '\'' => quoted = !quoted,
                _ if quoted => words[last].push(letter),
                ';' | '|' | '&' => {
                    redirected = false;
                    commands.push(vec![String::new()]);
                }
                '>' => redirected = true,
                _ if redirected => {}
                ' ' => words.push(String::new()),
                _ => words[last].push(letter),
            }
        }
        commands.iter_mut().for_each(|words| words.retain(|word| !word.is_empty()));
        commands
    }

    /// Returns the calls of `mitra` in the examples of a help text, with their variables replaced.
    /// Loop variables are 0.
    fn examples(help: &str) -> Vec<Vec<String>> {
        let mut variables: HashMap<String, String> = HashMap::new();
        let mut found = Vec::new();
        let section = help.lines().skip_while(|line| !line.starts_with("Example")).skip(1);
        for line in section.take_while(|line| line.starts_with("  ")) {
            let line = line.split("   (").next().unwrap_or_default().trim();
            for mut words in simple_commands(line) {
                for word in &mut words {
                    for (name, value) in &variables {
                        *word = word.replace(&format!("${name}"), value);
                    }
                }
                match words.first().map(String::as_str) {
                    Some("do") => drop(words.remove(0)),
                    Some("mitra") => {}
                    _ => {
                        let assigned = words.iter().filter_map(|word| word.split_once('='));
                        variables.extend(assigned.map(|(name, value)| (name.to_owned(), value.to_owned())));
                        if words.first().is_some_and(|word| word == "for") {
                            variables.insert(words[1].clone(), "0".to_owned());
                        }
                    }
                }
                if words.first().is_some_and(|word| word == "mitra") {
                    found.push(words);
                }
            }
        }
        found
    }

    fn help_of(command: &Command) -> String {
        let texts = [command.get_after_help(), command.get_after_long_help()];
        texts.into_iter().flatten().map(|text| format!("{text}\n")).collect()
    }

    /// Calls `each` with every command that has no subcommands, its parent and its name.
    fn each_leaf(command: &Command, path: &str, each: &mut impl FnMut(&Command, &Command, &str)) {
        for child in command.get_subcommands() {
            let name = format!("{path} {}", child.get_name());
            if child.is_hide_set() || child.get_name() == "help" {
            } else if child.has_subcommands() {
                each_leaf(child, &name, each);
            } else {
                each(child, command, &name);
            }
        }
    }

    /// Each command shows how it is called. The commands of a store may show it together.
    #[test]
    fn every_command_has_examples_that_parse() {
        let (mut parsed, mut refused) = (0, Vec::new());
        each_leaf(&built(), "mitra", &mut |command, parent, name| {
            let own = examples(&help_of(command));
            let shown = if own.is_empty() { examples(&help_of(parent)) } else { own.clone() };
            assert!(!shown.is_empty(), "{name} has no examples");
            let calls = |words: &Vec<String>| words.join(" ").starts_with(name);
            assert!(own.is_empty() || own.iter().any(calls), "{name}: no example calls it");
            for words in shown {
                parsed += 1;
                match crate::command().try_get_matches_from(&words) {
                    Err(error) if error.kind() != ErrorKind::DisplayHelp => {
                        refused.push(format!("{}: {error}", words.join(" ")));
                    }
                    _ => {}
                }
            }
        });
        assert_eq!(refused, [""; 0]);
        assert!(parsed > 60, "{parsed}");
    }
}

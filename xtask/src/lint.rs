//! `cargo xtask lint`: checks that no compiler makes: retired words, broken links in documents, unused dependencies.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::root;

/// The document whose section [`RETIRED`] lists the retired words.
const GLOSSARY: &str = "docs/glossary.md";
const RETIRED: &str = "## Retired words";

/// Files that may contain retired words: the list itself, and descriptions of earlier releases.
const EXEMPT: &[&str] = &[GLOSSARY, "CHANGELOG.md"];

/// Kinds of files whose words are checked.
const PROSE_AND_CODE: &[&str] = &["rs", "md", "toml", "html", "css", "c", "h", "py", "sh"];

/// Runs all checks and reports everything that they find.
///
/// # Errors
/// Fails if a check found something, or if `cargo-machete` is not installed.
pub(crate) fn run() -> Result<()> {
    let files = tracked_files()?;
    let mut findings = retired_words(&files)?;
    findings.extend(broken_links(&files)?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    unused_dependencies()?;
    ensure!(findings.is_empty(), "{} findings; each line above names a file and line", findings.len());
    println!("lint: no retired words, no broken links, no unused dependencies");
    Ok(())
}

/// Returns the paths of all files under version control, relative to the root.
fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output()?;
    ensure!(output.status.success(), "git ls-files failed; run this in a git checkout");
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|path| root().join(path).is_file()).collect())
}

/// Finds the words that the glossary retires, also as parts of identifiers (`OLD_WORD`, `hasOldWord`).
fn retired_words(files: &[PathBuf]) -> Result<Vec<String>> {
    let glossary = fs::read_to_string(root().join(GLOSSARY))?;
    let retired = table_of_retired_words(&glossary);
    ensure!(!retired.is_empty(), "{GLOSSARY} has no table in `{RETIRED}`");
    let mut findings = Vec::new();
    for path in files {
        let is_exempt = EXEMPT.iter().any(|exempt| path == Path::new(exempt));
        if is_exempt || !has_extension(path, PROSE_AND_CODE) {
            continue;
        }
        let text = fs::read_to_string(root().join(path))?;
        for (number, line) in (1..).zip(text.lines()) {
            for word in words(line) {
                if let Some(instead) = retired.get(&word) {
                    findings.push(format!("{}:{number}: `{word}` is retired: {instead}", path.display()));
                }
            }
        }
    }
    Ok(findings)
}

/// Returns the retired words and their replacements, from rows like ``| `word`, `other` | replacement |``.
fn table_of_retired_words(glossary: &str) -> HashMap<String, String> {
    let section = glossary.split_once(RETIRED).map_or("", |(_, section)| section);
    let mut retired = HashMap::new();
    for row in section.lines() {
        let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
        if let [words, instead] = cells[..] {
            for word in words.split('`').skip(1).step_by(2) {
                retired.insert(word.to_owned(), instead.to_owned());
            }
        }
    }
    retired
}

/// Returns the words of a line in lower case. Identifiers are split at underscores and at changes from lower to upper case.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for token in line.split(|c: char| !c.is_alphabetic()) {
        let mut word = String::new();
        let mut previous_is_lower = false;
        for c in token.chars() {
            if c.is_uppercase() && previous_is_lower {
                words.push(std::mem::take(&mut word));
            }
            previous_is_lower = c.is_lowercase();
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Finds links to files and headings that do not exist.
fn broken_links(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| has_extension(path, &["md"])) {
        let text = fs::read_to_string(root().join(path))?;
        for (number, target) in links(&text) {
            if let Err(error) = resolve(path, target) {
                findings.push(format!("{}:{number}: link to {target}: {error}", path.display()));
            }
        }
    }
    Ok(findings)
}

/// Returns the line number and the target of each inline link of a document. Links in code blocks are ignored.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for (i, part) in line.split("](").enumerate() {
            let is_target = i > 0;
            if let (true, Some((target, _))) = (is_target, part.split_once(')')) {
                links.push((number, target));
            }
        }
    }
    links
}

/// Checks that a link's file exists and has the heading that the link names. Links to other sites are not
/// checked, and rustdoc checks those to Rust paths.
fn resolve(from: &Path, target: &str) -> Result<()> {
    let is_rust_path = target.contains("::");
    if is_rust_path || target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => root().join(from),
        file => root().join(from).parent().context("a file is in a directory")?.join(file),
    };
    ensure!(path.exists(), "no such file");
    if !anchor.is_empty() && has_extension(&path, &["md"]) {
        let text = fs::read_to_string(&path)?;
        let has_heading = text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
        ensure!(has_heading, "no such heading");
    }
    Ok(())
}

/// Returns the anchor of a heading: in lower case, with hyphens for spaces, and without other punctuation.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| extensions.iter().any(|&e| extension == e))
}

/// Runs `cargo-machete`, which finds dependencies that no source file names.
fn unused_dependencies() -> Result<()> {
    let status = match Command::new("cargo-machete").current_dir(root()).status() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            bail!("cargo-machete is not installed: cargo install cargo-machete --locked")
        }
        status => status?,
    };
    ensure!(status.success(), "the dependencies that cargo-machete lists above are unused: remove them");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(
            words("let OLD_WORD = hasOldWord(x1);"),
            ["let", "old", "word", "has", "old", "word", "x"]
        );
    }

    #[test]
    fn retired_words_are_read_from_the_table() {
        let table = "# Glossary\n| `kept` | x |\n## Retired words\n\n| retired | use |\n|---|---|\n| `a`, `b` | c |\n";
        let retired = table_of_retired_words(table);
        assert_eq!(retired.len(), 2);
        assert_eq!((&*retired["a"], &*retired["b"]), ("c", "c"));
    }

    #[test]
    fn links_in_code_are_not_links() {
        let text = "a [b](c.md) [d](e.md#f)\n```\n[g](h.md)\n```\n";
        assert_eq!(links(text), [(1, "c.md"), (1, "e.md#f")]);
    }

    #[test]
    fn link_to_missing_file_or_heading_is_refused() {
        let readme = Path::new("README.md");
        assert!(resolve(readme, "docs/glossary.md#failover").is_ok());
        assert!(resolve(readme, "docs/glossary.md#no-such-heading").is_err());
        assert!(resolve(readme, "docs/no-such-file.md").is_err());
    }

    #[test]
    fn slug_of_heading_matches_common_renderers() {
        assert_eq!(slug("## What is promised (policy `exact`)"), "what-is-promised-policy-exact");
    }
}

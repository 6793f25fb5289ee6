//! Words and phrases that the glossary retires.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{has_extension, read};

/// The document whose section [`RETIRED`] lists the retired words.
const GLOSSARY: &str = "docs/glossary.md";
const RETIRED: &str = "## Retired words";

/// Files that may contain retired words: the list itself, and descriptions of earlier releases.
const EXEMPT: &[&str] = &[GLOSSARY, "CHANGELOG.md"];

/// Kinds of files whose words are checked.
const PROSE_AND_CODE: &[&str] = &["rs", "md", "toml", "html", "css", "c", "h", "py", "sh"];

/// Finds the words, and the pairs of words, that the glossary retires. Words are found as parts of
/// identifiers, too (`OLD_WORD`, `hasOldWord`).
pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let glossary = read(Path::new(GLOSSARY))?;
    let retired = table_of_retired_words(&glossary);
    ensure!(!retired.is_empty(), "{GLOSSARY} has no table in `{RETIRED}`");
    let mut findings = Vec::new();
    for path in files {
        let is_exempt = EXEMPT.iter().any(|exempt| path == Path::new(exempt));
        if is_exempt || !has_extension(path, PROSE_AND_CODE) {
            continue;
        }
        let text = read(path)?;
        for (number, found) in words_and_pairs(&text) {
            if let Some(instead) = retired.get(&found) {
                findings.push(format!("{}:{number}: `{found}` is retired: {instead}", path.display()));
            }
        }
    }
    Ok(findings)
}

/// Returns the retired words and their replacements, from rows like ``| `word`, `other` |
/// replacement |``.
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

/// Returns each word of a text, and each pair of successive words, with the number of its line.
fn words_and_pairs(text: &str) -> Vec<(usize, String)> {
    let lines = (1..).zip(text.lines());
    let words: Vec<(usize, String)> =
        lines.flat_map(|(number, line)| words(line).into_iter().map(move |word| (number, word))).collect();
    let pairs = words.windows(2).map(|pair| (pair[0].0, format!("{} {}", pair[0].1, pair[1].1)));
    let pairs: Vec<_> = pairs.collect();
    words.into_iter().chain(pairs).collect()
}

/// Returns the words of a line in lower case. Identifiers are split at underscores and at changes
/// from lower to upper case.
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
    fn pair_of_words_may_be_on_two_lines() {
        let found = words_and_pairs("// one two\n// three\n");
        assert!(found.contains(&(1, "one two".to_owned())) && found.contains(&(1, "two three".to_owned())));
        assert!(found.contains(&(2, "three".to_owned())));
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn retired_words_are_read_from_the_table() {
        let table = "# Glossary\n| `kept` | x |\n## Retired words\n\n| retired | use |\n|---|---|\n| `a`, `b` | c |\n";
        let retired = table_of_retired_words(table);
        assert_eq!(retired.len(), 2);
        assert_eq!((&*retired["a"], &*retired["b"]), ("c", "c"));
    }
}

//! Sentences of documents that are too long.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::exceptions::{self, Findings};
use super::{has_extension, read};

/// The most words of a sentence.
const MAX_WORDS: usize = 35;

const LIST: &str = "xtask/src/lint/sentences.txt";

pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Findings::new();
    for path in files.iter().filter(|path| has_extension(path, &["md"])) {
        let long = sentences(&read(path)?).into_iter().filter_map(|(number, sentence)| {
            let count = words(&sentence);
            let begin: String = sentence.chars().take(60).collect();
            let is_long = count > MAX_WORDS;
            is_long.then(|| format!("{}:{number}: a sentence of {count} words: {begin}…", path.display()))
        });
        let long: Vec<String> = long.collect();
        if !long.is_empty() {
            found.insert(path.display().to_string(), long);
        }
    }
    Ok(exceptions::excess(found, &read(Path::new(LIST))?, LIST))
}

/// Returns the sentences of a document and the lines where their paragraphs begin. Tables, headings
/// and code blocks have none.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut is_code = false;
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim().trim_start_matches("> ");
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || line.is_empty() || line.starts_with(['|', '#', '<']) {
            continues = false;
            continue;
        }
        match paragraphs.last_mut() {
            Some((_, paragraph)) if continues && !is_list_item(line) => {
                paragraph.push(' ');
                paragraph.push_str(line);
            }
            _ => paragraphs.push((number, line.to_owned())),
        }
        continues = true;
    }
    let split = |(number, paragraph): (usize, String)| {
        split_sentences(&paragraph).into_iter().map(move |sentence| (number, sentence))
    };
    paragraphs.into_iter().flat_map(split).collect()
}

pub(super) fn is_list_item(line: &str) -> bool {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < line.len() && after_number.starts_with(['.', ')']);
    ["- ", "* ", "+ "].iter().any(|bullet| line.starts_with(bullet))
        || is_numbered && after_number[1..].starts_with(' ')
}

/// Splits at words that end with a full stop, a question or an exclamation mark, unless the next
/// word begins with a lower-case letter, as after an abbreviation.
fn split_sentences(paragraph: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    let mut words = paragraph.split_whitespace().peekable();
    while let (Some(word), Some(sentence)) = (words.next(), sentences.last_mut()) {
        sentence.push_str(word);
        let end = word.trim_end_matches([')', '"', '*', '`', '_']);
        let next_is_lower = words.peek().is_some_and(|next| next.starts_with(char::is_lowercase));
        if end.ends_with(['.', '?', '!']) && !next_is_lower {
            sentences.push(String::new());
        } else {
            sentence.push(' ');
        }
    }
    sentences
}

/// Counts words. A word stands between spaces and has a letter or a digit. Inline code and the
/// target of a link have no words of their own.
fn words(sentence: &str) -> usize {
    let mut prose = String::new();
    for (i, part) in sentence.split('`').enumerate() {
        prose.push_str(if i % 2 == 0 { part } else { "code" });
    }
    while let Some((before, rest)) = prose.split_once("](") {
        let (_, after) = rest.split_once(')').unwrap_or(("", ""));
        prose = format!("{before}{after}");
    }
    prose.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let sentences = sentences(text).into_iter().map(|(_, sentence)| sentence.trim().to_owned());
        sentences.filter(|sentence| !sentence.is_empty()).collect()
    }

    #[test]
    fn paragraphs_are_split_into_sentences() {
        let text = "# A heading.\n\nOne two,\nthree. Four (five.) Six e.g. seven\n\n- Eight\n- nine\n  ten\n";
        assert_eq!(
            texts(text),
            ["One two, three.", "Four (five.)", "Six e.g. seven", "- Eight", "- nine ten"]
        );
    }

    #[test]
    fn tables_and_code_have_no_sentences() {
        assert_eq!(texts("a\n```\nb. c\n```\n| d | e |\n<img>\n1. f\n"), ["a", "1. f"]);
    }

    #[test]
    fn code_and_links_count_as_their_text() {
        assert_eq!(words("- The `a b c` of [d e](https://f g/h) – 3."), 6);
        assert_eq!(words("an unfinished [link]("), 3);
    }
}

//! Comments that are wider than [`WIDTH`], which rustfmt does not wrap.
//!
//! A paragraph is wrapped from its first wide line on. These are no paragraphs, and stay: code,
//! tables, headings, definitions of links, and lines with aligned columns. Inline code and links
//! stay on one line.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use super::sentences::is_list_item;
use super::{has_extension, read};
use crate::root;

/// The columns of a line of a comment.
const WIDTH: usize = 100;

/// A range of lines, and the lines that replace them.
type Replacement = (Range<usize>, Vec<String>);

/// Wraps the wide comments of files.
///
/// # Errors
/// Fails if a file is not read or written, or is not Rust.
pub(super) fn fix(files: &[PathBuf]) -> Result<()> {
    for path in files.iter().filter(|path| !markers(path).is_empty()) {
        let text = read(path)?;
        let replacements = replacements(path, &text)?;
        if !replacements.is_empty() {
            fs::write(root().join(path), replaced(&text, replacements))?;
            println!("wrapped comments of {}", path.display());
        }
    }
    Ok(())
}

/// Returns the comments that [`fix`] would wrap.
pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| !markers(path).is_empty()) {
        for (lines, _) in replacements(path, &read(path)?)? {
            let (path, number) = (path.display(), lines.start + 1);
            findings.push(format!(
                "{path}:{number}: wider than {WIDTH} columns: cargo xtask lint --fix wraps it"
            ));
        }
    }
    Ok(findings)
}

fn replaced(text: &str, replacements: Vec<Replacement>) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (range, wrapped) in replacements.into_iter().rev() {
        lines.splice(range, wrapped);
    }
    lines.join("\n") + "\n"
}

/// Returns the markers of comments in a file of this kind, or none if its comments are not wrapped.
fn markers(path: &Path) -> &'static [&'static str] {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => &["//!", "///", "//"],
        Some("c" | "h") => &["//"],
        Some("py" | "sh" | "toml") => &["#"],
        _ => &[],
    }
}

/// Returns the changes that wrap the wide comments of a file, in the order of their lines.
fn replacements(path: &Path, text: &str) -> Result<Vec<Replacement>> {
    let lines: Vec<&str> = text.lines().collect();
    if !lines.iter().any(|line| columns(line) > WIDTH) {
        return Ok(Vec::new());
    }
    let literals = if has_extension(path, &["rs"]) {
        let tokens: TokenStream =
            text.parse().ok().with_context(|| format!("{} is not Rust", path.display()))?;
        let mut literals = BTreeSet::new();
        add_lines_in_literals(tokens, &mut literals);
        literals
    } else {
        BTreeSet::new()
    };
    let changed = |paragraph: Paragraph| {
        let first = (0..paragraph.lines.len()).find(|&i| columns(lines[paragraph.begin + i]) > WIDTH)?;
        let range = paragraph.begin + first..paragraph.begin + paragraph.lines.len();
        let wrapped = paragraph.wrapped_from(first);
        (lines[range.clone()] != wrapped[..]).then_some((range, wrapped))
    };
    Ok(paragraphs(&lines, markers(path), &literals).into_iter().filter_map(changed).collect())
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Adds the indices of lines that begin within a literal.
fn add_lines_in_literals(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => add_lines_in_literals(group.stream(), lines),
            // Lines are counted from 1, indices from 0.
            TokenTree::Literal(literal) => {
                lines.extend(literal.span().start().line..literal.span().end().line)
            }
            _ => {}
        }
    }
}

/// Lines of a comment that may be wrapped as one.
struct Paragraph<'a> {
    /// The index of its first line.
    begin: usize,
    /// The indentation and the marker of the comment, and a space.
    prefix: String,
    /// The indentation of its first line within the comment, and the bullet of a list item.
    bullet: &'a str,
    /// The text of each line, without the indentation within the comment.
    lines: Vec<&'a str>,
}

impl Paragraph<'_> {
    fn indentation(&self) -> usize {
        columns(self.bullet)
    }

    /// Returns the line `first` and the lines after it, wrapped.
    fn wrapped_from(&self, first: usize) -> Vec<String> {
        let begin = format!("{}{}", self.prefix, " ".repeat(self.indentation()));
        let width = WIDTH.saturating_sub(columns(&begin));
        let mut wrapped: Vec<String> = Vec::new();
        for word in atoms(&self.lines[first..].join(" "), width) {
            match wrapped.last_mut() {
                Some(line) if columns(line) + 1 + columns(&word) <= width => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => wrapped.push(word),
            }
        }
        let mut lines: Vec<String> = wrapped.into_iter().map(|line| format!("{begin}{line}")).collect();
        if let (0, Some(line)) = (first, lines.first_mut()) {
            line.replace_range(..begin.len(), &format!("{}{}", self.prefix, self.bullet));
        }
        lines
    }
}

/// Splits a text where a line may end.
fn atoms(text: &str, width: usize) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut atoms: Vec<String> = Vec::new();
    let mut next = 0;
    while next < words.len() {
        let is_whole = |atom: &str| {
            atom.matches('`').count().is_multiple_of(2)
                && atom.matches('[').count() <= atom.matches(']').count()
        };
        let ends = (next + 1..=words.len()).map(|end| (end, words[next..end].join(" ")));
        let mut narrow = ends.take_while(|(_, atom)| columns(atom) <= width);
        let (end, atom) =
            narrow.find(|(_, atom)| is_whole(atom)).unwrap_or_else(|| (next + 1, words[next].to_owned()));
        match atoms.last_mut() {
            Some(previous) if means_more_at_begin(words[next]) => {
                previous.push(' ');
                previous.push_str(&atom);
            }
            _ => atoms.push(atom),
        }
        next = end;
    }
    atoms
}

/// Whether a word at the beginning of a line would be the bullet of a list, a heading or the like.
fn means_more_at_begin(word: &str) -> bool {
    is_list_item(&format!("{word} "))
        || is_no_text(word)
        || word.starts_with(['>', '='])
        || word.starts_with("--")
}

/// Whether a line of a comment is a heading, part of a table, the definition of a link or HTML.
fn is_no_text(line: &str) -> bool {
    let is_row = line.starts_with('|') && line.ends_with('|');
    let is_definition =
        line.starts_with('[') && line.split_once("]: ").is_some_and(|(_, to)| !to.contains(' '));
    line.starts_with(['#', '<']) || is_row || is_definition
}

fn paragraphs<'a>(lines: &[&'a str], markers: &[&str], literals: &BTreeSet<usize>) -> Vec<Paragraph<'a>> {
    let mut paragraphs: Vec<Paragraph> = Vec::new();
    let mut previous_prefix = String::new();
    let mut is_code = false;
    let mut continues = false;
    for (index, line) in lines.iter().enumerate() {
        let comment = if literals.contains(&index) { None } else { comment(line, markers) };
        let Some((prefix, content)) = comment else {
            (continues, is_code) = (false, false);
            continue;
        };
        if prefix != previous_prefix {
            (continues, is_code) = (false, false);
            previous_prefix.clone_from(&prefix);
        }
        let text = content.trim_start();
        let is_fence = text.starts_with("```");
        is_code ^= is_fence;
        let has_columns = text.contains("  ");
        if is_code || is_fence || text.is_empty() || is_no_text(text) || has_columns {
            continues = false;
            continue;
        }
        let indentation = content.len() - text.len();
        let begins = is_list_item(text) || text.starts_with("SAFETY:");
        match paragraphs.last_mut() {
            Some(paragraph) if continues && !begins && indentation == paragraph.indentation() => {
                paragraph.lines.push(text);
            }
            // An indented line that continues no list item is code.
            _ if indentation >= 4 && !is_list_item(text) => continues = false,
            _ => {
                let bullet = if is_list_item(text) { text.find(' ').map_or(0, |space| space + 1) } else { 0 };
                let (bullet, text) = content.split_at(indentation + bullet);
                paragraphs.push(Paragraph { begin: index, prefix, bullet, lines: vec![text] });
                continues = true;
            }
        }
    }
    paragraphs
}

/// Splits a line that is a comment into its prefix and its content.
fn comment<'a>(line: &'a str, markers: &[&str]) -> Option<(String, &'a str)> {
    let code = line.trim_start();
    let indentation = &line[..line.len() - code.len()];
    let (marker, content) = markers.iter().find_map(|marker| Some((marker, code.strip_prefix(marker)?)))?;
    let content = if content.is_empty() { content } else { content.strip_prefix(' ')? };
    Some((format!("{indentation}{marker} "), content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wraps `text`, and checks that a second time changes nothing.
    fn wrapped(text: &str) -> String {
        let wrap =
            |text: &str| replaced(text, replacements(Path::new("x.rs"), text).expect("the text is Rust"));
        let once = wrap(text);
        assert_eq!(wrap(&once), once);
        once
    }

    /// Returns `count` words of four letters.
    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    #[test]
    fn paragraph_is_wrapped_from_its_first_wide_line() {
        let text = format!(
            "    /// Short\n    /// {}\n    /// end.\n    ///\n    /// Next\nfn f() {{}}\n",
            words(20)
        );
        let end = "    /// word word end.\n    ///\n    /// Next\nfn f() {}\n";
        assert_eq!(wrapped(&text), format!("    /// Short\n    /// {}\n{end}", words(18)));
    }

    #[test]
    fn list_item_keeps_its_indentation() {
        let text = format!("// - {}\n//   end\n// - next\n// 1. {}\n", words(20), words(20));
        let expected = format!("// - {0}\n//   word end\n// - next\n// 1. {0}\n//    word\n", words(19));
        assert_eq!(wrapped(&text), expected);
    }

    #[test]
    fn what_is_no_paragraph_stays() {
        let wide = words(25);
        for line in
            ["# {}", "| {} |", "a  b {}", "[x]: https://{}", "    {}", "<p>{}", "```text\n// {}\n// ```"]
        {
            let text =
                format!("// {}\n", line.replace("https://{}", &wide.replace(' ', "/")).replace("{}", &wide));
            assert_eq!(wrapped(&text), text);
        }
        let literal = format!("const X: &str = \"\n// {wide}\n\";\n// SAFETY: x\n");
        assert_eq!(wrapped(&literal), literal);
        let url = format!("// https://{}\n", "x".repeat(120));
        assert_eq!(wrapped(&url), url);
    }

    #[test]
    fn code_links_and_bullets_stay_with_their_words() {
        for atom in ["`a b c d e f`", "[a b c d](e)", "x - y", "x 1. y", "x # y"] {
            let text = format!("// {} {atom} end\n", words(18));
            assert!(wrapped(&text).contains(atom), "{atom}");
        }
        let safety = format!("// {}\n// SAFETY: this\n// {}\n", words(20), words(1));
        assert_eq!(wrapped(&safety), format!("// {}\n// word\n// SAFETY: this\n// word\n", words(19)));
    }
}

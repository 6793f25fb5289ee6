//! Links of documents to files and headings that do not exist.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{has_extension, read};
use crate::root;

pub(super) fn findings(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| has_extension(path, &["md"])) {
        let text = read(path)?;
        for (number, target) in links(&text) {
            if let Err(error) = resolve(path, target) {
                findings.push(format!("{}:{number}: link to {target}: {error}", path.display()));
            }
        }
    }
    Ok(findings)
}

/// Returns the line number and the target of each inline link of a document. Links in code blocks
/// are ignored.
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

/// Checks that a link's file exists and has the heading that the link names. Links to other sites
/// are not checked, and rustdoc checks links to Rust paths.
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

/// Returns the anchor of a heading: in lower case, with hyphens for spaces, and without other
/// punctuation.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

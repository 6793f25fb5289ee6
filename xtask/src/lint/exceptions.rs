//! Lists of findings that a check permits. A list may only shrink: an entry without a finding is a
//! finding, too.

use std::collections::BTreeMap;

/// Findings by the entry of the list that would permit them.
pub(super) type Findings = BTreeMap<String, Vec<String>>;

/// Returns the entries of a list and how many findings each permits. A line is an entry, which
/// permits one finding, or an entry, a space and a number. Lines that begin with `#` are comments.
pub(super) fn entries(list: &str) -> BTreeMap<&str, usize> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let entry = |line| match str::rsplit_once(line, ' ') {
        Some((entry, count)) if count.parse::<usize>().is_ok() => (entry, count.parse().unwrap_or(0)),
        _ => (line, 1),
    };
    lines.map(entry).collect()
}

/// Returns the findings that `list` does not permit, and the entries of `list` that permit too
/// many. `file` is the path of the list.
pub(super) fn excess(mut found: Findings, list: &str, file: &str) -> Vec<String> {
    let mut excess = Vec::new();
    for (entry, permitted) in entries(list) {
        let findings = found.remove(entry).unwrap_or_default();
        if findings.len() > permitted {
            excess.push(format!("{file} permits {permitted} of these in `{entry}`:"));
            excess.extend(findings);
        } else if findings.len() < permitted {
            let count = findings.len();
            excess.push(format!("{file}: `{entry}` has {count}: set its number, remove it if zero"));
        }
    }
    excess.extend(found.into_values().flatten());
    excess
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excess_of(found: &[(&str, usize)], list: &str) -> usize {
        let findings =
            |&(entry, count): &(&str, usize)| (entry.to_owned(), vec!["a finding".to_owned(); count]);
        excess(found.iter().map(findings).collect(), list, "list.txt").len()
    }

    #[test]
    fn list_permits_exactly_its_numbers() {
        let list = "# a comment\na.md 2\nb -> c\n";
        assert_eq!(excess_of(&[("a.md", 2), ("b -> c", 1)], list), 0);
        assert_eq!(excess_of(&[("a.md", 3), ("b -> c", 1)], list), 4);
        assert_eq!(excess_of(&[("a.md", 2), ("b -> c", 1), ("d.md", 1)], list), 1);
    }

    #[test]
    fn entry_that_permits_too_many_is_a_finding() {
        let list = "a.md 2\nb -> c\n";
        assert_eq!(excess_of(&[("a.md", 1), ("b -> c", 1)], list), 1);
        assert_eq!(excess_of(&[("a.md", 2)], list), 1);
    }
}

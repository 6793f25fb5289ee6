//! The parameters that CONFIG GET returns: limits of this server under the names of Redis.

use super::MAX_CLIENTS;
use crate::StoreConfig;
use crate::resp::{MAX_ARGUMENT_BYTES, Reply};

/// Returns the parameters whose names match one of the patterns.
pub(super) fn matching(store: &StoreConfig, patterns: &[Vec<u8>]) -> Reply {
    let parameters = [
        // The process itself has no files: see `--data` of memory nodes.
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", MAX_CLIENTS.to_string()),
        ("maxmemory", store.log_config().max_snapshot_bytes().to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("proto-max-bulk-len", MAX_ARGUMENT_BYTES.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ];
    let is_asked =
        |name: &str| patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
    let found = parameters.into_iter().filter(|(name, _)| is_asked(name));
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect())
}

/// Returns whether a name matches a pattern, in which `*` stands for any bytes and `?` for one. The
/// time is at most the product of the lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // The place after the last `*`, and the first byte of the name that it does not stand for.
    let mut star = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, in_name));
            }
            Some(&byte) if byte == b'?' || byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((after, begin)) = star else { return false };
                star = Some((after, begin + 1));
                (at, in_name) = (after, begin + 1);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_select_parameters() {
        let store = StoreConfig { processes: 3, memories: 3, capacity_mib: 4 };
        let names = |patterns: &[&str]| {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
            let Reply::Map(found) = matching(&store, &patterns) else { panic!("a map") };
            found.len()
        };
        let cases: [(&[&str], usize); 7] = [
            (&["*"], 8),
            (&["databases"], 1),
            (&["DATA*", "databases"], 1),
            (&["max*", "save"], 4),
            (&["*m?x*y"], 2),
            (&["nope", ""], 0),
            (&["**e**s*"], 2),
        ];
        for (patterns, count) in cases {
            assert_eq!(names(patterns), count, "{patterns:?}");
        }
    }
}

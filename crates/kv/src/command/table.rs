//! The commands that the server executes, and the replies of `COMMAND`, which describe them.

use crate::resp::Reply;

/// A command that the server executes.
pub(super) struct Spec {
    /// The name, in lower case.
    pub(super) name: &'static str,
    /// The number of words of a request, or, if negative, the least number with its sign changed.
    arity: i64,
    flags: &'static [&'static str],
    /// The places of the first and the last key, and the distance between two keys: 0 if the
    /// command has none, and −1 for the last word.
    keys: [i64; 3],
    group: &'static str,
    summary: &'static str,
}

#[rustfmt::skip]
const SPECS: &[Spec] = &[
    Spec { name: "auth", arity: -2, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Accepts the default user, which has no password" },
    Spec { name: "cas", arity: 4, flags: &["write", "denyoom"], keys: ONE_KEY, group: "mitra", summary: "CAS key expected new: sets a key that has the expected value" },
    Spec { name: "client", arity: -2, flags: &[], keys: NO_KEYS, group: "connection", summary: "Names and describes the connection" },
    Spec { name: "command", arity: -1, flags: &[], keys: NO_KEYS, group: "server", summary: "Describes the commands" },
    Spec { name: "config", arity: -2, flags: &[], keys: NO_KEYS, group: "server", summary: "CONFIG GET returns the limits of the server" },
    Spec { name: "del", arity: -2, flags: &["write"], keys: ALL_KEYS, group: "generic", summary: "Deletes keys" },
    Spec { name: "echo", arity: 2, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Returns its argument" },
    Spec { name: "exists", arity: -2, flags: &["readonly", "fast"], keys: ALL_KEYS, group: "generic", summary: "Counts the keys that have a value" },
    Spec { name: "get", arity: 2, flags: &["readonly", "fast"], keys: ONE_KEY, group: "string", summary: "Returns the value of a key" },
    Spec { name: "hello", arity: -1, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Selects RESP2 or RESP3" },
    Spec { name: "info", arity: -1, flags: &[], keys: NO_KEYS, group: "server", summary: "Returns the state of the process" },
    Spec { name: "mitra.do", arity: -5, flags: &["write", "denyoom"], keys: [4, 4, 1], group: "mitra", summary: "MITRA.DO session sequence PUT|DELETE|CAS key ...: a change in a session, made at most once" },
    Spec { name: "mitra.get", arity: 2, flags: &["readonly", "fast"], keys: ONE_KEY, group: "mitra", summary: "Returns the value of a key, and the index of the log entry that changed it" },
    Spec { name: "mitra.open", arity: 1, flags: &["write"], keys: NO_KEYS, group: "mitra", summary: "Opens a session" },
    Spec { name: "mitra.watch", arity: 2, flags: &[], keys: ONE_KEY, group: "mitra", summary: "Sends the later changes of a key" },
    Spec { name: "ping", arity: -1, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Returns PONG, or its argument" },
    Spec { name: "quit", arity: -1, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Closes the connection after all replies" },
    Spec { name: "reset", arity: 1, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Returns the connection to its first state" },
    Spec { name: "select", arity: 2, flags: &["fast"], keys: NO_KEYS, group: "connection", summary: "Accepts database 0, the only one" },
    Spec { name: "set", arity: -3, flags: &["write", "denyoom"], keys: ONE_KEY, group: "string", summary: "SET key value [NX]: sets the value of a key" },
    Spec { name: "unlink", arity: -2, flags: &["write", "fast"], keys: ALL_KEYS, group: "generic", summary: "Deletes keys" },
];

const NO_KEYS: [i64; 3] = [0, 0, 0];
const ONE_KEY: [i64; 3] = [1, 1, 1];
const ALL_KEYS: [i64; 3] = [1, -1, 1];

/// Returns the command with a name, in any case.
pub(super) fn find(name: &[u8]) -> Option<&'static Spec> {
    SPECS.iter().find(|spec| name.eq_ignore_ascii_case(spec.name.as_bytes()))
}

impl Spec {
    /// Returns whether a request of the command may have this number of words.
    pub(super) fn accepts(&self, words: usize) -> bool {
        let words = words as i64;
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }

    fn describe(&self) -> Reply {
        let words = |words: &[&str]| words.iter().map(|word| Reply::bulk(*word)).collect();
        let [first, last, step] = self.keys;
        Reply::Array(vec![
            Reply::bulk(self.name),
            Reply::Integer(self.arity),
            Reply::Set(words(self.flags)),
            Reply::Integer(first),
            Reply::Integer(last),
            Reply::Integer(step),
            // Categories of access control lists, tips, key specifications, subcommands.
            Reply::Set(Vec::new()),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
        ])
    }

    fn document(&self) -> (Reply, Reply) {
        let fields = [("summary", self.summary), ("group", self.group)];
        let fields = fields.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value)));
        (Reply::bulk(self.name), Reply::Map(fields.into()))
    }
}

/// Returns the reply to `COMMAND words`, or `None` if the subcommand is unknown.
pub(super) fn reply(words: &[&[u8]]) -> Option<Reply> {
    let Some((subcommand, names)) = words.split_first() else {
        return Some(Reply::Array(SPECS.iter().map(Spec::describe).collect()));
    };
    let named = || names.iter().map(|name| find(name));
    Some(match (subcommand.to_ascii_uppercase().as_slice(), names) {
        (b"COUNT", []) => Reply::Integer(SPECS.len() as i64),
        (b"LIST", []) => Reply::Array(SPECS.iter().map(|spec| Reply::bulk(spec.name)).collect()),
        (b"INFO", []) => Reply::Array(SPECS.iter().map(Spec::describe).collect()),
        (b"INFO", _) => {
            Reply::Array(named().map(|spec| spec.map_or(Reply::Bulk(None), Spec::describe)).collect())
        }
        (b"DOCS", []) => Reply::Map(SPECS.iter().map(Spec::document).collect()),
        (b"DOCS", _) => Reply::Map(named().flatten().map(Spec::document).collect()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_describe_each_command() {
        let count = SPECS.len();
        assert_eq!(reply(&[b"count"]), Some(Reply::Integer(count as i64)));
        for (words, len) in [(&[][..], count), (&[&b"LIST"[..]], count), (&[b"INFO", b"get", b"nope"], 2)] {
            assert!(matches!(reply(words), Some(Reply::Array(all)) if all.len() == len), "{words:?}");
        }
        for (words, len) in [(&[&b"DOCS"[..]][..], count), (&[b"DOCS", b"SET", b"nope"], 1)] {
            assert!(matches!(reply(words), Some(Reply::Map(all)) if all.len() == len), "{words:?}");
        }
        assert_eq!(reply(&[b"GETKEYS", b"get", b"k"]), None);
        assert!(SPECS.is_sorted_by_key(|spec| spec.name));
    }
}

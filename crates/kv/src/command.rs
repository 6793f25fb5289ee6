//! Parses client commands: the commands of Redis that the store supports, and the store's own
//! commands (`MITRA.*`, `CAS`).

use mitra_consensus::kv_store::{Change, Request, Session};

use crate::resp::Reply;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// The reply of a command that needs no access to the store.
    Local(Reply),
    /// QUIT: close the connection after the reply.
    Quit,
    /// GET: the value of a key.
    Get(Vec<u8>),
    /// EXISTS: the number of the keys that have a value.
    Exists(Vec<Vec<u8>>),
    /// Changes outside a client's session. The server makes each change at most once.
    Change(Vec<Change>, ReplyStyle),
    /// A request in the client's own session.
    InSession(Request),
    /// MITRA.WATCH: reports of later changes of a key.
    Watch(Vec<u8>),
    /// INFO: the state of the server.
    Info,
}

/// The form of the reply to a request that consists of several commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyStyle {
    Ok,
    /// `OK`, or nil if no change was made.
    OkOrNil,
    /// The number of changes that were made, or of keys that have a value.
    Count,
}

fn error(text: &str) -> Command {
    Command::Local(Reply::Error(format!("ERR {text}")))
}

fn number(argument: &[u8]) -> Option<u64> {
    std::str::from_utf8(argument).ok()?.parse().ok()
}

/// Parses a command. Unknown commands become [`Command::Local`] with an error.
pub(crate) fn parse(arguments: &[&[u8]]) -> Command {
    let Some((name, rest)) = arguments.split_first() else { return error("empty command") };
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    let to_vec = |argument: &[u8]| argument.to_vec();
    match (name.as_str(), rest) {
        ("PING", []) => Command::Local(Reply::Simple("PONG")),
        ("PING" | "ECHO", [text]) => Command::Local(Reply::Bulk(Some(to_vec(text)))),
        ("QUIT", _) => Command::Quit,
        ("SELECT", [b"0"]) | ("CLIENT", _) => Command::Local(Reply::Simple("OK")),
        // Client libraries query the available commands when they connect, and accept an empty
        // answer.
        ("COMMAND" | "CONFIG", _) => Command::Local(Reply::Array(Vec::new())),
        ("INFO", _) => Command::Info,
        ("GET", [key]) => Command::Get(to_vec(key)),
        ("EXISTS", [_, ..]) => Command::Exists(rest.iter().map(|key| to_vec(key)).collect()),
        ("SET", [key, value]) => {
            Command::Change(vec![Change::Put { key: to_vec(key), value: to_vec(value) }], ReplyStyle::Ok)
        }
        ("SET", [key, value, option]) if option.eq_ignore_ascii_case(b"NX") => {
            Command::Change(vec![cas(key, None, Some(to_vec(value)))], ReplyStyle::OkOrNil)
        }
        ("SET", _) => error("SET takes a key, a value, and optionally NX"),
        ("DEL" | "UNLINK", [_, ..]) => Command::Change(
            rest.iter().map(|key| Change::Delete { key: to_vec(key) }).collect(),
            ReplyStyle::Count,
        ),
        ("CAS", [key, expected, value]) => {
            Command::Change(vec![cas(key, Some(to_vec(expected)), Some(to_vec(value)))], ReplyStyle::Count)
        }
        ("MITRA.OPEN", []) => Command::InSession(Request::OpenSession),
        ("MITRA.DO", [session, sequence, change @ ..]) => {
            match (number(session), number(sequence), parse_session_change(change)) {
                (Some(session), Some(sequence), Some(change)) => {
                    Command::InSession(Request::Change { session: Session(session), sequence, change })
                }
                _ => error("MITRA.DO takes a session, a sequence number, and PUT, DELETE or CAS"),
            }
        }
        ("MITRA.GET", [key]) => Command::InSession(Request::Get { key: to_vec(key) }),
        ("MITRA.WATCH", [key]) => Command::Watch(to_vec(key)),
        _ => error(&format!("unknown command or wrong number of arguments: {name:.64}")),
    }
}

fn cas(key: &[u8], expected: Option<Vec<u8>>, value: Option<Vec<u8>>) -> Change {
    Change::Cas { key: key.to_vec(), expected, value }
}

/// Parses the change of a session request: `PUT key value`, `DELETE key`, or
/// `CAS key expected value`, where `expected` and `value` are each `=bytes`, or `-` for no value.
fn parse_session_change(words: &[&[u8]]) -> Option<Change> {
    let option = |word: &[u8]| match word {
        b"-" => Some(None),
        [b'=', bytes @ ..] => Some(Some(bytes.to_vec())),
        _ => None,
    };
    match words {
        [b"PUT", key, value] => Some(Change::Put { key: key.to_vec(), value: value.to_vec() }),
        [b"DELETE", key] => Some(Change::Delete { key: key.to_vec() }),
        [b"CAS", key, expected, value] => Some(cas(key, option(expected)?, option(value)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Command {
        parse(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn redis_and_session_commands_parse() {
        let put = Change::Put { key: b"k".into(), value: b"v".into() };
        assert_eq!(parsed("set k v"), Command::Change(vec![put.clone()], ReplyStyle::Ok));
        let new = cas(b"k", None, Some(b"v".into()));
        assert_eq!(parsed("SET k v nx"), Command::Change(vec![new], ReplyStyle::OkOrNil));
        let both = [b"a", b"b"].map(|key| Change::Delete { key: key.into() });
        assert_eq!(parsed("DEL a b"), Command::Change(both.into(), ReplyStyle::Count));
        let change =
            |change| Command::InSession(Request::Change { session: Session(3), sequence: 4, change });
        assert_eq!(parsed("MITRA.DO 3 4 PUT k v"), change(put));
        assert_eq!(parsed("MITRA.DO 3 4 CAS k - =v"), change(cas(b"k", None, Some(b"v".into()))));
        assert_eq!(parsed("MITRA.DO 3 4 CAS k =a -"), change(cas(b"k", Some(b"a".into()), None)));
    }

    #[test]
    fn unknown_commands_are_errors() {
        for line in [
            "",
            "FLUSHALL",
            "GET",
            "SET k",
            "SET k v EX 10",
            "MITRA.DO x 1 PUT k v",
            "MITRA.DO 1 1 CAS k a b",
        ] {
            assert!(
                matches!(parsed(line), Command::Local(Reply::Error(text)) if text.starts_with("ERR ")),
                "{line}"
            );
        }
    }
}

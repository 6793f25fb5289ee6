//! What clients say, as requests of the store.

use mitra_consensus::kv_store::{Change, Request, Session};

use crate::resp::Reply;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Nothing of the store: this is the reply.
    Local(Reply),
    /// To be closed.
    Quit,
    /// A value.
    Get(Vec<u8>),
    /// Whether so many keys have values: how many of them.
    Exists(Vec<Vec<u8>>),
    /// Changes that are each made once, if they are; the reply is how many were made, or for one that always is, OK.
    Change(Vec<Change>, Told),
    /// Something in a session of the client's own.
    InSession(Request),
    /// To be told of changes of a key from now on.
    Watch(Vec<u8>),
    /// How the store is.
    Info,
}

/// How a change is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// OK.
    Ok,
    /// OK, or nothing if it was not made.
    OkOrNothing,
    /// How many were made.
    Count,
}

fn error(text: &str) -> Command {
    Command::Local(Reply::Error(format!("ERR {text}")))
}

fn number(argument: &[u8]) -> Option<u64> {
    std::str::from_utf8(argument).ok()?.parse().ok()
}

/// The request in these words. What is not known is an error that says so.
pub(crate) fn parse(arguments: &[&[u8]]) -> Command {
    let Some((name, rest)) = arguments.split_first() else { return error("no command") };
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    let own = |argument: &[u8]| argument.to_vec();
    match (name.as_str(), rest) {
        ("PING", []) => Command::Local(Reply::Simple("PONG")),
        ("PING" | "ECHO", [text]) => Command::Local(Reply::Bulk(Some(own(text)))),
        ("QUIT", _) => Command::Quit,
        ("SELECT", [b"0"]) | ("CLIENT", _) => Command::Local(Reply::Simple("OK")),
        // Clients ask what there is; that nothing is said about it does not stop them.
        ("COMMAND" | "CONFIG", _) => Command::Local(Reply::Array(Vec::new())),
        ("INFO", _) => Command::Info,
        ("GET", [key]) => Command::Get(own(key)),
        ("EXISTS", [_, ..]) => Command::Exists(rest.iter().map(|key| own(key)).collect()),
        ("SET", [key, value]) => {
            Command::Change(vec![Change::Put { key: own(key), value: own(value) }], Told::Ok)
        }
        ("SET", [key, value, option]) if option.eq_ignore_ascii_case(b"NX") => {
            Command::Change(vec![cas(key, None, Some(own(value)))], Told::OkOrNothing)
        }
        ("SET", _) => error("SET takes a key, a value, and nothing else but NX"),
        ("DEL" | "UNLINK", [_, ..]) => {
            Command::Change(rest.iter().map(|key| Change::Delete { key: own(key) }).collect(), Told::Count)
        }
        ("CAS", [key, expected, value]) => {
            Command::Change(vec![cas(key, Some(own(expected)), Some(own(value)))], Told::Count)
        }
        ("MITRA.OPEN", []) => Command::InSession(Request::OpenSession),
        ("MITRA.DO", [session, sequence, change @ ..]) => {
            match (number(session), number(sequence), in_session(change)) {
                (Some(session), Some(sequence), Some(change)) => {
                    Command::InSession(Request::Change { session: Session(session), sequence, change })
                }
                _ => error("MITRA.DO takes a session, a sequence number, and PUT, DELETE or CAS"),
            }
        }
        ("MITRA.GET", [key]) => Command::InSession(Request::Get { key: own(key) }),
        ("MITRA.WATCH", [key]) => Command::Watch(own(key)),
        _ => error(&format!("unknown command or wrong number of arguments: {name:.64}")),
    }
}

fn cas(key: &[u8], expected: Option<Vec<u8>>, value: Option<Vec<u8>>) -> Change {
    Change::Cas { key: key.to_vec(), expected, value }
}

/// `PUT key value`, `DELETE key`, `CAS key = value` and the like: what is expected and what is to be are each `=bytes`, or `-` for none.
fn in_session(words: &[&[u8]]) -> Option<Change> {
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
    fn commands_of_redis_and_ours() {
        let put = Change::Put { key: b"k".into(), value: b"v".into() };
        assert_eq!(parsed("set k v"), Command::Change(vec![put.clone()], Told::Ok));
        let new = cas(b"k", None, Some(b"v".into()));
        assert_eq!(parsed("SET k v nx"), Command::Change(vec![new], Told::OkOrNothing));
        let both = [b"a", b"b"].map(|key| Change::Delete { key: key.into() });
        assert_eq!(parsed("DEL a b"), Command::Change(both.into(), Told::Count));
        let change =
            |change| Command::InSession(Request::Change { session: Session(3), sequence: 4, change });
        assert_eq!(parsed("MITRA.DO 3 4 PUT k v"), change(put));
        assert_eq!(parsed("MITRA.DO 3 4 CAS k - =v"), change(cas(b"k", None, Some(b"v".into()))));
        assert_eq!(parsed("MITRA.DO 3 4 CAS k =a -"), change(cas(b"k", Some(b"a".into()), None)));
    }

    #[test]
    fn what_is_not_known_is_said_to_be() {
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

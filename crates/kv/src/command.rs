//! Parses client commands: the commands of Redis that the server executes, and the store's own
//! commands (`MITRA.*`, `CAS`).

mod table;

use mitra_consensus::kv_store::{Change, Request, Session};

use crate::resp::{Protocol, Reply};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// The reply of a command that needs no access to the store.
    Local(Reply),
    /// A command about the connection itself.
    Connection(ConnectionCommand),
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
    /// CONFIG GET: the parameters whose names match one of the patterns.
    ConfigGet(Vec<Vec<u8>>),
}

impl Command {
    /// Returns whether the command reads or changes keys.
    pub(crate) fn needs_store(&self) -> bool {
        match self {
            Command::Get(_) | Command::Exists(_) | Command::Change(..) | Command::InSession(_) => true,
            Command::Local(_)
            | Command::Connection(_)
            | Command::Watch(_)
            | Command::Info
            | Command::ConfigGet(_) => false,
        }
    }
}

/// A command whose reply depends on the connection, or which changes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionCommand {
    /// HELLO: the protocol of this reply and of later ones, and the client's name.
    Hello(Option<Protocol>, Option<String>),
    ClientId,
    ClientInfo,
    ClientGetName,
    ClientSetName(String),
    /// CLIENT SETINFO LIB-NAME.
    ClientLibrary(String),
    /// CLIENT SETINFO LIB-VER.
    ClientLibraryVersion(String),
    ClientReply(ReplyMode),
    /// MULTI, which is refused.
    Multi,
    Exec,
    Discard,
    Reset,
    Quit,
}

/// The argument of CLIENT REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyMode {
    On,
    Off,
    /// No reply to this command and the next.
    Skip,
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

/// The maximum length of a client's name, and of the name and version of its library, in bytes. A
/// connection keeps them.
const MAX_NAME_BYTES: usize = 256;
/// The number of bytes of a name, and of all arguments, that an error reply repeats, as in Redis.
const MAX_QUOTED_BYTES: usize = 128;

fn error(text: &str) -> Command {
    Command::Local(Reply::Error(format!("ERR {text}")))
}

fn number(argument: &[u8]) -> Option<u64> {
    std::str::from_utf8(argument).ok()?.parse().ok()
}

fn quoted(bytes: &[u8], limit: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(limit)]).into_owned()
}

/// Parses a command. A command that the server does not execute becomes [`Command::Local`] with the
/// error that Redis replies.
pub(crate) fn parse(arguments: &[&[u8]]) -> Command {
    let Some((name, rest)) = arguments.split_first() else { return error("empty command") };
    let upper = name.to_ascii_uppercase();
    // Transactions are not among the commands that COMMAND lists.
    match (upper.as_slice(), rest) {
        (b"MULTI", []) => return Command::Connection(ConnectionCommand::Multi),
        (b"EXEC", []) => return Command::Connection(ConnectionCommand::Exec),
        (b"DISCARD", []) => return Command::Connection(ConnectionCommand::Discard),
        (b"UNWATCH", []) => return Command::Local(Reply::Simple("OK")),
        (b"WATCH", [_, ..]) => {
            return error(
                "WATCH is not supported: the store has no transactions; CAS changes one key conditionally",
            );
        }
        _ => {}
    }
    let Some(spec) = table::find(name) else {
        let is_known = [&b"MULTI"[..], b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH"].contains(&&upper[..]);
        return if is_known { wrong_arity(&quoted(name, MAX_QUOTED_BYTES)) } else { unknown(name, rest) };
    };
    if !spec.accepts(arguments.len()) {
        return wrong_arity(spec.name);
    }
    parse_known(&upper, rest)
}

fn wrong_arity(name: &str) -> Command {
    error(&format!("wrong number of arguments for '{}' command", name.to_ascii_lowercase()))
}

fn unknown(name: &[u8], rest: &[&[u8]]) -> Command {
    let mut text =
        format!("unknown command '{}', with args beginning with: ", quoted(name, MAX_QUOTED_BYTES));
    let begin = text.len();
    for argument in rest {
        let quoted_before = text.len() - begin;
        if quoted_before >= MAX_QUOTED_BYTES {
            break;
        }
        text += &format!("'{}' ", quoted(argument, MAX_QUOTED_BYTES - quoted_before));
    }
    error(&text)
}

fn unknown_subcommand(container: &str, subcommand: &[u8]) -> Command {
    error(&format!("unknown subcommand '{}'. Try {container} HELP.", quoted(subcommand, MAX_QUOTED_BYTES)))
}

/// Parses a command of the table, whose number of words is right.
fn parse_known(name: &[u8], rest: &[&[u8]]) -> Command {
    let to_vec = |argument: &[u8]| argument.to_vec();
    match (name, rest) {
        (b"PING", []) => Command::Local(Reply::Simple("PONG")),
        (b"PING" | b"ECHO", [text]) => Command::Local(Reply::bulk(*text)),
        (b"QUIT", _) => Command::Connection(ConnectionCommand::Quit),
        (b"RESET", _) => Command::Connection(ConnectionCommand::Reset),
        (b"SELECT", [b"0"]) => Command::Local(Reply::Simple("OK")),
        (b"SELECT", [index]) if number(index).is_some() => error("DB index is out of range"),
        (b"SELECT", _) => error("invalid DB index"),
        (b"AUTH", [_]) => error(
            "AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
        ),
        (b"AUTH", [user, _]) => authenticate(user).unwrap_or(Command::Local(Reply::Simple("OK"))),
        (b"AUTH", _) => error("syntax error"),
        (b"HELLO", _) => parse_hello(rest),
        (b"CLIENT", [subcommand, words @ ..]) => parse_client(subcommand, words),
        (b"COMMAND", [help]) if help.eq_ignore_ascii_case(b"HELP") => {
            self::help(&["COUNT", "LIST", "INFO [command ...]", "DOCS [command ...]"])
        }
        (b"COMMAND", _) => match table::reply(rest) {
            Some(reply) => Command::Local(reply),
            None => unknown_subcommand("COMMAND", rest[0]),
        },
        (b"CONFIG", [get, patterns @ ..]) if get.eq_ignore_ascii_case(b"GET") => match patterns {
            [] => wrong_arity("config|get"),
            _ => Command::ConfigGet(patterns.iter().map(|pattern| to_vec(pattern)).collect()),
        },
        (b"CONFIG", [help]) if help.eq_ignore_ascii_case(b"HELP") => self::help(&["GET pattern ..."]),
        (b"CONFIG", [subcommand, ..]) => unknown_subcommand("CONFIG", subcommand),
        (b"INFO", _) => Command::Info,
        (b"GET", [key]) => Command::Get(to_vec(key)),
        (b"EXISTS", _) => Command::Exists(rest.iter().map(|key| to_vec(key)).collect()),
        (b"SET", [key, value]) => {
            Command::Change(vec![Change::Put { key: to_vec(key), value: to_vec(value) }], ReplyStyle::Ok)
        }
        (b"SET", [key, value, option]) if option.eq_ignore_ascii_case(b"NX") => {
            Command::Change(vec![cas(key, None, Some(to_vec(value)))], ReplyStyle::OkOrNil)
        }
        (b"SET", _) => error("syntax error: SET takes a key, a value, and optionally NX; keys never expire"),
        (b"DEL" | b"UNLINK", _) => Command::Change(
            rest.iter().map(|key| Change::Delete { key: to_vec(key) }).collect(),
            ReplyStyle::Count,
        ),
        (b"CAS", [key, expected, value]) => {
            Command::Change(vec![cas(key, Some(to_vec(expected)), Some(to_vec(value)))], ReplyStyle::Count)
        }
        (b"MITRA.OPEN", []) => Command::InSession(Request::OpenSession),
        (b"MITRA.DO", [session, sequence, change @ ..]) => {
            match (number(session), number(sequence), parse_session_change(change)) {
                (Some(session), Some(sequence), Some(change)) => {
                    Command::InSession(Request::Change { session: Session(session), sequence, change })
                }
                _ => error("MITRA.DO takes a session, a sequence number, and PUT, DELETE or CAS"),
            }
        }
        (b"MITRA.GET", [key]) => Command::InSession(Request::Get { key: to_vec(key) }),
        (b"MITRA.WATCH", [key]) => Command::Watch(to_vec(key)),
        _ => wrong_arity(&quoted(name, MAX_QUOTED_BYTES)),
    }
}

fn help(subcommands: &[&str]) -> Command {
    Command::Local(Reply::Array(subcommands.iter().map(|line| Reply::bulk(*line)).collect()))
}

/// Returns the error of AUTH for a user other than the default user, which has no password.
fn authenticate(user: &[u8]) -> Option<Command> {
    let refused = "WRONGPASS invalid username-password pair or user is disabled.";
    (user != b"default").then(|| Command::Local(Reply::Error(refused.into())))
}

fn parse_hello(words: &[&[u8]]) -> Command {
    let Some((version, mut options)) = words.split_first() else {
        return Command::Connection(ConnectionCommand::Hello(None, None));
    };
    let protocol = match number(version) {
        Some(2) => Protocol::Resp2,
        Some(3) => Protocol::Resp3,
        Some(_) => return Command::Local(Reply::Error("NOPROTO unsupported protocol version".into())),
        None => return error("Protocol version is not an integer or out of range"),
    };
    let mut name = None;
    while let [option, words @ ..] = options {
        options = match (option.to_ascii_uppercase().as_slice(), words) {
            (b"AUTH", [user, _, rest @ ..]) => match authenticate(user) {
                Some(refused) => return refused,
                None => rest,
            },
            (b"SETNAME", [new, rest @ ..]) => match parse_name("Client names", new) {
                Ok(new) => {
                    name = Some(new);
                    rest
                }
                Err(refused) => return refused,
            },
            _ => {
                return error(&format!(
                    "Syntax error in HELLO option '{}'",
                    quoted(option, MAX_QUOTED_BYTES)
                ));
            }
        };
    }
    Command::Connection(ConnectionCommand::Hello(Some(protocol), name))
}

/// Parses a name that CLIENT INFO prints, where spaces and line breaks separate fields.
fn parse_name(what: &str, name: &[u8]) -> Result<String, Command> {
    if name.len() > MAX_NAME_BYTES {
        return Err(error(&format!("{what} have at most {MAX_NAME_BYTES} bytes.")));
    }
    match name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(String::from_utf8_lossy(name).into_owned()),
        false => Err(error(&format!("{what} cannot contain spaces, newlines or special characters."))),
    }
}

fn parse_client(subcommand: &[u8], words: &[&[u8]]) -> Command {
    use ConnectionCommand::{
        ClientGetName, ClientId, ClientInfo, ClientLibrary, ClientLibraryVersion, ClientReply, ClientSetName,
    };
    let upper = subcommand.to_ascii_uppercase();
    let command = match (upper.as_slice(), words) {
        (b"ID", []) => ClientId,
        (b"INFO", []) => ClientInfo,
        (b"GETNAME", []) => ClientGetName,
        (b"SETNAME", [name]) => match parse_name("Client names", name) {
            Ok(name) => ClientSetName(name),
            Err(refused) => return refused,
        },
        (b"SETINFO", [option, value]) => {
            let set: fn(String) -> ConnectionCommand = match option.to_ascii_uppercase().as_slice() {
                b"LIB-NAME" => ClientLibrary,
                b"LIB-VER" => ClientLibraryVersion,
                _ => return error(&format!("Unrecognized option '{}'", quoted(option, MAX_QUOTED_BYTES))),
            };
            match parse_name(&quoted(option, MAX_QUOTED_BYTES).to_ascii_lowercase(), value) {
                Ok(value) => set(value),
                Err(refused) => return refused,
            }
        }
        (b"REPLY", [mode]) => ClientReply(match mode.to_ascii_uppercase().as_slice() {
            b"ON" => ReplyMode::On,
            b"OFF" => ReplyMode::Off,
            b"SKIP" => ReplyMode::Skip,
            _ => return error("syntax error"),
        }),
        (b"HELP", []) => {
            return help(&[
                "GETNAME",
                "ID",
                "INFO",
                "REPLY ON|OFF|SKIP",
                "SETINFO LIB-NAME|LIB-VER value",
                "SETNAME name",
            ]);
        }
        (b"ID" | b"INFO" | b"GETNAME" | b"SETNAME" | b"SETINFO" | b"REPLY" | b"HELP", _) => {
            return wrong_arity(&format!("client|{}", quoted(&upper, MAX_QUOTED_BYTES)));
        }
        _ => return unknown_subcommand("CLIENT", subcommand),
    };
    Command::Connection(command)
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
    fn kv_hello() {
        let hello = |protocol, name: Option<&str>| {
            Command::Connection(ConnectionCommand::Hello(protocol, name.map(str::to_owned)))
        };
        assert_eq!(parsed("HELLO"), hello(None, None));
        assert_eq!(parsed("hello 2"), hello(Some(Protocol::Resp2), None));
        assert_eq!(parsed("HELLO 3 AUTH default x SETNAME me"), hello(Some(Protocol::Resp3), Some("me")));
        for (line, text) in [
            ("HELLO 4", "NOPROTO unsupported protocol version"),
            ("HELLO x", "ERR Protocol version is not an integer or out of range"),
            ("HELLO 3 AUTH root x", "WRONGPASS invalid username-password pair or user is disabled."),
            ("HELLO 3 AUTH default", "ERR Syntax error in HELLO option 'AUTH'"),
            ("HELLO 3 MAYBE", "ERR Syntax error in HELLO option 'MAYBE'"),
            (
                "HELLO 3 SETNAME a\nb",
                "ERR Client names cannot contain spaces, newlines or special characters.",
            ),
        ] {
            assert_eq!(parsed(line), Command::Local(Reply::Error(text.into())), "{line}");
        }
    }

    /// The texts are those of Redis 7. Clients compare some of them.
    #[test]
    fn refused_commands_are_redis_errors() {
        for (line, text) in [
            ("", "ERR unknown command '', with args beginning with: "),
            ("FLUSHALL", "ERR unknown command 'FLUSHALL', with args beginning with: "),
            ("incrby k 1", "ERR unknown command 'incrby', with args beginning with: 'k' '1' "),
            ("GET", "ERR wrong number of arguments for 'get' command"),
            ("SET k", "ERR wrong number of arguments for 'set' command"),
            ("PING a b", "ERR wrong number of arguments for 'ping' command"),
            ("MULTI now", "ERR wrong number of arguments for 'multi' command"),
            ("CLIENT ID x", "ERR wrong number of arguments for 'client|id' command"),
            ("CLIENT KILL x", "ERR unknown subcommand 'KILL'. Try CLIENT HELP."),
            ("CLIENT SETINFO OS x", "ERR Unrecognized option 'OS'"),
            ("CLIENT REPLY MAYBE", "ERR syntax error"),
            ("CONFIG GET", "ERR wrong number of arguments for 'config|get' command"),
            ("CONFIG SET a b", "ERR unknown subcommand 'SET'. Try CONFIG HELP."),
            ("COMMAND GETKEYS get k", "ERR unknown subcommand 'GETKEYS'. Try COMMAND HELP."),
            ("SELECT 1", "ERR DB index is out of range"),
            ("SELECT x", "ERR invalid DB index"),
            (
                "SET k v EX 10",
                "ERR syntax error: SET takes a key, a value, and optionally NX; keys never expire",
            ),
            (
                "MITRA.DO x 1 PUT k v",
                "ERR MITRA.DO takes a session, a sequence number, and PUT, DELETE or CAS",
            ),
            (
                "MITRA.DO 1 1 CAS k a b",
                "ERR MITRA.DO takes a session, a sequence number, and PUT, DELETE or CAS",
            ),
        ] {
            assert_eq!(parsed(line), Command::Local(Reply::Error(text.into())), "{line}");
        }
        let long = [b'x'; 5000];
        let Command::Local(Reply::Error(text)) = parse(&[&long, &long, &long, &long]) else {
            panic!("an error")
        };
        assert!(text.len() < 400, "{} bytes", text.len());
    }

    /// Every command that COMMAND lists is executed, whatever its arguments.
    #[test]
    fn listed_commands_are_known() {
        let Some(Reply::Array(names)) = table::reply(&[b"LIST"]) else { panic!("a list") };
        for name in names {
            let Reply::Bulk(Some(name)) = name else { panic!("a name") };
            for words in 0..6 {
                let arguments: Vec<&[u8]> =
                    [&name[..]].into_iter().chain([&b"0"[..]; 6]).take(words + 1).collect();
                let is_unknown = |text: &str| text.starts_with("ERR unknown command");
                assert!(
                    !matches!(parse(&arguments), Command::Local(Reply::Error(text)) if is_unknown(&text))
                );
            }
        }
    }
}

//! What a client has set for its connection, and the commands that read and change it.

use crate::command::{ConnectionCommand, ReplyMode};
use crate::resp::{Protocol, Reply};

/// The reply to MULTI. The store cannot execute several commands as one.
const NO_TRANSACTIONS: &str =
    "ERR MULTI is not supported: the store has no transactions; CAS changes one key conditionally";
/// The reply to each command between a refused MULTI and EXEC or DISCARD.
const IN_REFUSED_TRANSACTION: &str =
    "ERR not executed: MULTI was refused on this connection; EXEC, DISCARD or RESET ends the transaction";

pub(super) struct ClientState {
    /// The number of the connection, from 1.
    id: u64,
    /// The addresses of the client and of the server.
    addresses: String,
    protocol: Protocol,
    name: String,
    library: String,
    library_version: String,
    is_silent: bool,
    skips_next: bool,
    /// Whether MULTI was refused, and neither EXEC nor DISCARD has followed. A client may have sent
    /// the commands of the transaction already, and must not have them executed one by one.
    in_refused_transaction: bool,
}

/// How the reply to a request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReplyForm {
    pub(super) protocol: Protocol,
    /// Whether the reply is not sent at all.
    pub(super) is_silent: bool,
}

impl ClientState {
    pub(super) fn new(id: u64, addresses: String) -> ClientState {
        ClientState {
            id,
            addresses,
            protocol: Protocol::Resp2,
            name: String::new(),
            library: String::new(),
            library_version: String::new(),
            is_silent: false,
            skips_next: false,
            in_refused_transaction: false,
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the reply to a command that is part of a refused transaction, or `None` if the
    /// command is not.
    pub(super) fn refusal(&self) -> Option<Reply> {
        self.in_refused_transaction.then(|| Reply::Error(IN_REFUSED_TRANSACTION.into()))
    }

    /// Executes a command about the connection. The caller has asked [`ClientState::refusal`]
    /// first, if the command does not end a transaction.
    pub(super) fn execute(&mut self, command: ConnectionCommand) -> Reply {
        match command {
            ConnectionCommand::Hello(protocol, name) => {
                self.protocol = protocol.unwrap_or(self.protocol);
                self.name = name.unwrap_or(std::mem::take(&mut self.name));
                return self.hello();
            }
            ConnectionCommand::ClientId => return Reply::Integer(self.id as i64),
            ConnectionCommand::ClientInfo => return Reply::Text(self.info()),
            ConnectionCommand::ClientGetName => {
                return Reply::Bulk((!self.name.is_empty()).then(|| self.name.clone().into_bytes()));
            }
            ConnectionCommand::ClientSetName(name) => self.name = name,
            ConnectionCommand::ClientLibrary(name) => self.library = name,
            ConnectionCommand::ClientLibraryVersion(version) => self.library_version = version,
            ConnectionCommand::ClientReply(mode) => {
                self.is_silent = mode == ReplyMode::Off || (self.is_silent && mode == ReplyMode::Skip);
                self.skips_next = mode == ReplyMode::Skip;
            }
            ConnectionCommand::Multi => {
                self.in_refused_transaction = true;
                return Reply::Error(NO_TRANSACTIONS.into());
            }
            ConnectionCommand::Exec => {
                return Reply::Error(match std::mem::take(&mut self.in_refused_transaction) {
                    true => "EXECABORT Transaction discarded because of previous errors.".into(),
                    false => "ERR EXEC without MULTI".into(),
                });
            }
            ConnectionCommand::Discard => {
                if !std::mem::take(&mut self.in_refused_transaction) {
                    return Reply::Error("ERR DISCARD without MULTI".into());
                }
            }
            ConnectionCommand::Reset => {
                *self = ClientState::new(self.id, std::mem::take(&mut self.addresses));
                return Reply::Simple("RESET");
            }
            ConnectionCommand::Quit => {}
        }
        Reply::Simple("OK")
    }

    /// Returns the form of the reply to a command, after [`ClientState::execute`] if that executes
    /// it. The reply to HELLO is in the new protocol. `is_skip` says that the command was
    /// CLIENT REPLY SKIP.
    pub(super) fn reply_form(&mut self, is_skip: bool) -> ReplyForm {
        let is_skipped = if is_skip { true } else { std::mem::take(&mut self.skips_next) };
        ReplyForm { protocol: self.protocol, is_silent: self.is_silent || is_skipped }
    }

    fn hello(&self) -> Reply {
        let protocol = match self.protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        };
        let fields = [
            ("server", Reply::bulk("mitra")),
            ("version", Reply::bulk(env!("CARGO_PKG_VERSION"))),
            ("proto", Reply::Integer(protocol)),
            ("id", Reply::Integer(self.id as i64)),
            ("mode", Reply::bulk("standalone")),
            ("role", Reply::bulk("master")),
            ("modules", Reply::Array(Vec::new())),
        ];
        Reply::Map(fields.map(|(name, value)| (Reply::bulk(name), value)).into())
    }

    fn info(&self) -> String {
        let protocol = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        format!(
            "id={} {} name={} db=0 resp={protocol} lib-name={} lib-ver={}\n",
            self.id, self.addresses, self.name, self.library, self.library_version
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ClientState {
        ClientState::new(7, "addr=127.0.0.1:1 laddr=127.0.0.1:2".into())
    }

    #[test]
    fn kv_hello_sets_protocol_and_name() {
        let mut state = state();
        let Reply::Map(fields) =
            state.execute(ConnectionCommand::Hello(Some(Protocol::Resp3), Some("me".into())))
        else {
            panic!("a map")
        };
        assert!(fields.contains(&(Reply::bulk("proto"), Reply::Integer(3))), "{fields:?}");
        assert_eq!(state.protocol(), Protocol::Resp3);
        state.execute(ConnectionCommand::Hello(None, None));
        assert_eq!(state.protocol(), Protocol::Resp3, "HELLO without a version changes nothing");
        assert_eq!(state.execute(ConnectionCommand::ClientGetName), Reply::bulk("me"));
        assert_eq!(state.execute(ConnectionCommand::Reset), Reply::Simple("RESET"));
        assert_eq!(state.protocol(), Protocol::Resp2);
        assert_eq!(state.execute(ConnectionCommand::ClientGetName), Reply::Bulk(None));
    }

    #[test]
    fn refused_transaction_ends_with_exec_or_discard() {
        let mut state = state();
        for (end, reply) in [
            (
                ConnectionCommand::Exec,
                Reply::Error("EXECABORT Transaction discarded because of previous errors.".into()),
            ),
            (ConnectionCommand::Discard, Reply::Simple("OK")),
            (ConnectionCommand::Reset, Reply::Simple("RESET")),
        ] {
            assert_eq!(state.refusal(), None);
            assert!(
                matches!(state.execute(ConnectionCommand::Multi), Reply::Error(text) if text.starts_with("ERR MULTI"))
            );
            assert!(state.refusal().is_some());
            assert_eq!(state.execute(end), reply);
        }
        assert_eq!(state.refusal(), None);
        assert_eq!(state.execute(ConnectionCommand::Exec), Reply::Error("ERR EXEC without MULTI".into()));
    }

    #[test]
    fn client_reply_silences_replies() {
        let mut state = state();
        let mut sent = |command: Option<ConnectionCommand>| {
            let is_skip = command == Some(ConnectionCommand::ClientReply(ReplyMode::Skip));
            command.into_iter().for_each(|command| _ = state.execute(command));
            !state.reply_form(is_skip).is_silent
        };
        let mode = |mode| Some(ConnectionCommand::ClientReply(mode));
        assert!(sent(None));
        assert_eq!([sent(mode(ReplyMode::Skip)), sent(None), sent(None)], [false, false, true]);
        assert_eq!([sent(mode(ReplyMode::Off)), sent(None), sent(mode(ReplyMode::Skip))], [false; 3]);
        assert_eq!([sent(None), sent(mode(ReplyMode::On)), sent(None)], [false, true, true]);
    }
}

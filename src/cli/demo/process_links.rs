//! The connections between the coordinator and the two participants (client and server process):
//! both ends.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use anyhow::{Context, anyhow};
use mitra_peer_process::{Error, PeerConnection, PeerProcess};
use nix::sys::signal::Signal;

use super::fault_plan::Side;
use super::protocol::{FromParticipant, ToParticipant};

/// This signal arrived: SIGINT or SIGTERM.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(super) struct Interrupted(pub(super) Signal);

impl Interrupted {
    /// The exit code of a shell for a program that the signal has ended.
    pub(super) fn exit_code(self) -> u8 {
        128 + self.0 as u8
    }
}

/// An input of the coordinator.
pub(super) enum Event {
    Message(Side, FromParticipant),
    /// A participant reported an error, or ended.
    Failed(Side, Error),
    Interrupted(Interrupted),
}

/// The client or the server process, owned by the coordinator. Dropping the value kills the
/// process.
pub(super) struct Participant {
    side: Side,
    process: PeerProcess,
}

impl Participant {
    /// Starts the process and a thread that forwards its messages to `events`.
    pub(super) fn start(side: Side, events: Sender<Event>) -> anyhow::Result<Participant> {
        let process = PeerProcess::start(side.peer_role())
            .with_context(|| format!("cannot start the {} process", side.name()))?;
        let mut connection = process.connection.try_clone()?;
        thread::Builder::new().name(format!("{}-messages", side.name())).spawn(move || {
            loop {
                let (event, is_last) = match connection.receive_within(None) {
                    Ok(message) => (Event::Message(side, message), false),
                    Err(error) => (Event::Failed(side, error), true),
                };
                // The coordinator drops the receiver at the end of the demo.
                if events.send(event).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Participant { side, process })
    }

    pub(super) fn send(&mut self, message: &ToParticipant) -> anyhow::Result<()> {
        self.process.connection.send(message).map_err(|error| self.side.process_error(error))
    }
}

impl Side {
    /// Names the process of this side in an error of its connection.
    pub(super) fn process_error(self, error: Error) -> anyhow::Error {
        let side = self.name();
        match error {
            Error::Reported(reported) => anyhow!("the {side} process: {reported}"),
            Error::Closed => anyhow!("the {side} process ended before the demo did"),
            error => {
                anyhow::Error::new(error).context(format!("the connection to the {side} process failed"))
            }
        }
    }
}

/// The coordinator, as a participant sees it.
pub(super) struct Coordinator {
    connection: PeerConnection,
    messages: Receiver<ToParticipant>,
}

impl Coordinator {
    /// Starts a thread that receives the coordinator's messages. The thread exits the process when
    /// the coordinator ends.
    pub(super) fn new(connection: &PeerConnection) -> anyhow::Result<Coordinator> {
        let (sender, messages) = channel();
        let mut receiving = connection.try_clone()?;
        thread::Builder::new().name("coordinator-messages".to_owned()).spawn(move || {
            while let Ok(message) = receiving.receive_within(None) {
                if sender.send(message).is_err() {
                    break;
                }
            }
            std::process::exit(0);
        })?;
        Ok(Coordinator { connection: connection.try_clone()?, messages })
    }

    /// Waits for a message. Exits the process if the coordinator has ended.
    pub(super) fn receive(&self) -> ToParticipant {
        self.messages.recv().unwrap_or_else(|_| std::process::exit(0))
    }

    /// Returns a message if one has arrived. Exits the process if the coordinator has ended.
    pub(super) fn try_receive(&self) -> Option<ToParticipant> {
        match self.messages.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => std::process::exit(0),
        }
    }

    /// Sends a message. Exits the process if the coordinator has ended.
    pub(super) fn send(&mut self, message: &FromParticipant) {
        if self.connection.send(message).is_err() {
            std::process::exit(0);
        }
    }
}

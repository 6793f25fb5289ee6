//! A client, which runs its scripts over a virtual queue pair.

use core::fmt;
use core::time::Duration;
use std::rc::Rc;

use mitra_driver::Connection;
use mitra_failover::VirtualQp;
use mitra_objects::{PathError, STAGING_BYTES};
use mitra_verbs::Error;

use super::connector::{CloseReasons, Connector, ServerEnd};
use mitra_sim::{AppContext, Prng};

/// The number of times that a client replaces a path that ended by itself.
const MAX_REPLACEMENTS: u32 = 3;

/// What a turn of a script has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Begun,
    /// An operation is in flight.
    Running,
    /// An operation has ended. Another script may begin one.
    Between,
    /// An operation has ended, and the script waits for another client.
    Waiting,
    Ended,
}

/// A client's operations on one object.
pub(super) trait Script {
    /// Drives the operation in flight, or begins the next operation.
    fn poll(&mut self, path: &mut Connection) -> Result<Turn, PathError>;

    /// Continues over a new path, after the old path has executed its last request. A crash loses
    /// the operation in flight and the description of the object. The script keeps what a program
    /// stores before an operation begins.
    fn on_new_path(&mut self, has_crashed: bool);
}

pub(super) struct Client {
    path: Connection,
    server: ServerEnd,
    connector: Rc<Connector>,
    scripts: Vec<Box<dyn Script>>,
    /// The script whose operation is in flight.
    current: usize,
    pub(super) begun: u64,
    /// The number of crashes that happen in the next turns.
    crashes: u32,
    replacements: u32,
    /// Whether the client has ended because it waits for a client that has ended.
    has_given_up: bool,
    /// The error that ended the client. The operation in flight is undecided.
    error: Option<PathError>,
    rng: Prng,
}

impl Client {
    pub(super) fn new(
        vqp: VirtualQp,
        server: ServerEnd,
        connector: Rc<Connector>,
        scripts: Vec<Box<dyn Script>>,
        rng: Prng,
    ) -> Client {
        let path = Connection::over(vqp, STAGING_BYTES).expect("the NICs have a free region");
        Client {
            path,
            server,
            connector,
            scripts,
            current: 0,
            begun: 0,
            crashes: 0,
            replacements: 0,
            has_given_up: false,
            error: None,
            rng,
        }
    }

    /// Lets the client crash in its next turn, and start again at once.
    pub(super) fn crash(&mut self) {
        self.crashes += 1;
    }

    pub(super) fn step(&mut self, ctx: &mut AppContext<'_>) {
        if self.is_done() {
            self.path.progress();
            return;
        }
        if self.crashes > 0 {
            self.crashes -= 1;
            self.replace_path(true);
            return ctx.mark_active();
        }
        let turn = self.scripts[self.current].poll(&mut self.path);
        match turn {
            Ok(Turn::Begun) => return self.begun += 1,
            Ok(Turn::Running) => return,
            Ok(Turn::Ended) => {
                self.scripts.swap_remove(self.current);
                ctx.mark_active();
            }
            Ok(Turn::Waiting) if self.connector.has_lost_client.get() => self.has_given_up = true,
            Ok(Turn::Waiting) => ctx.sleep(Duration::from_nanos(self.rng.below(50_000))),
            Ok(Turn::Between) => {}
            Err(PathError::Closed(_)) if self.replacements < MAX_REPLACEMENTS => {
                self.replacements += 1;
                self.connector.close_reasons.borrow_mut().push(self.close_reasons());
                return self.replace_path(false);
            }
            Err(error) => return self.end(error),
        }
        self.current = if self.scripts.is_empty() { 0 } else { self.rng.index(self.scripts.len()) };
    }

    /// Continues over a new virtual queue pair, after the server has closed the old one.
    fn replace_path(&mut self, has_crashed: bool) {
        match self.connector.replace(&mut self.path, &self.server) {
            Ok(()) => self.scripts.iter_mut().for_each(|script| script.on_new_path(has_crashed)),
            Err(error) => self.end(PathError::Verb(error)),
        }
    }

    pub(super) fn close_reasons(&self) -> CloseReasons {
        [self.path.vqp().and_then(VirtualQp::close_reason), self.server.borrow().close_reason()]
    }

    fn end(&mut self, error: PathError) {
        self.error = Some(error);
        self.connector.has_lost_client.set(true);
    }

    /// Whether the client runs no script any more.
    pub(super) fn is_done(&self) -> bool {
        self.error.is_some() || self.has_given_up || self.scripts.is_empty()
    }

    pub(super) fn has_finished(&self) -> bool {
        self.error.is_none() && self.scripts.is_empty()
    }

    /// The error that ended the client, apart from the end of the virtual queue pair and the loss
    /// of a NIC.
    pub(super) fn refusal(&self) -> Option<&PathError> {
        let is_loss =
            |error: &PathError| matches!(error, PathError::Closed(_) | PathError::Verb(Error::DeviceFatal));
        self.error.as_ref().filter(|&error| !is_loss(error))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("vqp", &self.path.vqp())
            .field("scripts", &self.scripts.len())
            .field("begun", &self.begun)
            .field("replacements", &self.replacements)
            .field("error", &self.error)
            .finish()
    }
}

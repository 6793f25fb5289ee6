//! The virtual queue pairs between a client and the server, and their replacement after a crash or
//! a failure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CloseReason, Config, Domain, RemoteRegion, Secret, VirtualQp};
use mitra_verbs::Result;

use crate::workload::virtual_qps;

/// The server's end of a client's virtual queue pair.
pub(super) type ServerEnd = Rc<RefCell<VirtualQp>>;

/// Why the two ends of a virtual queue pair closed. `None`: the end is open.
pub(super) type CloseReasons = [Option<CloseReason>; 2];

/// What is needed to connect a client to the server.
pub(super) struct Connector {
    /// The domains of the client and of the server.
    pub(super) domains: [Arc<Domain>; 2],
    pub(super) config: Config,
    pub(super) remote: RemoteRegion,
    pub(super) seed: u64,
    /// The number of secrets that were drawn.
    pub(super) secrets: Cell<u64>,
    /// Whether a client has ended before its scripts. The others then do not wait for it.
    pub(super) has_lost_client: Cell<bool>,
    /// Why the ends of virtual queue pairs closed that ended by themselves: the client's end and
    /// the server's.
    pub(super) close_reasons: RefCell<Vec<CloseReasons>>,
}

impl Connector {
    /// Connects a client's virtual queue pair with one of the server.
    pub(super) fn connect(&self) -> Result<[VirtualQp; 2]> {
        let secrets = [1, 2].map(|nth| Secret::fixed([self.secrets.get() + nth, self.seed]));
        self.secrets.set(self.secrets.get() + 2);
        let [mut a, b] = virtual_qps(self.domains.clone(), self.config, secrets)?;
        a.import(&self.remote)?;
        Ok([a, b])
    }

    /// Replaces both ends. The server closes the old virtual queue pair before: afterwards, nothing
    /// that was posted on it is executed.
    ///
    /// # Errors
    /// Any error of a NIC; [`Error::DeviceFatal`](mitra_verbs::Error::DeviceFatal) if a NIC is dead
    /// or hangs, since no queue pair can be created there.
    pub(super) fn replace(&self, client: &mut VirtualQp, server: &ServerEnd) -> Result<()> {
        let mut server = server.borrow_mut();
        server.close()?;
        client.close()?;
        let [a, b] = self.connect()?;
        (*client, *server) = (a, b);
        Ok(())
    }
}

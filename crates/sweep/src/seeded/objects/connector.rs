//! The virtual queue pairs between clients and the server, and their replacement after a crash or a
//! failure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_driver::Connection;
use mitra_failover::{CloseReason, Config, Domain, RemoteRegion, Secret, VirtualQp};
use mitra_objects::STAGING_BYTES;
use mitra_verbs::Result;

use mitra_sim::workload::virtual_qps;

pub(super) type ServerEnd = Rc<RefCell<VirtualQp>>;

/// Why the end of the client and the end of the server closed. `None`: the end is open.
pub(super) type CloseReasons = [Option<CloseReason>; 2];

pub(super) struct Connector {
    /// The domains of the clients and of the server.
    pub(super) domains: [Arc<Domain>; 2],
    pub(super) config: Config,
    pub(super) remote: RemoteRegion,
    pub(super) seed: u64,
    pub(super) secrets: Cell<u64>,
    /// Whether a client has ended before its scripts. The other clients then do not wait.
    pub(super) has_lost_client: Cell<bool>,
    /// For virtual queue pairs that ended by themselves.
    pub(super) close_reasons: RefCell<Vec<CloseReasons>>,
}

impl Connector {
    pub(super) fn connect(&self) -> Result<[VirtualQp; 2]> {
        let secrets = [1, 2].map(|nth| Secret::fixed([self.secrets.get() + nth, self.seed]));
        self.secrets.set(self.secrets.get() + 2);
        let [mut a, b] = virtual_qps(self.domains.clone(), self.config, secrets)?;
        a.import(&self.remote)?;
        Ok([a, b])
    }

    /// Replaces both ends. The server closes the old virtual queue pair first, after which no
    /// request of the old virtual queue pair is executed.
    ///
    /// # Errors
    /// Any error of a NIC; [`Error::DeviceFatal`](mitra_verbs::Error::DeviceFatal) if a NIC is dead
    /// or hangs.
    pub(super) fn replace(&self, client: &mut Connection, server: &ServerEnd) -> Result<()> {
        let mut server = server.borrow_mut();
        server.close()?;
        client.close()?;
        let [a, b] = self.connect()?;
        (*client, *server) = (Connection::over(a, STAGING_BYTES)?, b);
        Ok(())
    }
}

//! The NICs of a memory node: a domain and a connection per process.

use std::sync::Arc;

use mitra_consensus::ProcessId;
use mitra_consensus_memory::{MAX_MESSAGE_BYTES, NodeNic};
use mitra_failover::{Domain, VirtualMr};
use mitra_verbs::{Access, Buffer, Result};

use crate::link::Link;
use crate::link_poller::LinkPoller;

#[derive(Debug)]
pub(super) struct Nics {
    failover: mitra_failover::Config,
    /// Per process, a domain with protection domains of its own.
    domains: Vec<Arc<Domain>>,
    links: Vec<Option<Link>>,
    poller: LinkPoller,
}

impl Nics {
    pub(super) fn new(
        domain: &Domain,
        processes: usize,
        failover: mitra_failover::Config,
        poller: LinkPoller,
    ) -> Result<Nics> {
        let domains = (0..processes).map(|_| domain.with_own_pds()).collect::<Result<_>>()?;
        Ok(Nics { failover, domains, links: (0..processes).map(|_| None).collect(), poller })
    }

    pub(super) fn links(&mut self) -> impl Iterator<Item = (ProcessId, &mut Link)> {
        let links = (0..).map(ProcessId).zip(&mut self.links);
        links.filter_map(|(p, link)| link.as_mut().map(|link| (p, link)))
    }

    /// Sends a message to a process. The message is dropped if the process has disconnected,
    /// because the process then connects again and repeats its request.
    pub(super) fn send(&mut self, p: ProcessId, message: Vec<u8>) {
        if let Some(link) = &mut self.links[usize::from(p.0)] {
            link.send(message);
        }
    }

    fn domain(&self, p: ProcessId) -> &Arc<Domain> {
        &self.domains[usize::from(p.0)]
    }
}

impl NodeNic for Nics {
    type Key = VirtualMr;

    fn connect(&mut self, p: ProcessId, info: &[u8]) -> Option<Vec<u8>> {
        let connect = || {
            let mut link =
                Link::new(self.domain(p), (&self.poller, p.0), self.failover, MAX_MESSAGE_BYTES, 0)?;
            let own = link.info()?;
            link.connect(info)?;
            Ok((link, own))
        };
        let connected: Result<_> = connect();
        let (link, own) = connected.ok()?;
        self.links[usize::from(p.0)] = Some(link);
        Some(own)
    }

    fn close(&mut self, p: ProcessId) {
        let _ = self.links[usize::from(p.0)].take().map(|mut link| link.close());
    }

    fn register(&mut self, p: ProcessId, buffer: &Arc<Buffer>, access: Access) -> Option<VirtualMr> {
        self.domain(p).register(buffer, access).ok()
    }

    fn encode(&self, key: &VirtualMr) -> Vec<u8> {
        key.remote().encode()
    }

    fn deregister(&mut self, p: ProcessId, key: &VirtualMr) -> bool {
        self.domain(p).deregister(key).is_ok()
    }
}

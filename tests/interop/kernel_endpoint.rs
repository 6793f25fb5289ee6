//! The kernel's endpoint of a connection, driven through `rxe_peer`.

use anyhow::{Context as _, Result};

use super::rxe_peer_protocol::{Completion, Peer};

/// One `rxe_peer` with one region (mr 0) and one queue pair (qp 0).
pub(crate) struct KernelEndpoint {
    pub(crate) peer: Peer,
    pub(crate) qpn: u64,
    pub(crate) psn: u64,
    pub(crate) addr: u64,
    pub(crate) rkey: u64,
}

impl KernelEndpoint {
    /// Creates the endpoint. `qp` and `region` are the arguments of `rxe_peer`'s commands `qp` and
    /// `mr`.
    pub(crate) fn new(device: &str, qp: &str, region: &str) -> Result<Self> {
        let mut peer = Peer::open(device)?;
        let mr = peer.ask(&format!("mr {region}"))?;
        let qp = peer.ask(&format!("qp {qp}"))?;
        let (qpn, psn) = (qp.number("qpn")?, qp.number("psn")?);
        Ok(Self { peer, qpn, psn, addr: mr.number("addr")?, rkey: mr.number("rkey")? })
    }

    /// Takes the queue pair to RTS, connected to the queue pair `qpn`, whose first PSN is `psn`.
    pub(crate) fn connect(&mut self, ip: &str, qpn: u64, psn: u64, attributes: &str) -> Result<()> {
        let sq_psn = self.psn;
        self.peer
            .ask(&format!("connect qp=0 ip={ip} qpn={qpn} rq_psn={psn} sq_psn={sq_psn} {attributes}"))?;
        Ok(())
    }

    /// Posts a signalled request and returns its completion.
    pub(crate) fn run(&mut self, request: &str) -> Result<Completion> {
        self.peer.ask(&format!("post qp=0 flags=s {request}"))?;
        self.peer.completion()
    }

    pub(crate) fn value(&mut self, off: u64) -> Result<u64> {
        let answer = self.peer.ask(&format!("get mr=0 off={off} len=8"))?;
        let hex = answer.text("hex").context("no hex")?;
        Ok(u64::from_str_radix(hex, 16)?.swap_bytes())
    }

    pub(crate) fn set(&mut self, off: u64, value: u64) -> Result<()> {
        self.peer.ask(&format!("put mr=0 off={off} hex={:016x}", value.swap_bytes()))?;
        Ok(())
    }

    pub(crate) fn state(&mut self) -> Result<String> {
        Ok(self.peer.ask("query qp=0")?.text("state").unwrap_or_default().to_owned())
    }
}

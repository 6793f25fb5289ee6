//! Ends of connections, and a stream of WRITEs between two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mitra_hardnic::HardNic;
use mitra_verbs::{
    Access, Buffer, CqId, Data, Error, LocalAckTimeout, Mr, PdId, Provider, Psn, QpAttr, QpBuilder, QpState,
    QpType, Qpn, RcConnection, RemoteAddr, SendOp, SendWr, Wc, WcStatus,
};

pub const WRITE: u32 = 64 << 10;
/// The WRITEs in flight. Each has other bytes than the one before it.
pub const WINDOW: u64 = 8;
/// The first PSN of both directions.
pub const FIRST_PSN: Psn = Psn::new(0xab_cdef);
/// A stream that has not ended after this time hangs.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// An end of a connection, with memory.
pub struct End<'a> {
    pub nic: &'a HardNic,
    pub pd: PdId,
    pub cq: CqId,
    pub qp: Qpn,
    pub memory: Arc<Buffer>,
    pub mr: Mr,
    qp_type: QpType,
}

impl<'a> End<'a> {
    pub fn new(nic: &'a HardNic, bytes: usize) -> mitra_verbs::Result<End<'a>> {
        End::of_type(QpType::Rc, nic, bytes)
    }

    pub fn of_type(qp_type: QpType, nic: &'a HardNic, bytes: usize) -> mitra_verbs::Result<End<'a>> {
        let pd = nic.alloc_pd()?;
        let memory = Arc::new(Buffer::new(bytes));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE)?;
        let cq = nic.create_cq(64, None)?;
        let qp = QpBuilder::new(qp_type, pd, cq).build(nic)?;
        Ok(End { nic, pd, cq, qp, memory, mr, qp_type })
    }

    /// Changes the state from RESET to RTS.
    pub fn connect(&self, peer: &End<'_>) -> mitra_verbs::Result<()> {
        let port = peer.nic.query_port()?;
        let connection = RcConnection {
            path_mtu: self.nic.query_port()?.max_mtu.min(port.max_mtu),
            local_ack_timeout: LocalAckTimeout::from_code(12),
            retry_cnt: 3,
            sq_psn: FIRST_PSN,
            rq_psn: FIRST_PSN,
            ..RcConnection::to(port.gid, peer.qp)
        };
        if self.qp_type == QpType::Rc {
            return connection.connect(self.nic, self.qp);
        }
        let rtr = QpAttr { max_dest_rd_atomic: None, min_rnr_timer: None, ..connection.rtr() };
        let rts = QpAttr { sq_psn: Some(FIRST_PSN), ..QpAttr::to(QpState::Rts) };
        [connection.init(), rtr, rts].iter().try_for_each(|attr| self.nic.modify_qp(self.qp, attr))
    }

    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr, rkey: self.mr.rkey }
    }

    /// Destroys all that this end has. Its queue pair may have been destroyed before.
    pub fn destroy(self) -> mitra_verbs::Result<()> {
        match self.nic.destroy_qp(self.qp) {
            Ok(()) | Err(Error::NoSuchObject { .. }) => {}
            Err(error) => return Err(error),
        }
        self.nic.dereg_mr(self.mr.id)?;
        self.nic.destroy_cq(self.cq)?;
        self.nic.dealloc_pd(self.pd)
    }

    /// Takes completions until there are `count`.
    pub fn completions(&self, count: usize) -> Result<Vec<Wc>, String> {
        let (mut polled, begin) = (Vec::new(), Instant::now());
        while polled.len() < count {
            self.nic.poll_cq(self.cq, count - polled.len(), &mut polled).map_err(|e| e.to_string())?;
            if begin.elapsed() > TIMEOUT {
                return Err(format!("{polled:?} in place of {count} completions after {TIMEOUT:?}"));
            }
            thread::yield_now();
        }
        Ok(polled)
    }
}

/// Fills the memory of the requester of a stream.
pub fn fill(requester: &End<'_>) {
    for slot in 0..WINDOW as usize {
        requester.memory.write_at(slot * WRITE as usize, &[slot as u8 + 1; WRITE as usize]);
    }
}

/// Posts WRITEs until one fails or `is_over`, and waits for those behind it, of which none may
/// succeed. Returns the statuses of those that failed.
pub fn stream(
    requester: &End<'_>,
    remote: RemoteAddr,
    completed: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<Vec<WcStatus>, String> {
    let deadline = Instant::now() + TIMEOUT;
    let (mut posted, mut ended, mut failed) = (0, 0, Vec::new());
    let mut polled: Vec<Wc> = Vec::new();
    let is_ending = |failed: &[WcStatus]| !failed.is_empty() || is_over.load(Ordering::Acquire);
    while !is_ending(&failed) || ended < posted {
        if Instant::now() > deadline {
            return Err(format!("{ended} of {posted} WRITEs have ended after {TIMEOUT:?}"));
        }
        while !is_ending(&failed) && posted - ended < WINDOW {
            let data = Data::sge(requester.mr.sge(posted % WINDOW * u64::from(WRITE), WRITE));
            let wr = SendWr::new(posted, SendOp::Write(remote), data);
            requester.nic.post_send(requester.qp, &[wr]).map_err(|refused| refused.error.to_string())?;
            posted += 1;
        }
        polled.clear();
        requester.nic.poll_cq(requester.cq, 16, &mut polled).map_err(|error| error.to_string())?;
        for wc in &polled {
            match wc.status {
                WcStatus::Success if failed.is_empty() => _ = completed.fetch_add(1, Ordering::Release),
                WcStatus::Success => return Err("a WRITE behind a failed one succeeded".into()),
                status => failed.push(status),
            }
            ended += 1;
        }
        thread::yield_now();
    }
    Ok(failed)
}

pub fn bytes_of(memory: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes);
    bytes
}

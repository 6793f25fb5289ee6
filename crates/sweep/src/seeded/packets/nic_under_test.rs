//! A NIC whose packets and memory the workload handles directly.

use mitra_transport::{Nic, NicConfig, TxBatch, VecMemory};
use mitra_verbs::{
    Access, CqId, Gid, Mr, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, RegionId, Result, Time, Wc,
    WcStatus,
};
use mitra_wire::{AtomicEth, ICRC_LEN, Message, Packet, Psn, Reth, Syndrome, Transport};

use super::responder_model::{Answer, Operation, Position, REGION_LEN, Request, Target};
use mitra_sim::Prng;

pub(super) const PEER: Gid = Gid([1; 16]);
const PEER_QPN: Qpn = Qpn::new(77);
/// The address of the first region. The other regions follow at a distance of [`GAP`].
const BASE: u64 = 0x10_0000;
const GAP: u64 = 0x1_0000;

pub(super) struct NicUnderTest {
    pub(super) nic: Nic,
    pub(super) memory: VecMemory,
    pub(super) now: Time,
    pub(super) qpn: Qpn,
    pub(super) regions: [Mr; 4],
    init: QpInitAttr,
    /// Whether the queues for sends and for receives are armed only for solicited completions and
    /// errors.
    solicited_only: [bool; 2],
    /// The message sequence number of the last answer.
    pub(super) last_msn: Option<u32>,
    max_fetches: u8,
}

/// The bytes behind the end of each region, in which an access beyond the region shows.
pub(super) const MARGIN: usize = 64;

impl NicUnderTest {
    pub(super) fn new(rng: &mut Prng, max_fetches: u8) -> Result<NicUnderTest> {
        let mut nic = Nic::new(NicConfig::new("nic", Gid([2; 16]), rng.key()));
        let now = Time::from_nanos(1);
        let (pd, other) = (nic.alloc_pd()?, nic.alloc_pd()?);
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        let rights = [(pd, all), (pd, Access::LOCAL_WRITE | Access::REMOTE_READ), (other, all), (pd, all)];
        let mut memory = VecMemory::default();
        let mut register = |i: usize| {
            let (pd, access) = rights[i];
            memory.0.push(vec![0; REGION_LEN + MARGIN]);
            nic.reg_mr(now, pd, RegionId(i as u32), BASE + GAP * i as u64, REGION_LEN as u64, access)
        };
        let regions = [register(0)?, register(1)?, register(2)?, register(3)?];
        nic.dereg_mr(now, regions[3].id)?;
        let (send_cq, recv_cq) = (nic.create_cq(64)?, nic.create_cq(64)?);
        let cap = QpCap { inline: 64, ..QpCap::default() };
        let init = QpInitAttr { qp_type: QpType::Rc, pd, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
        let qpn = nic.create_qp(now, &init)?;
        let mut made = NicUnderTest {
            nic,
            memory,
            now,
            qpn,
            regions,
            init,
            solicited_only: [true; 2],
            last_msn: None,
            max_fetches,
        };
        made.arm([true; 2])?;
        Ok(made)
    }

    pub(super) fn recreate(&mut self) -> Result<()> {
        self.nic.destroy_qp(self.now, self.qpn)?;
        self.qpn = self.nic.create_qp(self.now, &self.init)?;
        Ok(())
    }

    pub(super) fn connect(&mut self, rq_psn: Psn, sq_psn: Psn) -> Result<()> {
        let init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE),
            ..QpAttr::to(QpState::Init)
        };
        let rtr = QpAttr {
            dest_gid: Some(PEER),
            dest_qpn: Some(PEER_QPN),
            path_mtu: Some(Mtu::M256),
            rq_psn: Some(rq_psn),
            max_dest_rd_atomic: Some(self.max_fetches),
            min_rnr_timer: Some(4),
            ..QpAttr::to(QpState::Rtr)
        };
        let rts = QpAttr {
            sq_psn: Some(sq_psn),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..QpAttr::to(QpState::Rts)
        };
        [init, rtr, rts].iter().try_for_each(|attr| self.nic.modify_qp(self.now, self.qpn, attr))
    }

    pub(super) fn state(&self) -> Result<QpState> {
        self.nic.query_qp(self.qpn).map(|status| status.state)
    }

    pub(super) fn deliver(&mut self, source: Gid, packet: &Packet<'_>) {
        self.nic.handle_packet(self.now, source, packet, &mut self.memory);
    }

    pub(super) fn deliver_request(&mut self, source: Gid, qpn: Qpn, request: &Request) {
        let region = Target::ALL.iter().position(|&target| target == request.target).unwrap_or_default();
        let (addr, rkey) = self.regions.get(region).map_or((BASE, 1), |mr| (mr.addr, mr.rkey.0));
        let va = addr + request.offset as u64;
        let reth = |len: usize| Reth { va, rkey, len: len as u32 + request.excess };
        let atomic = |swap_add, compare| AtomicEth { va, rkey, swap_add, compare };
        let (message, payload) = match &request.operation {
            Operation::Write { bytes, imm: None } => (Message::WriteOnly(reth(bytes.len())), &bytes[..]),
            Operation::Write { bytes, imm: Some(imm) } => {
                (Message::WriteOnlyImm(reth(bytes.len()), *imm), &bytes[..])
            }
            Operation::Send { bytes } => (Message::SendOnly, &bytes[..]),
            Operation::Read { len } => (Message::ReadRequest(reth(*len)), &[][..]),
            &Operation::CompareSwap { compare, swap } => {
                (Message::CompareSwap(atomic(swap, compare)), &[][..])
            }
            &Operation::FetchAdd { add } => (Message::FetchAdd(atomic(add, 0)), &[][..]),
        };
        let packet = Packet::new(Transport::Rc, qpn, request.psn, message, payload);
        self.deliver(source, &Packet { ack_req: true, solicited: request.is_solicited(), ..packet });
    }

    /// Takes all packets that the NIC sends now: answers, the PSNs of requests, and descriptions of
    /// other packets.
    pub(super) fn take_sent(&mut self) -> (Vec<Answer>, Vec<Psn>, Vec<String>) {
        let (mut answers, mut requests, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut batch = TxBatch::new();
        self.nic.flush_acks();
        while self.nic.poll_transmit(self.now, &mut self.memory, &mut batch) {
            for datagram in batch.datagrams() {
                let Ok(packet) = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]) else {
                    others.push("a malformed packet".to_owned());
                    continue;
                };
                let psn = packet.psn;
                if let Message::Ack(aeth)
                | Message::ReadFirst(aeth)
                | Message::ReadLast(aeth)
                | Message::ReadOnly(aeth)
                | Message::AtomicAck(aeth, _) = packet.message
                {
                    self.last_msn = Some(aeth.msn);
                }
                let data = |position| Answer::Data(psn, position, packet.payload.to_vec());
                match packet.message {
                    _ if batch.destination != PEER || packet.dest_qp != PEER_QPN => {
                        others.push(format!("{packet} to {:?}", batch.destination));
                    }
                    Message::Ack(aeth) => match aeth.syndrome {
                        Syndrome::Ack { .. } => answers.push(Answer::Ack(psn)),
                        Syndrome::Nak(code) => answers.push(Answer::Nak(psn, code)),
                        Syndrome::RnrNak { .. } => answers.push(Answer::RnrNak(psn)),
                        Syndrome::Reserved(_) => others.push(packet.to_string()),
                    },
                    Message::ReadFirst(_) => answers.push(data(Position::First)),
                    Message::ReadMiddle => answers.push(data(Position::Middle)),
                    Message::ReadLast(_) => answers.push(data(Position::Last)),
                    Message::ReadOnly(_) => answers.push(data(Position::Only)),
                    Message::AtomicAck(_, value) => answers.push(Answer::OldValue(psn, value)),
                    _ if packet.message.is_request() => requests.push(psn),
                    _ => others.push(packet.to_string()),
                }
            }
        }
        (answers, requests, others)
    }

    /// Drops the events of both queues, and arms the queues, which must be empty.
    pub(super) fn arm(&mut self, solicited_only: [bool; 2]) -> Result<()> {
        self.take_events();
        // A queue that is armed for any completion stays armed for any completion until its event
        // (IBTA volume 1, 11.4.2.2).
        self.solicited_only = [0, 1].map(|i| self.solicited_only[i] && solicited_only[i]);
        self.nic.req_notify_cq(self.init.send_cq, solicited_only[0])?;
        self.nic.req_notify_cq(self.init.recv_cq, solicited_only[1])
    }

    /// Returns whether each queue has raised an event since the last call. An event disarms its
    /// queue.
    pub(super) fn take_events(&mut self) -> [bool; 2] {
        let events: Vec<CqId> = core::iter::from_fn(|| self.nic.poll_cq_event()).collect();
        let raised = [self.init.send_cq, self.init.recv_cq].map(|cq| events.contains(&cq));
        self.solicited_only = [0, 1].map(|i| self.solicited_only[i] || raised[i]);
        raised
    }

    pub(super) fn expected_events(&self, completions: &[Vec<Wc>; 2]) -> [bool; 2] {
        let causes = |wc: &Wc| wc.solicited || wc.status != WcStatus::Success;
        [0, 1].map(|i| match self.solicited_only[i] {
            true => completions[i].iter().any(causes),
            false => !completions[i].is_empty(),
        })
    }

    pub(super) fn completions(&mut self) -> Result<[Vec<Wc>; 2]> {
        let mut poll = |cq: CqId| {
            let mut out = Vec::new();
            self.nic.poll_cq(cq, usize::MAX, &mut out).map(|_| out)
        };
        Ok([poll(self.init.send_cq)?, poll(self.init.recv_cq)?])
    }
}

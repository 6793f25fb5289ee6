//! The requester of a reliable connection: from posted sends to packets, and from responses to completions.
//!
//! Every request that has begun owns a range of PSNs: one per packet sent, or per response packet of a READ. `una` is
//! the oldest PSN without answer; it lies in the front request. `cursor` is what is sent next. Sending again is
//! moving the cursor back to `una` (go-back-N).

use std::collections::VecDeque;

use mitra_verbs::{Psn, QpState, SendFlags, SendOp, SendWr, Time, WcStatus};
use mitra_wire::{Aeth, AtomicEth, Message, NakCode, Packet, Reth, Syndrome, Transport};

use crate::Memory;
use crate::cq::completion;
use crate::emit::Out;
use crate::host::Host;
use crate::qp::Common;
use crate::retransmit::{retransmission_delay, rnr_delay};
use crate::sges;

/// What a packet costs of the send window beyond its payload: small packets take receive buffer too.
const PACKET_COST: u64 = 256;

/// A posted send.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Request {
    wr: SendWr,
    len: u32,
    /// PSNs it owns: none if it is local. As all below, valid once it has begun.
    packets: u32,
    /// Of a READ, how many packets are asked for at once.
    piece: u32,
    /// Its first PSN.
    psn: Psn,
    /// Window cost of all requests that began before it.
    cost: u64,
}

impl Request {
    /// Window cost of its first `packets` packets.
    fn cost_of(&self, packets: u32, mtu: usize) -> u64 {
        if self.wr.op.is_read_or_atomic() {
            return 0;
        }
        let bytes = (u64::from(packets) * mtu as u64).min(self.len.into());
        bytes + u64::from(packets) * PACKET_COST
    }
}

/// A position in the send queue: a packet of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Cursor {
    request: u64,
    packet: u32,
}

/// PSNs of a READ request or an atomic on the wire: `psn .. end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Fetch {
    psn: Psn,
    end: Psn,
}

/// The front request failed with this: the queue pair must go to ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failed(pub(crate) WcStatus);

/// The send queue of a reliable connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Requester {
    queue: VecDeque<Request>,
    /// Position of the front request, counted from the first ever posted.
    head: u64,
    /// Packets of the front request that are answered.
    answered: u32,
    /// Requests before this position have begun.
    begun: u64,
    cursor: Cursor,
    /// First PSN of the next request to begin.
    next_psn: Psn,
    /// First PSN that was never sent.
    sent: Psn,
    /// Window cost of all requests that have begun.
    cost: u64,
    /// Window cost up to the last packet that asked for an acknowledgement.
    asked: u64,
    /// READs and atomics on the wire since the cursor was last moved back.
    fetches: VecDeque<Fetch>,
    /// When to send again.
    timer: Option<Time>,
    /// Nothing is sent before.
    rnr_until: Option<Time>,
    retries: u8,
    rnr_retries: u8,
    /// The PSN that was last sent again for an implied NAK: not twice.
    implied_at: Option<Psn>,
    /// The PSN that was last sent again for a sequence NAK: not twice, since a gap is NAKed once.
    nakked_at: Option<Psn>,
    /// A request that cannot be sent for a local reason; its turn to fail comes when those before it are done.
    broken: Option<(u64, WcStatus)>,
}

impl Requester {
    pub(crate) fn new() -> Requester {
        Requester {
            queue: VecDeque::new(),
            head: 0,
            answered: 0,
            begun: 0,
            cursor: Cursor { request: 0, packet: 0 },
            next_psn: Psn::new(0),
            sent: Psn::new(0),
            cost: 0,
            asked: 0,
            fetches: VecDeque::new(),
            timer: None,
            rnr_until: None,
            retries: 0,
            rnr_retries: 0,
            implied_at: None,
            nakked_at: None,
            broken: None,
        }
    }

    /// Ready to send.
    pub(crate) fn start(&mut self, c: &Common, psn: Psn) {
        self.next_psn = psn;
        self.sent = psn;
        self.progress(c);
    }

    /// Posted and not completed.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether a READ or an atomic is posted and not completed.
    pub(crate) fn has_fetches(&self) -> bool {
        self.queue.iter().any(|request| request.wr.op.is_read_or_atomic())
    }

    pub(crate) fn push(&mut self, wr: SendWr) {
        let len = if wr.op.is_atomic() { 8 } else { wr.data.len() as u32 };
        self.queue.push_back(Request { wr, len, packets: 0, piece: 0, psn: Psn::new(0), cost: 0 });
    }

    /// First PSN that was never sent.
    pub(crate) fn sent(&self) -> Psn {
        self.sent
    }

    /// Whether all requests that have begun are completed.
    pub(crate) fn drained(&self) -> bool {
        self.head == self.begun
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.timer, self.rnr_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes everything out: the status of the front request is `first`, the others are flushed.
    pub(crate) fn fail(&mut self, c: &Common, host: &mut Host, first: Option<WcStatus>) {
        let mut status = first.unwrap_or(WcStatus::Flushed);
        while let Some(request) = self.queue.pop_front() {
            complete(c, host, &request, status);
            status = WcStatus::Flushed;
        }
        *self = Requester { next_psn: self.next_psn, sent: self.sent, ..Requester::new() };
    }

    fn request(&self, position: u64) -> Option<&Request> {
        self.queue.get(position.checked_sub(self.head)? as usize)
    }

    /// The oldest PSN without answer.
    fn una(&self) -> Psn {
        match self.queue.front() {
            Some(front) if self.head < self.begun => front.psn.add(self.answered),
            _ => self.next_psn,
        }
    }

    /// Window cost up to a position.
    fn cost_at(&self, cursor: Cursor, mtu: usize) -> u64 {
        match self.request(cursor.request) {
            Some(request) if cursor.request < self.begun => {
                request.cost + request.cost_of(cursor.packet, mtu)
            }
            _ => self.cost,
        }
    }

    fn una_cursor(&self) -> Cursor {
        Cursor { request: self.head, packet: self.answered }
    }

    /// READ bytes on the wire.
    fn fetching(&self, mtu: usize) -> u64 {
        let una = self.una();
        let left = |f: &Fetch| f.end.distance(if una.is_after(f.psn) { una } else { f.psn });
        self.fetches.iter().map(left).map(u64::from).sum::<u64>() * mtu as u64
    }

    /// Packets of a READ to ask for at once from the cursor on: responses cannot be held back, so no more of them is
    /// asked for than the window allows. Asking again ends where asking before ended, whatever became of the attributes:
    /// a duplicate READ may only ask for a part of what the first one did (IBTA volume 1, 9.7.5).
    fn piece(&self, c: &Common, host: &Host, request: &Request) -> u32 {
        let fresh = self.cursor.request >= self.begun;
        let most = if fresh { whole_piece(c, host) } else { request.piece };
        let packet = self.cursor.packet;
        let left = request.len.div_ceil(c.mtu as u32).max(1) - packet;
        left.min(most - packet % most)
    }

    /// Whether the packet at the cursor may be sent now.
    pub(crate) fn can_send(&self, c: &Common, host: &Host) -> bool {
        if self.rnr_until.is_some() || self.broken.is_some_and(|(at, _)| at <= self.cursor.request) {
            return false;
        }
        let Some(request) = self.request(self.cursor.request) else { return false };
        let fresh = self.cursor.request == self.begun;
        match c.state {
            QpState::Rts => {}
            // What had begun goes on, nothing new begins (IBTA volume 1, 10.3.1).
            QpState::Sqd if !fresh => {}
            _ => return false,
        }
        // A fence waits for earlier READs and atomics (IBTA volume 1, 10.8.3).
        if request.wr.flags.contains(SendFlags::FENCE) && self.cursor.packet == 0 && !self.fetches.is_empty()
        {
            return false;
        }
        let window = u64::from(host.config.tuning.send_window);
        match request.wr.op {
            SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => self.cursor.request == self.head,
            SendOp::Read(_) => {
                self.fetches.len() < usize::from(c.max_rd_atomic())
                    && (self.fetches.is_empty()
                        || self.fetching(c.mtu) + u64::from(self.piece(c, host, request)) * c.mtu as u64
                            <= window)
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                self.fetches.len() < usize::from(c.max_rd_atomic())
            }
            _ => {
                let flying =
                    self.cost_at(self.cursor, c.mtu).saturating_sub(self.cost_at(self.una_cursor(), c.mtu));
                flying == 0 || flying + c.mtu as u64 + PACKET_COST <= window
            }
        }
    }

    /// Sends packets while that is possible, at most `most`, and says how many.
    pub(crate) fn transmit(
        &mut self,
        c: &Common,
        host: &mut Host,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
        most: usize,
    ) -> Result<usize, Failed> {
        let mut n = 0;
        while n < most && self.can_send(c, host) && out.has_room(c.mtu) {
            match self.send_next(c, host, now, memory, out) {
                Ok(sent) => n += usize::from(sent),
                Err(status) if self.cursor.request == self.head => return Err(Failed(status)),
                Err(status) => self.broken = Some((self.cursor.request, status)),
            }
        }
        Ok(n)
    }

    /// Sends the packet at the cursor; false if it was a local request, which sends none.
    fn send_next(
        &mut self,
        c: &Common,
        host: &mut Host,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
    ) -> Result<bool, WcStatus> {
        if self.cursor.request == self.begun && self.begin(c, host)? {
            return Ok(false);
        }
        let Cursor { request: position, packet: index } = self.cursor;
        let request = &self.queue[(position - self.head) as usize];
        let psn = request.psn.add(index);
        let (packets, len) = (request.packets, request.len);
        let last = index + 1 == packets;
        let mut covers = 1;
        let mut payload = 0;
        let mut ack_req = last;
        let message = match request.wr.op {
            SendOp::Read(remote) => {
                covers = self.piece(c, host, request);
                ack_req = true;
                let from = index * c.mtu as u32;
                let len = (len - from).min(covers.saturating_mul(c.mtu as u32));
                let va = remote.addr.wrapping_add(from.into());
                Message::ReadRequest(Reth { va, rkey: remote.rkey.0, len })
            }
            SendOp::CompareSwap { remote, compare, swap } => Message::CompareSwap(AtomicEth {
                va: remote.addr,
                rkey: remote.rkey.0,
                swap_add: swap,
                compare,
            }),
            SendOp::FetchAdd { remote, add } => Message::FetchAdd(AtomicEth {
                va: remote.addr,
                rkey: remote.rkey.0,
                swap_add: add,
                compare: 0,
            }),
            ref op => {
                payload = (len as usize - index as usize * c.mtu).min(c.mtu);
                data_message(op, index, packets, len)
            }
        };
        let end = Cursor { request: position, packet: index + covers };
        let cost = self.cost_at(end, c.mtu);
        // Ask at least once in a quarter of the window, so that it keeps moving.
        ack_req |= cost.saturating_sub(self.asked) >= u64::from(host.config.tuning.send_window / 4);
        let packet = Packet {
            solicited: last && message.has_payload() && request.wr.flags.contains(SendFlags::SOLICITED),
            mig_req: true,
            ack_req,
            ..Packet::new(Transport::Rc, c.dest_qpn, psn, message, &[])
        };
        if message.has_payload() {
            let offset = u64::from(index) * c.mtu as u64;
            out.packet(&packet, payload, |bytes| {
                sges::gather(&host.keys, c.init.pd, &request.wr.data, offset, bytes, memory)
            })
            .map_err(|_| WcStatus::LocalProtection)?;
        } else {
            out.bare(&packet);
        }
        if request.wr.op.is_read_or_atomic() {
            self.fetches.push_back(Fetch { psn, end: psn.add(covers) });
        }
        if ack_req {
            self.asked = cost;
        }
        self.cursor = if end.packet == packets { Cursor { request: position + 1, packet: 0 } } else { end };
        let after = psn.add(covers);
        if psn == self.sent {
            self.sent = after;
        } else {
            host.counters.retransmitted_packets += 1;
        }
        if self.timer.is_none() {
            self.timer = retransmission_delay(c.timeout()).map(|delay| now + delay);
        }
        Ok(true)
    }

    /// Gives the request at the cursor its PSNs; true if it was a local one, which is done at once.
    fn begin(&mut self, c: &Common, host: &mut Host) -> Result<bool, WcStatus> {
        let (psn, cost) = (self.next_psn, self.cost);
        let request = &mut self.queue[(self.begun - self.head) as usize];
        let Some(done) = execute_local(c, host, &request.wr.op) else {
            request.packets =
                if request.wr.op.is_atomic() { 1 } else { request.len.div_ceil(c.mtu as u32).max(1) };
            request.piece = whole_piece(c, host);
            request.psn = psn;
            request.cost = cost;
            self.next_psn = psn.add(request.packets);
            self.cost += request.cost_of(request.packets, c.mtu);
            self.begun += 1;
            return Ok(false);
        };
        done?;
        self.begun += 1;
        self.cursor.request += 1;
        self.retire(c, host);
        Ok(true)
    }

    /// The front request is done.
    fn retire(&mut self, c: &Common, host: &mut Host) {
        if let Some(request) = self.queue.pop_front() {
            self.head += 1;
            self.answered = 0;
            if c.init.sq_sig_all || request.wr.flags.contains(SendFlags::SIGNALED) {
                complete(c, host, &request, WcStatus::Success);
            }
        }
    }

    /// Something was answered: the counts of retries start anew.
    fn progress(&mut self, c: &Common) {
        self.retries = c.retry_cnt();
        self.rnr_retries = c.rnr_retry();
        self.implied_at = None;
        self.nakked_at = None;
    }

    /// After `una` moved: what else follows from that.
    fn advanced(&mut self, c: &Common, now: Time) {
        self.progress(c);
        let una = self.una();
        while self.fetches.front().is_some_and(|f| !f.end.is_after(una)) {
            self.fetches.pop_front();
        }
        let una_cursor = self.una_cursor();
        // An answer to what was sent before the cursor was moved back.
        if self.cursor < una_cursor {
            self.cursor = una_cursor;
        }
        let flying = self.cursor > una_cursor;
        self.timer = if flying { retransmission_delay(c.timeout()).map(|delay| now + delay) } else { None };
    }

    /// Everything before `psn` is acknowledged. READs and atomics are not answered by that: false if one is in the
    /// way, whose response must then have been lost (IBTA volume 1, 9.7.6).
    fn acknowledge(&mut self, c: &Common, host: &mut Host, now: Time, psn: Psn) -> bool {
        let mut moved = false;
        let mut reached = true;
        while self.una() != psn {
            let una = self.una();
            let Some(front) = self.queue.front().filter(|_| self.head < self.begun) else { break };
            if front.wr.op.is_read_or_atomic() {
                reached = false;
                break;
            }
            moved = true;
            self.answered += psn.distance(una).min(front.packets - self.answered);
            if self.answered == front.packets {
                self.retire(c, host);
            }
        }
        if moved {
            self.advanced(c, now);
        }
        reached
    }

    /// Whether a response's PSN belongs to something sent and not answered.
    fn outstanding(&self, psn: Psn) -> bool {
        psn.distance(self.una()) < self.sent.distance(self.una())
    }

    /// A response packet.
    pub(crate) fn handle_response(
        &mut self,
        c: &Common,
        host: &mut Host,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Failed> {
        if !self.outstanding(packet.psn) {
            host.counters.drop_stale_response += 1;
            return Ok(());
        }
        match packet.message {
            Message::Ack(Aeth { syndrome, .. }) => self.handle_ack(c, host, now, packet.psn, syndrome)?,
            Message::AtomicAck(_, value) => {
                self.handle_fetched(c, host, now, packet, memory, Some(value))?;
            }
            _ => self.handle_fetched(c, host, now, packet, memory, None)?,
        }
        match self.broken {
            Some((position, status)) if position == self.head => Err(Failed(status)),
            // It was sent before, and is answered after all.
            Some((position, _)) if position < self.head => {
                self.broken = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn handle_ack(
        &mut self,
        c: &Common,
        host: &mut Host,
        now: Time,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), Failed> {
        // A NAK acknowledges everything before it (IBTA volume 1, 9.7.5).
        let upto = if matches!(syndrome, Syndrome::Ack { .. }) { psn.next() } else { psn };
        if matches!(syndrome, Syndrome::Reserved(_) | Syndrome::Nak(NakCode::InvalidRdRequest)) {
            host.counters.drop_stale_response += 1;
            return Ok(());
        }
        if !self.acknowledge(c, host, now, upto) {
            return self.implied_nak(c, host);
        }
        let status = match syndrome {
            Syndrome::RnrNak { timer } => {
                host.counters.rnr_naks_received += 1;
                // While it waits nothing is sent: this is a copy, or the answer to a copy.
                return if self.rnr_until.is_some() { Ok(()) } else { self.not_ready(c, now, timer) };
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                host.counters.sequence_naks_received += 1;
                // If nothing was sent since the last time, this NAK is an old one; if this place was NAKed before,
                // it is a copy (IBTA volume 1, 9.7.5). What is lost again is found by the time-out.
                if self.cursor == self.una_cursor() || self.nakked_at == Some(psn) {
                    return Ok(());
                }
                self.nakked_at = Some(psn);
                return self.send_again(c);
            }
            Syndrome::Nak(NakCode::InvalidRequest) => WcStatus::RemoteInvalidRequest,
            Syndrome::Nak(NakCode::RemoteAccess) => WcStatus::RemoteAccess,
            Syndrome::Nak(NakCode::RemoteOperational) => WcStatus::RemoteOperation,
            _ => return Ok(()),
        };
        host.counters.fatal_naks_received += 1;
        Err(Failed(status))
    }

    /// The response of a READ or an atomic.
    fn handle_fetched(
        &mut self,
        c: &Common,
        host: &mut Host,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        value: Option<u64>,
    ) -> Result<(), Failed> {
        if let Message::ReadFirst(aeth)
        | Message::ReadLast(aeth)
        | Message::ReadOnly(aeth)
        | Message::AtomicAck(aeth, _) = packet.message
            && !matches!(aeth.syndrome, Syndrome::Ack { .. })
        {
            host.counters.drop_stale_response += 1;
            return Ok(());
        }
        self.acknowledge(c, host, now, packet.psn);
        if self.una() != packet.psn {
            return self.implied_nak(c, host);
        }
        // `outstanding` saw to it that the front request has begun.
        let Some(front) = self.queue.front() else { return Ok(()) };
        let atomic = front.wr.op.is_atomic();
        if !front.wr.op.is_read_or_atomic() || atomic != value.is_some() {
            return Err(Failed(WcStatus::BadResponse));
        }
        let offset = u64::from(self.answered) * c.mtu as u64;
        let old = value.unwrap_or_default().to_ne_bytes();
        let data = if atomic { &old[..] } else { packet.payload };
        if data.len() as u64 != (u64::from(front.len) - offset).min(c.mtu as u64) {
            return Err(Failed(WcStatus::BadResponse));
        }
        let mitra_verbs::Data::Sges(list) = &front.wr.data else {
            return Err(Failed(WcStatus::LocalQpOperation));
        };
        sges::scatter(&host.keys, c.init.pd, list, offset, data, memory)
            .map_err(|_| Failed(WcStatus::LocalProtection))?;
        host.counters.bytes_received += data.len() as u64;
        self.answered += 1;
        if self.answered == front.packets {
            self.retire(c, host);
        }
        self.advanced(c, now);
        Ok(())
    }

    /// A response shows that an earlier READ's or atomic's was lost: ask again, once per place.
    fn implied_nak(&mut self, c: &Common, host: &mut Host) -> Result<(), Failed> {
        if self.implied_at == Some(self.una()) {
            return Ok(());
        }
        host.counters.implied_naks += 1;
        self.implied_at = Some(self.una());
        self.send_again(c)
    }

    /// Moves the cursor back to the oldest packet without answer, while there are retries
    /// (IBTA volume 1, 9.7.6).
    fn send_again(&mut self, c: &Common) -> Result<(), Failed> {
        if self.retries == 0 {
            return Err(Failed(WcStatus::RetryExceeded));
        }
        self.retries -= 1;
        self.rewind(c);
        Ok(())
    }

    fn rewind(&mut self, c: &Common) {
        self.cursor = self.una_cursor();
        self.fetches.clear();
        self.timer = None;
        self.asked = self.cost_at(self.cursor, c.mtu);
    }

    fn not_ready(&mut self, c: &Common, now: Time, timer: u8) -> Result<(), Failed> {
        // 7 is for ever (IBTA volume 1, 9.7.5).
        if c.rnr_retry() != 7 {
            if self.rnr_retries == 0 {
                return Err(Failed(WcStatus::RnrRetryExceeded));
            }
            self.rnr_retries -= 1;
        }
        self.rewind(c);
        // The peer is alive: it is patience that is counted now.
        self.retries = c.retry_cnt();
        self.nakked_at = None;
        self.rnr_until = Some(now + rnr_delay(timer));
        Ok(())
    }

    /// The time has come to `now`.
    pub(crate) fn handle_timeout(&mut self, c: &Common, host: &mut Host, now: Time) -> Result<(), Failed> {
        if self.rnr_until.is_some_and(|t| t <= now) {
            self.rnr_until = None;
        }
        if self.timer.is_some_and(|t| t <= now) {
            self.timer = None;
            host.counters.timeouts += 1;
            self.implied_at = None;
            self.nakked_at = None;
            return self.send_again(c);
        }
        Ok(())
    }
}

/// Packets of a READ to ask for at once, if there are so many.
fn whole_piece(c: &Common, host: &Host) -> u32 {
    let window = host.config.tuning.send_window / u32::from(c.max_rd_atomic().clamp(1, 4));
    (window / c.mtu as u32).max(1)
}

/// Executes a bind or a local invalidation, which send nothing; `None` for any other operation.
pub(crate) fn execute_local(c: &Common, host: &mut Host, op: &SendOp) -> Option<Result<(), WcStatus>> {
    let (qpn, pd) = (c.qpn, c.init.pd);
    match op {
        SendOp::BindWindow(bind) => Some(host.keys.bind(qpn, pd, bind).map_err(|_| WcStatus::WindowBind)),
        SendOp::LocalInvalidate(key) => {
            Some(host.keys.invalidate(qpn, pd, *key).map_err(|_| WcStatus::LocalProtection))
        }
        _ => None,
    }
}

fn complete(c: &Common, host: &mut Host, request: &Request, status: WcStatus) {
    let mut wc = completion(request.wr.wr_id, status, request.wr.op.wc_opcode(), c.qpn);
    wc.byte_len = request.len;
    host.complete(c.init.send_cq, wc, false);
}

/// The operation of packet `index` of a SEND or WRITE.
pub(crate) fn data_message(op: &SendOp, index: u32, packets: u32, len: u32) -> Message {
    let (first, last) = (index == 0, index + 1 == packets);
    match *op {
        SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey.0, len };
            match (first, last, op) {
                (true, true, SendOp::WriteWithImm(_, imm)) => Message::WriteOnlyImm(reth, *imm),
                (true, true, _) => Message::WriteOnly(reth),
                (true, false, _) => Message::WriteFirst(reth),
                (false, false, _) => Message::WriteMiddle,
                (false, true, SendOp::WriteWithImm(_, imm)) => Message::WriteLastImm(*imm),
                (false, true, _) => Message::WriteLast,
            }
        }
        _ => match (first, last, op) {
            (true, true, SendOp::SendWithImm(imm)) => Message::SendOnlyImm(*imm),
            (true, true, SendOp::SendWithInvalidate(key)) => Message::SendOnlyInv(key.0),
            (true, true, _) => Message::SendOnly,
            (true, false, _) => Message::SendFirst,
            (false, false, _) => Message::SendMiddle,
            (false, true, SendOp::SendWithImm(imm)) => Message::SendLastImm(*imm),
            (false, true, SendOp::SendWithInvalidate(key)) => Message::SendLastInv(key.0),
            (false, true, _) => Message::SendLast,
        },
    }
}

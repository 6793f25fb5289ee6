//! The UD queue pair that carries the control messages of virtual queue pairs on one NIC.
//!
//! All vQPs of a domain share one endpoint on each NIC, because a queue pair with receive buffers
//! for each vQP would take more memory than the vQP itself. The header of a message has the cookie
//! of the vQP that the message is for. The vQP that polls the endpoint distributes all messages
//! that have arrived. A vQP with completion channels of its own also has its own endpoints, which
//! raise events on these channels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{
    Access, AhId, Buffer, CqId, Data, Error, GRH_LEN, Gid, Mr, Provider, Psn, QpAttr, QpBuilder, QpCap,
    QpState, Qpn, RecvWr, Result, SendFlags, SendOp, SendWr, UdDestination, Wc, WcOpcode, WcStatus,
};

use super::send_buffers::SendBuffers;
use super::{Domain, LocalNic, lock};
use crate::control_message::{self, MAX_LEN};
use crate::data_qp::{NO_CQ, NO_QP};
use crate::group_member::Member;
use crate::secret::SecretWord;

const RECVS: u32 = 32;
/// The number of receives that each further vQP adds. All vQPs of a domain fail over at the same
/// time, and each receives a few messages.
const RECVS_PER_MEMBER: u32 = 2;
/// The maximum number of receives of a shared endpoint. Buffers are allocated as vQPs join.
const MAX_RECVS: u32 = 4096;
/// The maximum number of messages that wait for one vQP. Further messages are dropped, as by a full
/// receive queue.
const MAX_WAITING: usize = 32;
/// In bytes.
const SLOT_LEN: usize = (GRH_LEN + MAX_LEN).next_multiple_of(8);

/// Destroys one object of a NIC.
type Undo = Box<dyn Fn(&dyn Provider) -> Result<()>>;

type Datagram = Box<[u8]>;

#[derive(Debug)]
pub(crate) struct ControlEndpoint {
    nic: LocalNic,
    cq: CqId,
    qpn: Qpn,
    qkey: u32,
    max_recvs: u32,
    /// Present if the NIC has no room for a message as inline data.
    send_buffers: Option<SendBuffers>,
    state: Mutex<State>,
}

/// Receive buffers in one region. The first block has [`RECVS`] buffers. Each further block has as
/// many as all earlier blocks together.
#[derive(Debug)]
struct Block {
    memory: Arc<Buffer>,
    mr: Mr,
}

#[derive(Debug)]
struct Inbox {
    datagrams: Vec<Datagram>,
    /// Present for a member of the poll group, which each message wakes.
    member: Option<Arc<Member>>,
}

impl Inbox {
    fn new(member: Option<&Arc<Member>>) -> Inbox {
        Inbox { datagrams: Vec::new(), member: member.cloned() }
    }
}

#[derive(Debug, Default)]
struct State {
    /// The waiting messages of each vQP, by its cookie.
    inboxes: HashMap<u64, Inbox>,
    /// The waiting messages that name no vQP. At most [`MAX_WAITING`].
    unnamed: Vec<Datagram>,
    blocks: Vec<Block>,
    recvs: u32,
    /// The address handles of the peers' NICs, each with the number of its destinations.
    address_handles: HashMap<Gid, (AhId, usize)>,
    /// Whether the last vQP has left. The objects on the NIC are then destroyed.
    destroyed: bool,
    /// Empty between calls; kept for its capacity.
    wcs: Vec<Wc>,
}

impl Domain {
    /// Makes the vQP with the cookie `cookie` a member of the endpoint that the vQPs share on
    /// `rail`. If there is no such endpoint yet, creates one with the Q_Key `qkey`. `member` is
    /// present for a member of the poll group.
    ///
    /// # Errors
    /// Any error of the NIC but [`Error::DeviceFatal`].
    pub(crate) fn join_control_endpoint(
        &self,
        rail: usize,
        cookie: SecretWord,
        qkey: u32,
        member: Option<&Arc<Member>>,
    ) -> Result<Arc<ControlEndpoint>> {
        let mut shared = lock(&self.control);
        let joined = shared[rail].upgrade().filter(|endpoint| endpoint.join(cookie, member));
        if let Some(endpoint) = joined {
            return Ok(endpoint);
        }
        let inbox = (cookie, Inbox::new(member));
        let endpoint = ControlEndpoint::new(&self.nics[rail], false, MAX_RECVS, inbox, qkey)?;
        shared[rail] = Arc::downgrade(&endpoint);
        self.shared.group.add_control_endpoint(&endpoint);
        Ok(endpoint)
    }
}

pub(super) type SharedEndpoints = Mutex<Vec<Weak<ControlEndpoint>>>;

pub(super) fn none_yet(rails: usize) -> SharedEndpoints {
    Mutex::new(core::iter::repeat_with(Weak::new).take(rails).collect())
}

impl ControlEndpoint {
    /// Creates an endpoint for one vQP, which raises events on the NIC's completion channel. On a
    /// dead NIC, the endpoint has no queue pair.
    ///
    /// # Errors
    /// Any error of the NIC but [`Error::DeviceFatal`].
    pub(crate) fn own(nic: &LocalNic, cookie: SecretWord, qkey: u32) -> Result<Arc<ControlEndpoint>> {
        ControlEndpoint::new(nic, true, RECVS, (cookie, Inbox::new(None)), qkey)
    }

    fn new(
        nic: &LocalNic,
        raises_events: bool,
        max_recvs: u32,
        (cookie, inbox): (SecretWord, Inbox),
        qkey: u32,
    ) -> Result<Arc<ControlEndpoint>> {
        let mut undo = Vec::new();
        let made = ControlEndpoint::make(nic, raises_events, max_recvs, qkey, &mut undo);
        if made.is_err() {
            for step in undo.iter().rev() {
                let _ = step(&*nic.provider); // best effort: the caller gets the first error
            }
        }
        let endpoint = match made {
            // Every call on this endpoint fails, as on an endpoint that died with its NIC.
            Err(Error::DeviceFatal) => {
                let (nic, state) = (nic.clone(), Mutex::default());
                ControlEndpoint { nic, cq: NO_CQ, qpn: NO_QP, qkey, max_recvs: 0, send_buffers: None, state }
            }
            made => made?,
        };
        lock(&endpoint.state).inboxes.insert(cookie.expose(), inbox);
        Ok(Arc::new(endpoint))
    }

    /// `undo` receives the calls that destroy what was created.
    fn make(
        nic: &LocalNic,
        raises_events: bool,
        max_recvs: u32,
        qkey: u32,
        undo: &mut Vec<Undo>,
    ) -> Result<ControlEndpoint> {
        let p = &nic.provider;
        let channel = nic.channel.as_ref().filter(|_| raises_events);
        let wrs = max_recvs.min(p.attr().limits.wrs);
        let cq = p.create_cq(wrs * 4, channel)?;
        undo.push(Box::new(move |p| p.destroy_cq(cq)));
        let is_inline = p.attr().limits.inline >= MAX_LEN as u32;
        let inline = if is_inline { MAX_LEN as u32 } else { 0 };
        let cap = QpCap { send_wrs: wrs, recv_wrs: wrs, send_sges: 1, recv_sges: 1, inline };
        let qpn = QpBuilder::ud(nic.pd, cq).cap(cap).signal_all().build(&**p)?;
        undo.push(Box::new(move |p| p.destroy_qp(qpn)));
        let block = Block::new(nic, RECVS.min(wrs) as usize)?;
        let mr = block.mr.id;
        undo.push(Box::new(move |p| p.dereg_mr(mr)));
        let send_buffers = if is_inline { None } else { Some(SendBuffers::new(nic)?) };
        if let Some(mr) = send_buffers.as_ref().map(SendBuffers::mr) {
            undo.push(Box::new(move |p| p.dereg_mr(mr)));
        }
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        p.modify_qp(qpn, &QpAttr { qkey: Some(qkey), ..init })?;
        p.modify_qp(qpn, &QpAttr::to(QpState::Rtr))?;
        p.modify_qp(qpn, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
        let state = Mutex::new(State { blocks: vec![block], ..State::default() });
        let endpoint =
            ControlEndpoint { nic: nic.clone(), cq, qpn, qkey, max_recvs: wrs, send_buffers, state };
        endpoint.add_recvs(&mut lock(&endpoint.state), RECVS)?;
        Ok(endpoint)
    }

    pub(crate) fn cq(&self) -> CqId {
        self.cq
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Returns false if the endpoint is destroyed, or if another vQP has this cookie.
    fn join(&self, cookie: SecretWord, member: Option<&Arc<Member>>) -> bool {
        let mut state = lock(&self.state);
        if state.destroyed || state.inboxes.contains_key(&cookie.expose()) {
            return false;
        }
        state.inboxes.insert(cookie.expose(), Inbox::new(member));
        // Without these receives, more messages are lost and sent again. A dead NIC receives none.
        let _ = self.add_recvs(&mut state, RECVS_PER_MEMBER);
        true
    }

    /// Posts `more` receives, or as many as the queue has room for.
    fn add_recvs(&self, state: &mut State, more: u32) -> Result<()> {
        for _ in 0..more.min(self.max_recvs - state.recvs) {
            let slot = state.recvs as usize;
            if block_of(slot).0 == state.blocks.len() {
                state.blocks.push(Block::new(&self.nic, slot)?);
            }
            self.post_recv(&state.blocks, slot)?;
            state.recvs += 1;
        }
        Ok(())
    }

    /// Ends a membership. The last member destroys the objects on the NIC.
    ///
    /// # Errors
    /// The first error of the NIC. Objects on a dead NIC count as destroyed.
    pub(crate) fn leave(&self, cookie: SecretWord) -> Result<()> {
        let mut state = lock(&self.state);
        state.inboxes.remove(&cookie.expose());
        if !state.inboxes.is_empty() || core::mem::replace(&mut state.destroyed, true) {
            return Ok(());
        }
        let p = &self.nic.provider;
        let mut steps = vec![p.destroy_qp(self.qpn), p.destroy_cq(self.cq)];
        steps.extend(state.address_handles.drain().map(|(_, (ah, _))| p.destroy_ah(ah)));
        steps.extend(state.blocks.drain(..).map(|block| p.dereg_mr(block.mr.id)));
        steps.extend(self.send_buffers.iter().map(|buffers| p.dereg_mr(buffers.mr())));
        let errors = steps.into_iter().filter(|step| !matches!(step, Err(Error::DeviceFatal)));
        errors.fold(Ok(()), Result::and)
    }

    /// Returns a destination for a peer's endpoint, which the caller releases.
    ///
    /// # Errors
    /// Any error of the NIC.
    pub(crate) fn destination(&self, gid: Gid, qpn: Qpn, qkey: u32) -> Result<UdDestination> {
        let mut state = lock(&self.state);
        let ah = match state.address_handles.get_mut(&gid) {
            Some((ah, users)) => {
                *users += 1;
                *ah
            }
            None => {
                let ah = self.nic.provider.create_ah(self.nic.pd, gid)?;
                state.address_handles.insert(gid, (ah, 1));
                ah
            }
        };
        Ok(UdDestination { ah, qpn, qkey })
    }

    pub(crate) fn release_destination(&self, gid: Gid) {
        let mut state = lock(&self.state);
        if let Some((ah, users)) = state.address_handles.get_mut(&gid) {
            *users -= 1;
            if *users == 0 {
                let _ = self.nic.provider.destroy_ah(*ah); // a dead NIC has none
                state.address_handles.remove(&gid);
            }
        }
    }

    /// Sends a control message, as a solicited event if `wakes` is set. If the queue is full or the
    /// NIC has failed, the message is lost, as it may be in the network. The negotiation repeats
    /// messages that need an answer.
    pub(crate) fn send(&self, destination: UdDestination, bytes: &[u8], wakes: bool) {
        let staged = match &self.send_buffers {
            None => Some((u64::MAX, Data::inline(bytes))),
            Some(buffers) => buffers.fill(bytes),
        };
        let Some((wr_id, data)) = staged else { return };
        let mut wr = SendWr::new(wr_id, SendOp::Send, data).to(destination);
        wr.flags.set(SendFlags::SOLICITED, wakes);
        let posted = self.nic.provider.post_send(self.qpn, &[wr]);
        if let (Some(buffers), Err(_)) = (&self.send_buffers, posted) {
            buffers.release(wr_id);
        }
    }

    /// Returns the messages for the vQP of this cookie, in the order of arrival. Messages that name
    /// no vQP are returned too, so that the caller counts them.
    ///
    /// # Errors
    /// Any error of the NIC. Messages that arrived before the error wait for the next call.
    pub(crate) fn receive(&self, cookie: SecretWord) -> Result<Vec<Datagram>> {
        let mut state = lock(&self.state);
        self.distribute_to(&mut state)?;
        let State { inboxes, unnamed, .. } = &mut *state;
        let inbox = inboxes.get_mut(&cookie.expose());
        let mut received = inbox.map(|inbox| core::mem::take(&mut inbox.datagrams)).unwrap_or_default();
        received.append(unnamed);
        Ok(received)
    }

    /// Distributes the messages that have arrived, and wakes their receivers in the poll group.
    pub(super) fn distribute(&self) {
        let mut state = lock(&self.state);
        // The NIC may have given the numbers of destroyed objects to others.
        if !state.destroyed {
            // An error means that the NIC is dead, which the receivers detect by themselves.
            let _ = self.distribute_to(&mut state);
        }
    }

    fn distribute_to(&self, state: &mut State) -> Result<()> {
        let State { inboxes, unnamed, blocks, wcs, .. } = state;
        wcs.clear();
        // The queue has at most one completion of each receive and each send.
        self.nic.provider.poll_cq(self.cq, 2 * self.max_recvs as usize, wcs)?;
        if let Some(buffers) = &self.send_buffers {
            wcs.iter().filter(|wc| wc.opcode == WcOpcode::Send).for_each(|wc| buffers.release(wc.wr_id));
        }
        for wc in wcs.iter().filter(|wc| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success) {
            let datagram = read(blocks, wc);
            let named = control_message::receiver_cookie(&datagram);
            match named.and_then(|named| inboxes.get_mut(&named.expose())) {
                Some(inbox) => {
                    if inbox.datagrams.len() < MAX_WAITING {
                        inbox.datagrams.push(datagram);
                    }
                    inbox.member.iter().for_each(|member| member.on_message(wc.solicited));
                }
                None if unnamed.len() < MAX_WAITING => unnamed.push(datagram),
                None => {}
            }
            self.post_recv(blocks, wc.wr_id as usize)?;
        }
        Ok(())
    }

    fn post_recv(&self, blocks: &[Block], slot: usize) -> Result<()> {
        let (block, position) = block_of(slot);
        let sge = blocks[block].mr.sge((position * SLOT_LEN) as u64, (GRH_LEN + MAX_LEN) as u32);
        self.nic.provider.post_recv(self.qpn, &[RecvWr::new(slot as u64, sge)]).map_err(|e| e.error)
    }
}

impl Block {
    fn new(nic: &LocalNic, slots: usize) -> Result<Block> {
        let memory = Arc::new(Buffer::new(SLOT_LEN * slots));
        let mr = nic.provider.reg_mr(nic.pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        Ok(Block { memory, mr })
    }
}

/// Returns the block of a receive buffer and the position in the block.
fn block_of(slot: usize) -> (usize, usize) {
    match (slot / RECVS as usize).checked_ilog2() {
        None => (0, slot),
        Some(doublings) => (doublings as usize + 1, slot - ((RECVS as usize) << doublings)),
    }
}

fn read(blocks: &[Block], wc: &Wc) -> Datagram {
    let len = (wc.byte_len as usize).saturating_sub(GRH_LEN).min(MAX_LEN);
    let (block, position) = block_of(wc.wr_id as usize);
    let mut datagram = vec![0; len].into_boxed_slice();
    blocks[block].memory.read_at(position * SLOT_LEN + GRH_LEN, &mut datagram);
    datagram
}

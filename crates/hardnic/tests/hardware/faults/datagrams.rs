//! Datagrams of a NIC without a link. The device's link is up, so only the Q_Keys keep them away.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use libtest_mimic::Failed;
use mitra_hardnic::HardNic;
use mitra_verbs::fault::Failure;
use mitra_verbs::{
    Data, Provider, Psn, QpAttr, QpState, QpType, RecvWr, SendOp, SendWr, UdDestination, WcOpcode, WcStatus,
};

use super::{QUIET_TIME, switch, wait_until};
use crate::ends::End;

const QKEY: u32 = 0x1111_1111;
/// The offset of the received message in memory: behind the GRH, and behind the sent message.
const RECEIVED: u64 = 64;
const GRH: u64 = 40;

/// A datagram queue pair, whose receives all have the same memory.
struct Socket<'a> {
    end: End<'a>,
    qkey: u32,
    /// The numbers of the messages that have arrived.
    arrived: RefCell<BTreeSet<u64>>,
}

impl<'a> Socket<'a> {
    /// Returns a queue pair in INIT.
    fn new(nic: &'a HardNic) -> Result<Socket<'a>, Failed> {
        let end = End::of_type(QpType::Ud, nic, 256)?;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        nic.modify_qp(end.qp, &QpAttr { qkey: Some(QKEY), ..init })?;
        Ok(Socket { end, qkey: QKEY, arrived: RefCell::default() })
    }

    fn modify(&self, attr: &QpAttr) -> Result<(), Failed> {
        Ok(self.end.nic.modify_qp(self.end.qp, attr)?)
    }

    /// Changes the state from INIT to RTR, in which datagrams are received.
    fn receive(&self) -> Result<(), Failed> {
        self.modify(&QpAttr::to(QpState::Rtr))?;
        (0..32).try_for_each(|_| self.post_recv())
    }

    /// Changes the state from RTR to RTS.
    fn start(&self) -> Result<(), Failed> {
        self.modify(&QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })
    }

    fn post_recv(&self) -> Result<(), Failed> {
        let receive = RecvWr::new(0, self.end.mr.sge(RECEIVED, GRH as u32 + 8));
        Ok(self.end.nic.post_recv(self.end.qp, &[receive]).map_err(|refused| refused.error)?)
    }

    /// Notes what has completed. One message is in flight at a time, so memory has the message of
    /// the completion.
    fn poll(&self) -> Result<(), Failed> {
        let mut polled = Vec::new();
        self.end.nic.poll_cq(self.end.cq, 16, &mut polled)?;
        for wc in polled {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.opcode == WcOpcode::Recv {
                let message = self.end.memory.load((RECEIVED + GRH) as usize);
                assert!(self.arrived.borrow_mut().insert(message), "{message} arrived twice");
            }
        }
        Ok(())
    }

    /// Sends a message, which must complete with success.
    fn send(&self, message: u64, to: &Socket<'_>) -> Result<(), Failed> {
        let Socket { end, .. } = self;
        end.memory.store(0, message);
        let ah = end.nic.create_ah(end.pd, to.end.nic.query_port()?.gid)?;
        let destination = UdDestination { ah, qpn: to.end.qp, qkey: to.qkey };
        let send = SendWr::new(0, SendOp::Send, Data::sge(end.mr.sge(0, 8))).to(destination);
        end.nic.post_send(end.qp, &[send]).map_err(|refused| refused.error)?;
        let (mut is_sent, mut polled) = (false, Vec::new());
        wait_until("the datagram is sent", || {
            polled.clear();
            end.nic.poll_cq(end.cq, 1, &mut polled)?;
            for wc in &polled {
                assert_eq!((wc.opcode, wc.status), (WcOpcode::Send, WcStatus::Success), "{wc:?}");
                is_sent = true;
            }
            Ok(is_sent)
        })?;
        Ok(end.nic.destroy_ah(ah)?)
    }
}

/// Sends a message from each to the other, which must arrive.
fn exchange(from: &Socket<'_>, to: &Socket<'_>, message: &mut u64) -> Result<(), Failed> {
    *message += 1;
    from.send(*message, to)?;
    wait_until("the datagram arrives", || {
        to.poll()?;
        Ok(to.arrived.borrow().contains(message))
    })
}

/// Sends messages that must not arrive.
fn lose(lost: &[(&Socket<'_>, &Socket<'_>)], message: &mut u64) -> Result<(), Failed> {
    for (from, to) in lost {
        *message += 1;
        from.send(*message, to)?;
        let quiet = Instant::now() + QUIET_TIME;
        while Instant::now() < quiet {
            to.poll()?;
            thread::yield_now();
        }
        let is_lost = !to.arrived.borrow().contains(message);
        assert!(is_lost, "a datagram from {} arrived at {}", from.end.qp, to.end.qp);
    }
    Ok(())
}

pub fn are_lost_without_link(nics: &[Arc<HardNic>; 2]) -> Result<(), Failed> {
    let [nic, peer_nic] = nics;
    let peer = Socket::new(peer_nic)?;
    peer.receive()?;
    peer.start()?;
    let mut old = Socket::new(nic)?;
    old.receive()?;
    old.start()?;
    let (receiver, initial) = (Socket::new(nic)?, Socket::new(nic)?);
    receiver.receive()?;
    let message = &mut 0;
    exchange(&old, &peer, message)?;
    exchange(&peer, &old, message)?;
    exchange(&peer, &receiver, message)?;
    exchange(&old, &receiver, message)?;

    switch(nic).fail(Failure::LinkDown);
    initial.receive()?;
    let new = Socket::new(nic)?;
    new.receive()?;
    new.start()?;
    lose(&[(&old, &peer), (&new, &peer), (&old, &receiver), (&new, &old)], message)?;
    if !Arc::ptr_eq(nic, peer_nic) {
        lose(&[(&peer, &old), (&peer, &new), (&peer, &receiver), (&peer, &initial)], message)?;
    }
    // The program's own change of the key takes effect with the link.
    old.qkey = QKEY + 1;
    old.modify(&QpAttr { qkey: Some(old.qkey), ..QpAttr::to(QpState::Rts) })?;
    lose(&[(&peer, &old), (&old, &peer)], message)?;
    assert_eq!(nic.query_qp(old.end.qp)?.attr.qkey, Some(old.qkey));
    assert_eq!(nic.query_qp(receiver.end.qp)?.state, QpState::Rtr);

    switch(nic).heal();
    for socket in [&old, &new, &receiver, &initial] {
        exchange(&peer, socket, message)?;
    }
    // Those in RTR go on to RTS as if nothing had been.
    receiver.start()?;
    initial.start()?;
    for socket in [&old, &new, &receiver, &initial] {
        exchange(socket, &peer, message)?;
        exchange(&peer, socket, message)?;
    }
    Ok(())
}

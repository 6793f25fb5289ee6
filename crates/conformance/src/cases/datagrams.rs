//! Unreliable datagrams.

use mitra_verbs::{
    AhId, Error, GRH_LEN, GSI_QKEY, Gid, QpType, SendOp, SendWr, UdDestination, Wc, WcOpcode, WcStatus,
};

use crate::endpoint::{Endpoint, Options, QKEY};
use crate::{CaseResult, Fabric, Stop};

pub(super) fn datagram_options(qp_type: QpType) -> Options {
    Options { qp_type, ..Options::default() }
}

/// Returns two endpoints that can exchange datagrams, and a's address handle of b.
fn pair(fabric: &dyn Fabric, qp_type: QpType, qkey: u32) -> CaseResult<([Endpoint<'_>; 2], AhId)> {
    let [a, b] = fabric.nics();
    let ends = [
        Endpoint::new(fabric, a, datagram_options(qp_type))?,
        Endpoint::new(fabric, b, datagram_options(qp_type))?,
    ];
    ends.iter().try_for_each(|end| end.start_datagrams(qkey))?;
    let ah = ends[0].nic.create_ah(ends[0].pd, ends[1].gid()?)?;
    Ok((ends, ah))
}

/// Waits for the datagram that takes this receive, and returns its completion and its header.
fn wait_datagram(b: &Endpoint<'_>, wr_id: u64, offset: usize) -> (Wc, [u8; GRH_LEN]) {
    let wc = b.wait_for(wr_id, WcStatus::Success);
    assert_eq!(wc.opcode, WcOpcode::Recv);
    let mut header = [0; GRH_LEN];
    b.memory.read_at(offset, &mut header);
    (wc, header)
}

fn assert_delivers(fabric: &dyn Fabric, qp_type: QpType, qkey: u32) -> CaseResult {
    let (ends, ah) = pair(fabric, qp_type, qkey)?;
    let [a, b] = &ends;
    for (i, len) in [0, 1, 6, 200, 1024 - GRH_LEN].into_iter().enumerate() {
        let message = crate::endpoint::pattern(len, i as u8);
        b.post_recv(5, 1024, 1024)?;
        a.post_datagram(1, &message, UdDestination { ah, qpn: b.qp, qkey })?;
        let (wc, header) = wait_datagram(b, 5, 1024);
        assert_eq!((wc.byte_len as usize, wc.src_qp, wc.qpn, wc.imm), (GRH_LEN + len, a.qp, b.qp, None));
        assert_eq!(Gid::from_grh(&header), a.gid()?);
        assert_eq!(b.bytes(1024 + GRH_LEN, len), message);
        assert_eq!(a.wait_for(1, WcStatus::Success).opcode, WcOpcode::Send);
    }
    a.nic.destroy_ah(ah)?;
    Ok(())
}

pub(super) fn ud_delivers_message_with_header(fabric: &dyn Fabric) -> CaseResult {
    assert_delivers(fabric, QpType::Ud, QKEY)
}

pub(super) fn gsi_delivers_message(fabric: &dyn Fabric) -> CaseResult {
    assert_delivers(fabric, QpType::Gsi, GSI_QKEY)
}

pub(super) fn ud_delivers_immediate(fabric: &dyn Fabric) -> CaseResult {
    let (ends, ah) = pair(fabric, QpType::Ud, QKEY)?;
    let [a, b] = &ends;
    b.post_recv(5, 0, 64)?;
    let to = UdDestination { ah, qpn: b.qp, qkey: QKEY };
    a.post_wr(SendWr::new(1, SendOp::SendWithImm(0x0102_0304), a.data(0, 8)).to(to))?;
    let (wc, _) = wait_datagram(b, 5, 0);
    assert_eq!((wc.imm, wc.byte_len), (Some(0x0102_0304), 48));
    a.wait_for(1, WcStatus::Success);
    a.nic.destroy_ah(ah)?;
    Ok(())
}

pub(super) fn ud_checks_the_q_key(fabric: &dyn Fabric) -> CaseResult {
    let (ends, ah) = pair(fabric, QpType::Ud, QKEY)?;
    let [a, b] = &ends;
    b.post_recv(5, 0, 64)?;
    let to = UdDestination { ah, qpn: b.qp, qkey: QKEY };
    a.post_datagram(1, b"wrong", UdDestination { qkey: QKEY + 1, ..to })?;
    a.wait_for(1, WcStatus::Success);
    a.post_datagram(2, b"right", to)?;
    wait_datagram(b, 5, 0);
    assert_eq!(b.bytes(GRH_LEN, 5), b"right");
    a.wait_for(2, WcStatus::Success);
    a.nic.destroy_ah(ah)?;
    Ok(())
}

/// Returns the traffic class in the header.
fn class_of(header: &[u8; GRH_LEN]) -> u8 {
    match header[0] >> 4 {
        6 => header[0] << 4 | header[1] >> 4,
        _ => header[21],
    }
}

/// Each datagram has the class of its address handle, even after a datagram with another class.
pub(super) fn traffic_class_is_received(fabric: &dyn Fabric) -> CaseResult {
    let (ends, plain) = pair(fabric, QpType::Ud, QKEY)?;
    let [a, b] = &ends;
    a.nic.destroy_ah(plain)?;
    for class in [0, 0x28, 0x28, 0, 0x50, 0] {
        b.post_recv(5, 0, 64)?;
        let ah = match a.nic.create_ah_with_traffic_class(a.pd, b.gid()?, class) {
            Err(Error::Unsupported(what)) => return Err(Stop::refused(what)),
            other => other?,
        };
        a.post_datagram(1, b"data", UdDestination { ah, qpn: b.qp, qkey: QKEY })?;
        let (_, header) = wait_datagram(b, 5, 0);
        assert_eq!(class_of(&header), class);
        a.wait_for(1, WcStatus::Success);
        a.nic.destroy_ah(ah)?;
    }
    Ok(())
}

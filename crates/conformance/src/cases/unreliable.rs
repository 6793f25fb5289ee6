//! Unreliable connections.

use mitra_verbs::{QpType, SendOp, WcOpcode, WcStatus};

use crate::endpoint::{Endpoint, Link, Options, pattern, rc_pair_with};
use crate::{CaseResult, Fabric};

fn pair(fabric: &dyn Fabric) -> CaseResult<[Endpoint<'_>; 2]> {
    rc_pair_with(fabric, || Options { qp_type: QpType::Uc, ..Options::default() }, Link::default())
}

/// An idle fabric loses nothing.
pub(super) fn uc_delivers_sends_and_writes(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = pair(fabric)?;
    for (i, len) in [0, 1, 4096, 10_000].into_iter().enumerate() {
        a.fill(0, len, i as u8);
        b.post_recv(7, 0, 16_384)?;
        a.post(1, SendOp::Send, 0, len as u32)?;
        let wc = b.wait_for(7, WcStatus::Success);
        assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::Recv, len as u32, None));
        assert_eq!(b.bytes(0, len), pattern(len, i as u8));
        a.wait_for(1, WcStatus::Success);

        b.post_recv(8, 0, 0)?;
        a.post(2, SendOp::WriteWithImm(b.mr.remote(65_536), 9), 0, len as u32)?;
        let wc = b.wait_for(8, WcStatus::Success);
        assert_eq!((wc.opcode, wc.imm), (WcOpcode::RecvWithImm, Some(9)));
        assert_eq!(b.bytes(65_536, len), pattern(len, i as u8));
        a.wait_for(2, WcStatus::Success);

        a.post(3, SendOp::Write(b.mr.remote(131_072)), 0, len as u32)?;
        a.wait_for(3, WcStatus::Success);
        b.wait_bytes(131_072, &pattern(len, i as u8), "the WRITE");
    }
    Ok(())
}

pub(super) fn uc_message_without_receive_is_lost(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = pair(fabric)?;
    a.memory.store(0, 1);
    a.memory.store(8, 2);
    a.post(1, SendOp::Send, 0, 8)?;
    a.wait_for(1, WcStatus::Success);
    // The WRITE is executed after the SEND was dropped.
    a.post(2, SendOp::Write(b.mr.remote(64)), 8, 8)?;
    a.wait_for(2, WcStatus::Success);
    b.wait_word(64, 2);
    b.post_recv(7, 0, 8)?;
    a.post(3, SendOp::Send, 8, 8)?;
    b.wait_for(7, WcStatus::Success);
    assert_eq!(b.memory.load(0), 2);
    Ok(())
}

//! Formats a packet as one line of text, similar to the output of tcpdump.

use std::fmt;

use crate::extension_headers::{Aeth, AtomicEth, NakCode, Reth, Syndrome};
use crate::message::{ExtensionHeader, Transport};
use crate::opcode;
use crate::packet::Packet;

impl fmt::Display for Packet<'_> {
    /// Writes the opcode, the destination QP, the PSN, the extension headers, the length of the
    /// payload if the operation has one, the P_Key if it is not the default one, and the flags that
    /// are set. Example: `RC_RDMA_WRITE_FIRST qp 0x000019 psn 4096 va 0x7fdb9971c000 rkey
    /// 0x00000a05 dmalen 2500 len 1024`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match opcode::name(self.opcode()) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "OPCODE_0x{:02x}", self.opcode())?,
        }
        write!(f, " qp {} psn {}", self.dest_qp, self.psn)?;
        if let Transport::Ud(deth) = self.transport {
            write!(f, " srcqp {} qkey 0x{:08x}", deth.src_qp, deth.qkey)?;
        }
        if let Transport::Xrc(srqn) = self.transport
            && self.message.is_request()
        {
            write!(f, " srqn {srqn}")?;
        }
        let mut written = Ok(());
        self.message.for_each_extension_header(|header| {
            written = written.and_then(|()| write!(f, " {header}"));
        });
        written?;
        if self.message.has_payload() {
            write!(f, " len {}", self.payload.len())?;
        }
        if self.pkey != 0xffff {
            write!(f, " pkey 0x{:04x}", self.pkey)?;
        }
        let flags = [
            (self.ack_req, " ack-req"),
            (self.solicited, " solicited"),
            (self.mig_req, " migrated"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

impl fmt::Display for ExtensionHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ExtensionHeader::Reth(reth) => reth.fmt(f),
            ExtensionHeader::ImmDt(imm) => write!(f, "imm 0x{imm:08x}"),
            ExtensionHeader::Ieth(rkey) => write!(f, "inv 0x{rkey:08x}"),
            ExtensionHeader::Aeth(aeth) => aeth.fmt(f),
            ExtensionHeader::AtomicAckEth(original) => write!(f, "original 0x{original:x}"),
            ExtensionHeader::CompareSwap(AtomicEth { va, rkey, swap_add, compare }) => {
                write!(f, "va 0x{va:x} rkey 0x{rkey:08x} compare 0x{compare:x} swap 0x{swap_add:x}")
            }
            ExtensionHeader::FetchAdd(AtomicEth { va, rkey, swap_add, .. }) => {
                write!(f, "va 0x{va:x} rkey 0x{rkey:08x} add 0x{swap_add:x}")
            }
        }
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va 0x{:x} rkey 0x{:08x} dmalen {}", self.va, self.rkey, self.len)
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn {}", self.syndrome, self.msn)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack { credits: Self::NO_CREDITS } => f.write_str("ack"),
            Syndrome::Ack { credits } => write!(f, "ack credits {credits}"),
            Syndrome::RnrNak { timer } => write!(f, "rnr-nak timer {timer}"),
            Syndrome::Nak(code) => write!(f, "nak {code}"),
            Syndrome::Reserved(raw) => write!(f, "reserved syndrome 0x{raw:02x}"),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NakCode::PsnSequence => "psn-sequence",
            NakCode::InvalidRequest => "invalid-request",
            NakCode::RemoteAccess => "remote-access",
            NakCode::RemoteOperational => "remote-operational",
            NakCode::InvalidRdRequest => "invalid-rd-request",
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::*;

    #[test]
    fn line_shows_headers_and_flags() {
        let (qp, psn) = (Qpn::new(0x19), Psn::new(4096));
        let reth = Reth { va: 0x7fdb_9971_c000, rkey: 0xa05, len: 2500 };
        let write = Packet::new(Transport::Rc, qp, psn, Message::WriteFirst(reth), &[0; 1024]);
        assert_eq!(
            write.to_string(),
            "RC_RDMA_WRITE_FIRST qp 0x000019 psn 4096 va 0x7fdb9971c000 rkey 0x00000a05 dmalen 2500 len 1024"
        );
        let nak = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 3 };
        let nak = Packet::new(Transport::Rc, qp, psn, Message::Ack(nak), &[]);
        assert_eq!(nak.to_string(), "RC_ACKNOWLEDGE qp 0x000019 psn 4096 nak remote-access msn 3");
        let xrc = Packet::new(Transport::Xrc(Srqn::new(0x77)), qp, psn, Message::SendOnly, b"abcd");
        assert_eq!(xrc.to_string(), "XRC_SEND_ONLY qp 0x000019 psn 4096 srqn 0x000077 len 4");
        let ud = Transport::Ud(Deth { qkey: 0x1111_1111, src_qp: Qpn::new(7) });
        let mut ud = Packet::new(ud, qp, psn, Message::SendOnlyImm(5), b"abc");
        ud.solicited = true;
        ud.pkey = 0x8001;
        assert_eq!(
            ud.to_string(),
            "UD_SEND_ONLY_WITH_IMMEDIATE qp 0x000019 psn 4096 srcqp 0x000007 qkey 0x11111111 imm 0x00000005 \
             len 3 pkey 0x8001 solicited"
        );
    }
}

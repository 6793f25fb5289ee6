//! The fields of `mitra decode --json`; docs/wire.md documents them.

use mitra_wire::{
    AtomicEth, ExtensionHeader, Message, PlacementOperation, PlacementRequest, Psn, Reth, Transport, opcode,
};
use serde::{Serialize, Serializer};

use super::{DecodedFrame, FrameContent};

/// A packet or a malformed frame. The fields up to `icrc_ok` appear in every line, as null if the
/// frame does not contain them.
#[derive(Serialize, Default)]
pub(super) struct Line {
    number: u64,
    time: String,
    src: Option<String>,
    dst: Option<String>,
    opcode: Option<&'static str>,
    psn: Option<u32>,
    dest_qp: Option<u32>,
    icrc_ok: Option<bool>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    bth: Option<Bth>,
    #[serde(flatten)]
    extension: Extension,
    #[serde(skip_serializing_if = "Option::is_none")]
    malformed: Option<String>,
}

#[derive(Serialize)]
struct Bth {
    opcode_raw: u8,
    pkey: u16,
    solicited: bool,
    mig_req: bool,
    fecn: bool,
    becn: bool,
    ack_req: bool,
    payload_len: usize,
}

/// A 64-bit value as hexadecimal text, because most JSON readers keep only 53 bits of a number.
#[derive(Clone, Copy)]
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("0x{:x}", self.0))
    }
}

#[derive(Serialize, Default)]
struct Extension {
    #[serde(skip_serializing_if = "Option::is_none")]
    src_qp: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qkey: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    srqn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    va: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rkey: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dma_len: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalidate_rkey: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syndrome: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    msn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compare: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selectivity: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Hex>,
}

impl Line {
    pub(super) fn new(frame_info: &DecodedFrame<'_>) -> Self {
        let line = Line {
            number: frame_info.number,
            time: frame_info.time(),
            src: frame_info.frame.map(|frame| frame.src.to_string()),
            dst: frame_info.frame.map(|frame| frame.dst.to_string()),
            ..Line::default()
        };
        match &frame_info.content {
            FrameContent::Packet { packet, icrc_ok } => Line {
                opcode: opcode::name(packet.opcode()),
                psn: Some(packet.psn.value()),
                dest_qp: Some(packet.dest_qp.value()),
                icrc_ok: *icrc_ok,
                bth: Some(Bth {
                    opcode_raw: packet.opcode(),
                    pkey: packet.pkey,
                    solicited: packet.solicited,
                    mig_req: packet.mig_req,
                    fecn: packet.fecn,
                    becn: packet.becn,
                    ack_req: packet.ack_req,
                    payload_len: packet.payload.len(),
                }),
                extension: Extension::new(&packet.transport, &packet.message),
                ..line
            },
            FrameContent::Placement { request, icrc_ok, .. } => Line {
                opcode: opcode::name(request.opcode()),
                psn: Some(request.psn.value()),
                dest_qp: Some(request.dest_qp.value()),
                icrc_ok: *icrc_ok,
                extension: Extension::of_placement(request),
                ..line
            },
            FrameContent::Bth { opcode, dest_qp, psn, icrc_ok } => Line {
                opcode: opcode::name(*opcode),
                psn: psn.map(Psn::value),
                dest_qp: Some(dest_qp.value()),
                icrc_ok: *icrc_ok,
                ..line
            },
            FrameContent::Malformed(reason) => Line { malformed: Some(reason.clone()), ..line },
        }
    }
}

impl Extension {
    fn new(transport: &Transport, message: &Message) -> Self {
        let mut out = Extension::default();
        if let Transport::Ud(deth) = transport {
            (out.src_qp, out.qkey) = (Some(deth.src_qp.value()), Some(deth.qkey));
        }
        if let Transport::Xrc(srqn) = transport
            && message.is_request()
        {
            out.srqn = Some(srqn.value());
        }
        message.for_each_extension_header(|header| match header {
            ExtensionHeader::Reth(reth) => out.set_reth(reth),
            ExtensionHeader::ImmDt(imm) => out.imm = Some(imm),
            ExtensionHeader::Ieth(rkey) => out.invalidate_rkey = Some(rkey),
            ExtensionHeader::Aeth(aeth) => {
                out.syndrome = Some(aeth.syndrome.to_raw());
                out.answer = Some(aeth.syndrome.to_string());
                out.msn = Some(aeth.msn);
            }
            ExtensionHeader::AtomicAckEth(original) => out.original = Some(Hex(original)),
            ExtensionHeader::CompareSwap(AtomicEth { va, rkey, swap_add, compare }) => {
                (out.va, out.rkey) = (Some(Hex(va)), Some(rkey));
                (out.compare, out.swap) = (Some(Hex(compare)), Some(Hex(swap_add)));
            }
            ExtensionHeader::FetchAdd(AtomicEth { va, rkey, swap_add, .. }) => {
                (out.va, out.rkey, out.add) = (Some(Hex(va)), Some(rkey), Some(Hex(swap_add)));
            }
        });
        out
    }

    fn of_placement(request: &PlacementRequest) -> Self {
        let mut out = Extension::default();
        out.set_reth(request.reth);
        match request.operation {
            PlacementOperation::Flush(feth) => {
                (out.placement, out.selectivity) = (Some(feth.placement), Some(feth.selectivity));
            }
            PlacementOperation::AtomicWrite(value) => out.value = Some(Hex(value)),
        }
        out
    }

    fn set_reth(&mut self, Reth { va, rkey, len }: Reth) {
        (self.va, self.rkey, self.dma_len) = (Some(Hex(va)), Some(rkey), Some(len));
    }
}

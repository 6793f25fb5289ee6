//! The captures of the kernel's soft-RoCE, and random packets for property tests.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of the module")]

use std::path::PathBuf;

use mitra_wire::*;
use proptest::prelude::*;

/// Returns the name and the contents of every capture in `tests/data/captures`, sorted by name.
pub fn captures() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/captures");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

fn qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::new)
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, len)| Reth { va, rkey, len })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_add, compare)| AtomicEth {
        va,
        rkey,
        swap_add,
        compare,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    any::<(u8, u32)>().prop_map(|(raw, msn)| Aeth { syndrome: Syndrome::from_raw(raw), msn: msn & 0xff_ffff })
}

pub fn message() -> impl Strategy<Value = Message> {
    use Message::*;
    prop_oneof![
        Just(SendFirst),
        Just(SendMiddle),
        Just(SendLast),
        any::<u32>().prop_map(SendLastImm),
        any::<u32>().prop_map(SendLastInv),
        Just(SendOnly),
        any::<u32>().prop_map(SendOnlyImm),
        any::<u32>().prop_map(SendOnlyInv),
        reth().prop_map(WriteFirst),
        Just(WriteMiddle),
        Just(WriteLast),
        any::<u32>().prop_map(WriteLastImm),
        reth().prop_map(WriteOnly),
        (reth(), any::<u32>()).prop_map(|(reth, imm)| WriteOnlyImm(reth, imm)),
        reth().prop_map(ReadRequest),
        aeth().prop_map(ReadFirst),
        Just(ReadMiddle),
        aeth().prop_map(ReadLast),
        aeth().prop_map(ReadOnly),
        aeth().prop_map(Ack),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| AtomicAck(aeth, original)),
        atomic().prop_map(CompareSwap),
        atomic().prop_map(FetchAdd),
    ]
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        Just(Transport::Rc),
        Just(Transport::Uc),
        (any::<u32>(), qpn()).prop_map(|(qkey, src_qp)| Transport::Ud(Deth { qkey, src_qp })),
        any::<u32>().prop_map(|srqn| Transport::Xrc(Srqn::new(srqn))),
    ]
}

/// Returns packets with an opcode that exists. The payload is a separate value, because a packet
/// borrows it.
pub fn packet() -> impl Strategy<Value = (Packet<'static>, Vec<u8>)> {
    let opcode = (transport(), message()).prop_filter("no such opcode", |(t, m)| t.carries(m));
    let flags = any::<(bool, bool, bool, bool, bool)>();
    let reserved = (0..64u8, 0..128u8, any::<u8>());
    let payload = prop::collection::vec(any::<u8>(), 0..70);
    (opcode, qpn(), any::<u32>(), any::<u16>(), flags, reserved, payload).prop_map(
        |((transport, message), dest_qp, psn, pkey, flags, reserved, payload)| {
            // A response has no XRCETH.
            let transport = match transport {
                Transport::Xrc(_) if message.is_response() => Transport::Xrc(Srqn::default()),
                transport => transport,
            };
            let mut packet = Packet::new(transport, dest_qp, Psn::new(psn), message, &[]);
            packet.pkey = pkey;
            (packet.solicited, packet.mig_req, packet.fecn, packet.becn, packet.ack_req) = flags;
            let extension = match transport {
                Transport::Ud(_) => reserved.2,
                Transport::Xrc(_) if message.is_request() => reserved.2,
                _ => 0,
            };
            packet.reserved = ReservedBits { bth_resv6: reserved.0, bth_resv7: reserved.1, extension };
            let payload = if message.has_payload() { payload } else { Vec::new() };
            (packet, payload)
        },
    )
}

//! Checks that Wireshark's dissector reads every opcode that Mitra emits with the intended fields
//! and reports no error.
//!
//! The dissector does not verify the ICRC (it has only the field `infiniband.invariant.crc` and no
//! status). The scapy test verifies it.

use std::process::Command;

use mitra_test_process::command;
use mitra_wire::{ICRC_LEN, Message, Packet, Transport};

/// The fields that tshark prints, in this order.
const FIELDS: [&str; 29] = [
    "frame.time_epoch",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
    "ip.checksum.status",
    "udp.checksum.status",
    "data.len",
    "_ws.malformed",
    "_ws.expert.severity",
    "_ws.expert.message",
];

#[test]
fn tshark_agrees_on_fields() {
    let samples = crate::sample_packets::samples();
    let capture = crate::sample_packets::write_pcap(&samples);
    let mut tshark = tshark();
    tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-Tfields"]);
    // Immediate data appears twice, as the header and as its value.
    tshark.args(["-E", "occurrence=f"]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = crate::sample_packets::run(tshark.arg("-r").arg(&*capture));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), samples.len());
    for (n, (sample, line)) in samples.iter().zip(&lines).enumerate() {
        let said: Vec<&str> = line.split('\t').collect();
        let expected = expected(n, sample);
        for ((field, said), expected) in FIELDS.iter().zip(said).zip(&expected) {
            assert_eq!(
                said, expected,
                "{field} of frame {n}, {} > {}: {}",
                sample.src, sample.dst, sample.packet
            );
        }
    }
}

#[test]
fn tshark_uses_the_same_operation_names() {
    // The dissector knows XRC's opcodes, but not the XRCETH.
    let mut samples = crate::sample_packets::samples();
    samples.extend(crate::sample_packets::xrc_samples());
    let capture = crate::sample_packets::write_pcap(&samples);
    let output = crate::sample_packets::run(tshark().args(["-O", "infiniband", "-r"]).arg(&*capture));
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("Opcode: ")).collect();
    // The opcode field of the AETH's syndrome has another spelling.
    assert_eq!(names.len(), samples.len());
    for (sample, name) in samples.iter().zip(names) {
        let (service, operation) = tshark_name(&sample.packet);
        assert_eq!(name, format!("{service} - {operation} ({})", sample.packet.opcode()));
    }
}

/// Returns a tshark command without heuristic dissectors. Two of these dissectors accept even empty
/// payloads and report them as malformed.
fn tshark() -> Command {
    let mut tshark = command("tshark");
    for guess in ["rpcordma", "infiniband.eoib"] {
        tshark.args(["--disable-protocol", guess]);
    }
    tshark
}

fn expected(n: usize, sample: &crate::sample_packets::Sample) -> Vec<String> {
    let packet = &sample.packet;
    let bit = |flag| u8::from(flag).to_string();
    let none = String::new;
    let icrc = sample.datagram.last_chunk::<ICRC_LEN>().unwrap();
    let pad = if packet.message.has_payload() { Packet::pad_for(packet.payload.len()) } else { 0 };
    let (qkey, src_qp) = match packet.transport {
        Transport::Ud(deth) => (format!("0x{:016x}", deth.qkey), format!("0x{:08x}", deth.src_qp.value())),
        _ => (none(), none()),
    };
    let (mut reth, mut aeth, mut atomic) = ([none(), none(), none()], [none(), none()], [none(), none()]);
    let (mut original, mut imm, mut inv) = (none(), none(), none());
    match packet.message {
        Message::WriteFirst(r)
        | Message::WriteOnly(r)
        | Message::WriteOnlyImm(r, _)
        | Message::ReadRequest(r) => {
            reth = [format!("0x{:016x}", r.va), format!("0x{:08x}", r.rkey), r.len.to_string()];
        }
        Message::ReadFirst(a)
        | Message::ReadLast(a)
        | Message::ReadOnly(a)
        | Message::Ack(a)
        | Message::AtomicAck(a, _) => aeth = [a.syndrome.to_raw().to_string(), a.msn.to_string()],
        Message::CompareSwap(a) | Message::FetchAdd(a) => {
            // tshark shows address and key under the names of the RETH's fields.
            reth[0] = format!("0x{:016x}", a.va);
            reth[1] = format!("0x{:08x}", a.rkey);
            atomic = [a.swap_add.to_string(), a.compare.to_string()];
        }
        _ => {}
    }
    match packet.message {
        Message::AtomicAck(_, value) => original = value.to_string(),
        Message::SendLastImm(v)
        | Message::SendOnlyImm(v)
        | Message::WriteLastImm(v)
        | Message::WriteOnlyImm(_, v) => imm = format!("{v:08x}"),
        Message::SendLastInv(v) | Message::SendOnlyInv(v) => inv = format!("{v:08x}"),
        _ => {}
    }
    let v4 = sample.dst.is_ipv4();
    let mut fields = vec![
        format!("1795226566.{:09}", n * 1001),
        packet.opcode().to_string(),
        bit(packet.solicited),
        bit(packet.mig_req),
        pad.to_string(),
        "0".into(),
        packet.pkey.to_string(),
        format!("0x{:06x}", packet.dest_qp.value()),
        bit(packet.ack_req),
        packet.psn.value().to_string(),
        qkey,
        src_qp,
    ];
    fields.extend(reth);
    fields.extend(aeth);
    fields.extend(atomic);
    fields.extend([original, imm, inv]);
    fields.push(format!("0x{:08x}", u32::from_be_bytes(*icrc)));
    // Status 1 is good, 3 is not present. IPv6 has no header checksum, and over IPv4 Mitra sends no
    // UDP checksum.
    fields.push(if v4 { "1".into() } else { none() });
    fields.push(if v4 { "3".into() } else { "1".into() });
    let shown = packet.payload.len() + pad;
    fields.push(if packet.message.has_payload() && shown > 0 { shown.to_string() } else { none() });
    fields.extend([none(), none(), none()]);
    fields
}

fn tshark_name(packet: &Packet<'_>) -> (&'static str, &'static str) {
    let service = match packet.transport {
        Transport::Rc => "Reliable Connection (RC)",
        Transport::Uc => "Unreliable Connection (UC)",
        Transport::Ud(_) => "Unreliable Datagram (UD)",
        Transport::Xrc(_) => "Extended Reliable Connection (XRC)",
    };
    let operation = match packet.message {
        Message::SendFirst => "SEND First",
        Message::SendMiddle => "SEND Middle",
        Message::SendLast => "SEND Last",
        Message::SendLastImm(_) => "SEND Last with Immediate",
        Message::SendLastInv(_) => "SEND Last with Invalidate",
        Message::SendOnly if matches!(packet.transport, Transport::Ud(_)) => "SEND only",
        Message::SendOnlyImm(_) if matches!(packet.transport, Transport::Ud(_)) => "SEND only with Immediate",
        Message::SendOnly => "SEND Only",
        Message::SendOnlyImm(_) => "SEND Only with Immediate",
        Message::SendOnlyInv(_) => "SEND Only with Invalidate",
        Message::WriteFirst(_) => "RDMA WRITE First",
        Message::WriteMiddle => "RDMA WRITE Middle",
        Message::WriteLast => "RDMA WRITE Last",
        Message::WriteLastImm(_) => "RDMA WRITE Last with Immediate",
        Message::WriteOnly(_) => "RDMA WRITE Only",
        Message::WriteOnlyImm(_, _) => "RDMA WRITE Only with Immediate",
        Message::ReadRequest(_) => "RDMA READ Request",
        Message::ReadFirst(_) => "RDMA READ response First",
        Message::ReadMiddle => "RDMA READ response Middle",
        Message::ReadLast(_) => "RDMA READ response Last",
        Message::ReadOnly(_) => "RDMA READ response Only",
        Message::Ack(_) => "Acknowledge",
        Message::AtomicAck(_, _) => "ATOMIC Acknowledge",
        Message::CompareSwap(_) => "CmpSwap",
        Message::FetchAdd(_) => "FetchAdd",
    };
    (service, operation)
}

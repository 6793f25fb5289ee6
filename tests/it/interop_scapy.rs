//! Compares Mitra's ICRC and packet fields with scapy's, for every opcode over IPv4 and IPv6.

use std::path::Path;

use mitra_test_process::{command, setup_dir};
use mitra_wire::{BTH_LEN, ICRC_LEN, Message, Packet, opcode};
use serde_json::{Value, json};

#[test]
fn scapy_agrees_on_fields_and_icrc() {
    let samples = crate::sample_packets::samples();
    let capture = crate::sample_packets::write_pcap(&samples);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = crate::sample_packets::run(
        command(setup_dir().join("venv/bin/python3"))
            .arg(root.join("tests/interop/scapy_icrc.py"))
            .arg(&capture),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let said: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(said.len(), samples.len());

    let mut opcodes = std::collections::BTreeSet::new();
    for (n, (sample, said)) in samples.iter().zip(&said).enumerate() {
        let packet = &sample.packet;
        let at = format!("frame {n}, {} > {}: {packet}\n{said}", sample.src, sample.dst);
        opcodes.insert(packet.opcode());
        let (covered, icrc) = sample.datagram.split_last_chunk::<ICRC_LEN>().unwrap();
        let pad = if packet.message.has_payload() { Packet::pad_for(packet.payload.len()) } else { 0 };
        let expected = json!({
            "time_ns": 1_795_226_566_000_000_000u64 + n as u64 * 1001,
            "opcode": packet.opcode(),
            "solicited": u8::from(packet.solicited), "migreq": u8::from(packet.mig_req),
            "padcount": pad, "version": 0, "pkey": packet.pkey,
            "fecn": u8::from(packet.fecn), "becn": u8::from(packet.becn),
            "dqpn": packet.dest_qp.value(), "ackreq": u8::from(packet.ack_req), "psn": packet.psn.value(),
            "icrc": u32::from_be_bytes(*icrc),
            "after_bth": hex(&covered[BTH_LEN..]),
            "rebuilt_icrc": hex(icrc),
            "rebuilt_differs_at": [],
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(said[field], *value, "{field} of {at}");
        }
        // scapy has no name for SEND with invalidate and prints the opcode number.
        if !matches!(packet.message, Message::SendLastInv(_) | Message::SendOnlyInv(_)) {
            assert_eq!(said["opcode_name"].as_str(), opcode::name(packet.opcode()), "{at}");
        }
        // scapy dissects the AETH of acknowledgements only.
        if let Message::Ack(aeth) = packet.message {
            assert_eq!(said["syndrome"], aeth.syndrome.to_raw(), "{at}");
            assert_eq!(said["msn"], aeth.msn, "{at}");
        }
    }
    assert_eq!(opcodes.len(), 37, "every opcode of RC, UC and UD");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

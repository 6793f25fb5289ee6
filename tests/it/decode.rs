//! The command `mitra decode`: lines, totals, errors, exit codes.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use mitra_test_process::{TestProcess, command, output};
use mitra_wire::{IcrcPath, Message, Packet, Psn, Qpn, Reth, Transport};
use serde_json::Value;

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures").join(name)
}

fn decode(file: &Path, flags: &[&str]) -> Output {
    output(command(env!("CARGO_BIN_EXE_mitra")).arg("decode").arg(file).args(flags))
}

fn json_lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn temporary(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn text_has_one_line_per_packet_and_a_summary() {
    let output = decode(&capture("rnr_nak.pcap"), &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 9);
    assert!(lines[..8].iter().all(|line| line.ends_with("icrc ok")), "{text}");
    assert!(
        lines.iter().any(|line| line.contains("RC_ACKNOWLEDGE") && line.contains("rnr-nak timer")),
        "{text}"
    );
    assert_eq!(lines[8], "8 packets (0 with a bad ICRC), 0 malformed, 0 not RoCEv2");
}

#[test]
fn json_has_every_field() {
    let output = decode(&capture("mixed.pcap"), &["--json"]);
    assert_eq!(output.status.code(), Some(0));
    let lines = json_lines(&output);
    let (totals, packets) = lines.split_last().unwrap();
    assert_eq!(*totals, serde_json::json!({"packets": 168, "not_roce": 0, "malformed": 0, "icrc_bad": 0}));
    assert_eq!(packets.len(), 168);
    assert_eq!(
        packets[0],
        serde_json::json!({
            "number": 1, "time": "1795226566.876908000", "src": "10.77.0.1:49777", "dst": "10.77.0.2:4791",
            "opcode": "RC_RDMA_WRITE_FIRST", "opcode_raw": 6, "psn": 4096, "dest_qp": 0x19, "icrc_ok": true,
            "pkey": 0xffff, "solicited": false, "mig_req": false, "fecn": false, "becn": false, "ack_req": false,
            "payload_len": 1024, "va": "0x7fdb9971c000", "rkey": 0xa05, "dma_len": 2500,
        })
    );
    let has = |opcode: &str, field: &str| {
        packets.iter().any(|packet| packet["opcode"] == opcode && !packet[field].is_null())
    };
    assert!(has("RC_ATOMIC_ACKNOWLEDGE", "original") && has("RC_ATOMIC_ACKNOWLEDGE", "msn"));
    assert!(has("RC_COMPARE_SWAP", "compare") && has("RC_COMPARE_SWAP", "swap"));
    assert!(has("RC_FETCH_ADD", "add"));
    assert!(has("RC_RDMA_READ_RESPONSE_FIRST", "syndrome"));
}

#[test]
fn corrupted_packet_is_bad() {
    let original = std::fs::read(capture("cas.pcap")).unwrap();
    // The file and record headers take 24 + 16 bytes; the last byte of the first frame belongs to
    // its ICRC.
    let first_len = u32::from_le_bytes(original[32..36].try_into().unwrap()) as usize;
    let mut corrupted = original.clone();
    corrupted[24 + 16 + first_len - 1] ^= 1;
    let output = decode(temporary(&corrupted).path(), &["--json"]);
    assert_eq!(output.status.code(), Some(0));
    let lines = json_lines(&output);
    assert_eq!((&lines[0]["icrc_ok"], &lines[1]["icrc_ok"]), (&Value::Bool(false), &Value::Bool(true)));
    assert_eq!(lines[40], serde_json::json!({"packets": 40, "not_roce": 0, "malformed": 0, "icrc_bad": 1}));
}

/// Returns a capture of one Ethernet frame, of which `tcpdump -s` has kept `snaplen` bytes.
fn capture_of(frame: &[u8], snaplen: usize) -> tempfile::NamedTempFile {
    let mut file = mitra_wire::pcap::file_header().to_vec();
    let captured = frame.len().min(snaplen);
    let mut header = mitra_wire::pcap::record_header(1_000_000_000, frame.len());
    header[8..12].copy_from_slice(&(captured as u32).to_le_bytes());
    file.extend_from_slice(&header);
    file.extend_from_slice(&frame[..captured]);
    temporary(&file)
}

/// Returns a frame that contains these datagrams one behind the other, each sealed for its own
/// length and identification.
fn gso_frame(src: &str, dst: &str, payload_lens: &[usize]) -> Vec<u8> {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut run = Vec::new();
    for (index, &len) in payload_lens.iter().enumerate() {
        let payload = vec![0x11; len];
        let (qp, psn) = (Qpn::new(0x12_3456), Psn::new(77 + index as u32));
        let reth = Reth { va: 0x1000, rkey: 7, len: len as u32 };
        let packet = Packet::new(Transport::Rc, qp, psn, Message::WriteOnly(reth), &payload);
        let mut datagram = Vec::new();
        packet.emit_to(&mut datagram);
        datagram.extend_from_slice(&[0; 4]);
        IcrcPath::new(src, dst).seal(&mut datagram, 9 + index as u16);
        run.extend_from_slice(&datagram);
    }
    let mut frame = Vec::new();
    mitra_wire::frame::encode(src, dst, 9, &run, &mut frame);
    frame
}

#[test]
fn decode_snaplen() {
    let frame = gso_frame("10.0.0.1:50000", "10.0.0.2:4791", &[1000]);
    let packet = "10.0.0.1:50000 > 10.0.0.2:4791 RC_RDMA_WRITE_ONLY qp 0x123456 psn 77";
    let all_headers = format!("{packet} va 0x1000 rkey 0x00000007 dmalen 1000 len 1000 icrc unknown\n");
    let bth = format!("{packet}, other headers cut, icrc unknown\n");
    // The headers end after 42 bytes of Ethernet, IPv4 and UDP, 12 of the BTH and 16 of the RETH.
    for (snaplen, line) in [(128, &all_headers), (70, &all_headers), (69, &bth), (64, &bth), (54, &bth)] {
        let output = decode(capture_of(&frame, snaplen).path(), &[]);
        let summary = "1 packets (0 with a bad ICRC, 1 cut short), 0 malformed, 0 not RoCEv2\n";
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("1.000000000 {line}{summary}"),
            "{snaplen}"
        );
    }
    let lines = json_lines(&decode(capture_of(&frame, 69).path(), &["--json"]));
    assert_eq!((&lines[0]["psn"], &lines[0]["dest_qp"]), (&77.into(), &0x12_3456.into()));
    assert_eq!((&lines[0]["icrc_ok"], &lines[0]["opcode"]), (&Value::Null, &"RC_RDMA_WRITE_ONLY".into()));
    assert_eq!((&lines[1]["packets"], &lines[1]["icrc_unknown"]), (&1.into(), &1.into()));
    let lines = json_lines(&decode(capture_of(&frame, 53).path(), &["--json"]));
    assert_eq!(lines[0]["malformed"], "truncated BTH");
}

#[test]
fn gso_run_is_split_into_its_packets() {
    for (src, dst) in [("10.0.0.1:50000", "10.0.0.2:4791"), ("[fd00::1]:50000", "[fd00::2]:4791")] {
        for lens in [&[1024; 3][..], &[1024, 1024, 8], &[8, 8, 8, 8, 8], &[0, 0], &[64; 64]] {
            let output = decode(capture_of(&gso_frame(src, dst, lens), 1 << 16).path(), &["--json"]);
            let lines = json_lines(&output);
            let (totals, packets) = lines.split_last().unwrap();
            assert_eq!(
                (&totals["packets"], &totals["icrc_bad"]),
                (&lens.len().into(), &0.into()),
                "{lens:?}"
            );
            for (packet, (psn, len)) in packets.iter().zip((77..).zip(lens)) {
                assert_eq!(
                    (&packet["number"], &packet["psn"], &packet["payload_len"], &packet["icrc_ok"]),
                    (&1.into(), &psn.into(), &(*len).into(), &true.into()),
                    "{lens:?}"
                );
            }
        }
    }
    // A damaged packet in a run is bad, and the others are good.
    let mut frame = gso_frame("10.0.0.1:50000", "10.0.0.2:4791", &[512; 4]);
    frame[42 + 100] ^= 1;
    let lines = json_lines(&decode(capture_of(&frame, 1 << 16).path(), &["--json"]));
    let icrc_ok: Vec<_> = lines[..4].iter().map(|line| line["icrc_ok"] == true).collect();
    assert_eq!(icrc_ok, [false, true, true, true]);
}

/// Requests that Mitra's NICs do not execute, but other devices do.
#[test]
fn flush_and_atomic_write_have_names_and_headers() {
    let reth = [0x1000u64.to_be_bytes(), [0, 0, 0, 7, 0, 0, 0, 8]].concat();
    let frame = |code: u8, headers: &[&[u8]]| {
        let (src, dst) = ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
        let bth = [code, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0, 0, 77];
        let mut datagram = [&bth[..], &headers.concat(), &[0; 4]].concat();
        IcrcPath::new(src, dst).seal(&mut datagram, 9);
        let mut frame = Vec::new();
        mitra_wire::frame::encode(src, dst, 9, &datagram, &mut frame);
        frame
    };
    let flush = frame(0x1c, &[&[0, 0, 0, 0x13], &reth]);
    let write = frame(0x1d, &[&reth, &0xabcu64.to_be_bytes()]);
    let text = |frame: &[u8], snaplen| {
        let output = decode(capture_of(frame, snaplen).path(), &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().next().unwrap().split_once("4791 ").unwrap().1.to_owned()
    };
    let headers = "va 0x1000 rkey 0x00000007 dmalen 8";
    assert_eq!(
        text(&flush, 1 << 16),
        format!("RC_FLUSH qp 0x123456 psn 77 placement 3 selectivity 1 {headers} icrc ok")
    );
    assert_eq!(
        text(&write, 1 << 16),
        format!("RC_ATOMIC_WRITE qp 0x123456 psn 77 {headers} value 0xabc icrc ok")
    );
    assert_eq!(text(&write, 70), "RC_ATOMIC_WRITE qp 0x123456 psn 77, other headers cut, icrc unknown");
    let json = |frame: &[u8]| {
        let line = json_lines(&decode(capture_of(frame, 1 << 16).path(), &["--json"])).remove(0);
        let fields = ["opcode", "icrc_ok", "va", "rkey", "dma_len", "placement", "selectivity", "value"];
        Value::from_iter(fields.map(|field| (field, line[field].clone())))
    };
    assert_eq!(
        json(&flush),
        serde_json::json!({"opcode": "RC_FLUSH", "icrc_ok": true, "va": "0x1000", "rkey": 7, "dma_len": 8,
            "placement": 3, "selectivity": 1, "value": null})
    );
    assert_eq!(
        json(&write),
        serde_json::json!({"opcode": "RC_ATOMIC_WRITE", "icrc_ok": true, "va": "0x1000", "rkey": 7, "dma_len": 8,
            "placement": null, "selectivity": null, "value": "0xabc"})
    );
}

#[test]
fn roce_v1_and_tunnels_are_named() {
    let ip = gso_frame("10.0.0.1:50000", "10.0.0.2:4791", &[8]);
    let edited = |at: usize, bytes: &[u8]| {
        let mut frame = ip.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    for (frame, name) in [
        (edited(12, &[0x89, 0x15]), "RoCE v1"),
        (edited(36, &4789u16.to_be_bytes()), "VXLAN tunnel"),
        (edited(36, &8472u16.to_be_bytes()), "VXLAN tunnel"),
        (edited(36, &6081u16.to_be_bytes()), "Geneve tunnel"),
        (edited(23, &[47]), "GRE tunnel"),
        (edited(23, &[4]), "IP-in-IP tunnel"),
    ] {
        let output = decode(capture_of(&frame, 1 << 16).path(), &["--json"]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains("1 frames are not decoded") && line.contains(name), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert_eq!(json_lines(&output)[0]["not_roce"], 1);
    }
}

#[test]
fn other_traffic_is_counted_and_skipped() {
    let mut file = std::fs::read(capture("cas.pcap")).unwrap();
    // The first frame gets another UDP destination port; the second frame is unchanged.
    let port = 24 + 16 + 14 + 20 + 2;
    file[port..port + 2].copy_from_slice(&4789u16.to_be_bytes());
    let lines = json_lines(&decode(temporary(&file).path(), &["--json"]));
    assert_eq!(lines.len(), 40);
    assert_eq!(lines[39], serde_json::json!({"packets": 39, "not_roce": 1, "malformed": 0, "icrc_bad": 0}));
}

#[test]
fn congestion_notification_is_a_packet() {
    let mut file = std::fs::read(capture("cas.pcap")).unwrap();
    file[24 + 16 + 14 + 20 + 8] = 0x81;
    let lines = json_lines(&decode(temporary(&file).path(), &["--json"]));
    assert_eq!((&lines[0]["opcode"], &lines[0]["icrc_ok"]), (&Value::from("CNP"), &Value::Bool(false)));
    file[24 + 16 + 14 + 20 + 8] = 0x82;
    let lines = json_lines(&decode(temporary(&file).path(), &["--json"]));
    assert_eq!(lines[0]["malformed"], "unknown opcode 0x82");
}

#[test]
fn truncated_file_is_decoded_up_to_its_end() {
    let file = std::fs::read(capture("send.pcap")).unwrap();
    let output = decode(temporary(&file[..file.len() - 1]).path(), &["--json"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in the middle of a record"));
    let totals = json_lines(&output).pop().unwrap();
    assert_eq!(totals, serde_json::json!({"packets": 29, "not_roce": 0, "malformed": 1, "icrc_bad": 0}));
}

#[test]
fn file_that_is_no_capture_is_reported_in_one_line() {
    let missing = Path::new("/nonexistent/x.pcap");
    let garbage = temporary(b"#!/bin/sh\necho this is not a capture at all\n");
    let empty = temporary(b"");
    let directory = tempfile::tempdir().unwrap();
    for path in [missing, garbage.path(), empty.path(), directory.path()] {
        let output = decode(path, &["--json"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
    assert!(
        String::from_utf8_lossy(&decode(garbage.path(), &[]).stderr).contains("is not a pcap or pcapng file")
    );
    assert_eq!(decode(&capture("cas.pcap"), &["--no-such-flag"]).status.code(), Some(2));

    // A capture that becomes corrupt: the records before the damage count, and the exit code
    // reports the error.
    let mut broken = std::fs::read(capture("cas.pcap")).unwrap();
    broken.extend_from_slice(&[0xff; 16]);
    let output = decode(temporary(&broken).path(), &["--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(json_lines(&output).pop().unwrap()["packets"], 40);
}

#[test]
fn unknown_link_type_is_reported() {
    let mut file = std::fs::read(capture("cas.pcap")).unwrap();
    file[20..24].copy_from_slice(&147u32.to_le_bytes());
    let output = decode(temporary(&file).path(), &["--json"]);
    assert_eq!(json_lines(&output).pop().unwrap()["not_roce"], 40);
    assert!(String::from_utf8_lossy(&output.stderr).contains("link type 147"));
}

#[test]
fn standard_input_is_read_in_chunks() {
    let file = std::fs::read(capture("mixed_mtu4096.pcap")).unwrap();
    let mut mitra = command(env!("CARGO_BIN_EXE_mitra"));
    mitra.args(["decode", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut mitra = TestProcess::start(&mut mitra);
    let mut input = mitra.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        // Read sizes that split headers and frames.
        file.chunks(997).for_each(|piece| input.write_all(piece).unwrap());
    });
    let output = mitra.output().unwrap();
    feeder.join().unwrap();
    let totals = json_lines(&output).pop().unwrap();
    assert_eq!(totals, serde_json::json!({"packets": 64, "not_roce": 0, "malformed": 0, "icrc_bad": 0}));
}

#[test]
fn closed_output_pipe_ends_decode_quietly() {
    // The output exceeds a pipe's buffer, so a write fails.
    let one = std::fs::read(capture("mixed.pcap")).unwrap();
    let mut file = one.clone();
    (0..20).for_each(|_| file.extend_from_slice(&one[24..]));
    for flag in ["--json", "--"] {
        let file = temporary(&file);
        let mut mitra = command(env!("CARGO_BIN_EXE_mitra"));
        mitra.args(["decode", flag]).arg(file.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut mitra = TestProcess::start(&mut mitra);
        let mut first = [0; 10];
        mitra.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = mitra.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{flag}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{flag}");
    }
}

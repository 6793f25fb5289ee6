//! Sample packets, which scapy and tshark parse in the tests: every opcode over IPv4 and IPv6 with
//! several payloads.

use std::net::SocketAddr;
use std::process::{Command, Output};

use mitra_wire::*;

/// A packet and the Ethernet frame that carries it.
pub(crate) struct Sample {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    pub(crate) packet: Packet<'static>,
    pub(crate) datagram: Vec<u8>,
    pub(crate) frame: Vec<u8>,
}

/// Payload bytes that resemble no protocol, so that no dissector parses them.
static PAYLOAD: [u8; 1024] = [0xa7; 1024];

fn messages() -> Vec<Message> {
    use Message::*;
    let reth = Reth { va: 0x0123_4567_89ab_cdef, rkey: 0xdead_0a05, len: 2500 };
    let atomic = AtomicEth {
        va: 0x7fdb_9971_c000,
        rkey: 0xa05,
        swap_add: 0x1122_3344_5566_7788,
        compare: u64::MAX - 1,
    };
    let aeth = |syndrome| Aeth { syndrome, msn: 0xfe_dcba };
    let ack = aeth(Syndrome::ACK);
    vec![
        SendFirst,
        SendMiddle,
        SendLast,
        SendLastImm(0x0102_0304),
        SendLastInv(0x0506_0708),
        SendOnly,
        SendOnlyImm(0x0102_0304),
        SendOnlyInv(0x0506_0708),
        WriteFirst(reth),
        WriteMiddle,
        WriteLast,
        WriteLastImm(0x0102_0304),
        WriteOnly(reth),
        WriteOnlyImm(reth, 0x0102_0304),
        ReadRequest(reth),
        ReadFirst(ack),
        ReadMiddle,
        ReadLast(ack),
        ReadOnly(ack),
        Ack(ack),
        Ack(aeth(Syndrome::Ack { credits: 5 })),
        Ack(aeth(Syndrome::RnrNak { timer: 12 })),
        Ack(aeth(Syndrome::Nak(NakCode::PsnSequence))),
        Ack(aeth(Syndrome::Nak(NakCode::InvalidRequest))),
        Ack(aeth(Syndrome::Nak(NakCode::RemoteAccess))),
        Ack(aeth(Syndrome::Nak(NakCode::RemoteOperational))),
        AtomicAck(ack, 0x8877_6655_4433_2211),
        CompareSwap(atomic),
        FetchAdd(atomic),
    ]
}

/// Returns a packet of every opcode of RC, UC and UD over both address families, with payloads of
/// every pad count.
pub(crate) fn samples() -> Vec<Sample> {
    let ud = Transport::Ud(Deth { qkey: 0x8001_0203, src_qp: Qpn::new(0xabcdef) });
    samples_of(&[Transport::Rc, Transport::Uc, ud])
}

/// Returns the same packets for XRC.
#[allow(dead_code, reason = "scapy and tshark do not parse the XRCETH")]
pub(crate) fn xrc_samples() -> Vec<Sample> {
    samples_of(&[Transport::Xrc(Srqn::new(0x12_3456))])
}

fn samples_of(transports: &[Transport]) -> Vec<Sample> {
    let ends: [(SocketAddr, SocketAddr); 2] = [
        ("10.1.2.3:49153".parse().unwrap(), "10.3.2.1:4791".parse().unwrap()),
        ("[fd00::1:2]:61000".parse().unwrap(), "[fd00::2:1]:4791".parse().unwrap()),
    ];
    let mut samples = Vec::new();
    for (src, dst) in ends {
        for &transport in transports {
            for message in messages().into_iter().filter(|message| transport.carries(message)) {
                let lens: &[usize] = if message.has_payload() { &[0, 1, 2, 3, 4, 61, 1024] } else { &[0] };
                for &len in lens {
                    // The flags and numbers differ between samples.
                    let n = samples.len() as u32;
                    let dest_qp = Qpn::new(0xff_fffe - n);
                    let psn = Psn::new(0xff_ff00).add(n);
                    let mut packet = Packet::new(transport, dest_qp, psn, message, &PAYLOAD[..len]);
                    packet.solicited = n & 1 != 0;
                    packet.mig_req = n & 2 != 0;
                    packet.ack_req = n & 4 != 0;
                    packet.fecn = n & 8 != 0;
                    packet.becn = n & 16 != 0;
                    packet.pkey = if n & 32 != 0 { 0x8001 } else { 0xffff };
                    let ident = if src.is_ipv4() { (n * 257) as u16 } else { 0 };
                    let mut datagram = Vec::new();
                    packet.emit_to(&mut datagram);
                    datagram.extend_from_slice(&[0; ICRC_LEN]);
                    IcrcPath::new(src, dst).seal(&mut datagram, ident);
                    let mut frame = Vec::new();
                    frame::encode(src, dst, ident, &datagram, &mut frame);
                    samples.push(Sample { src, dst, packet, datagram, frame });
                }
            }
        }
    }
    samples
}

/// Writes a capture file of the samples, whose time stamps are 1001 ns apart.
pub(crate) fn write_pcap(samples: &[Sample]) -> tempfile::TempPath {
    let mut bytes = Vec::new();
    let mut writer = pcap::Writer::new(&mut bytes).unwrap();
    for (n, sample) in samples.iter().enumerate() {
        writer.frame(1_795_226_566_000_000_000 + n as u64 * 1001, &sample.frame).unwrap();
    }
    let path = tempfile::Builder::new().suffix(".pcap").tempfile().unwrap().into_temp_path();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Runs a program of another implementation.
///
/// # Panics
/// Panics if the program fails.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = mitra_test_process::output(command);
    assert!(
        output.status.success(),
        "{command:?} failed ({}). If something is missing, run `cargo xtask setup`. It said:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

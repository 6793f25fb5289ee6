//! `mitra decode`: shows the RoCEv2 packets of a capture file, one per line, each with the result
//! of its ICRC check.

mod json;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use mitra_wire::frame::{Frame, FrameError, LinkType};
use mitra_wire::icrc::{segment_len, verify_segment};
use mitra_wire::pcap::{FileError, Reader, Record, Step};
use mitra_wire::{BTH_LEN, ICRC_LEN, Packet, ParseError, PlacementRequest, Psn, Qpn, opcode};
use serde::Serialize;

use super::complain;

/// Show the RoCEv2 packets of a capture file (pcap or pcapng) and check the ICRC of each
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra decode capture.pcap
  mitra decode --json capture.pcapng | jq -s '.[-1]'
  sudo tcpdump -w - udp port 4791 | mitra decode -
tcpdump does not see packets that go through shared memory, as between programs of one machine: start these with
`mitra run --links udp`, or `mitra demo --pcap`.
A line has the time, the addresses, the operation, and the fields of its headers by the names of the IBTA's specification.
A file that ends in the middle of a record is decoded up to there, with a warning. The ICRC of a packet that the capture
cut short (tcpdump -s) is unknown. docs/wire.md describes the fields of --json; the last object has the totals packets,
not_roce, malformed and icrc_bad.
Exit codes: 0 the file was read to its end, whatever its contents; 2 the file cannot be read or is not a capture.")]
pub(crate) struct Args {
    /// Capture file; - reads standard input, as in `tcpdump -w - udp port 4791 | mitra decode -`
    file: PathBuf,
    /// Print one JSON object per line: one per packet, then the totals
    #[arg(long)]
    json: bool,
}

/// The totals of a capture. Each datagram is counted in exactly one of `packets`, `not_roce` and
/// `malformed`.
#[derive(Default, Serialize)]
struct Totals {
    /// Well-formed RoCEv2 packets, with a good, a bad or an unknown ICRC.
    packets: u64,
    /// Frames that are not RoCEv2.
    not_roce: u64,
    /// RoCEv2 packets that do not parse, or that the capture truncated before the end of the BTH.
    /// An incomplete record at the end of the file is counted here too.
    malformed: u64,
    /// The packets among `packets` with a bad ICRC.
    icrc_bad: u64,
    /// The packets among `packets` that the capture truncated, so that their ICRC is unknown.
    #[serde(skip_serializing_if = "is_zero")]
    icrc_unknown: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Totals {
    /// Whether no frame was read.
    fn is_empty(&self) -> bool {
        self.packets + self.not_roce + self.malformed == 0
    }
}

/// A RoCEv2 frame, or a malformed frame that may be RoCEv2.
struct DecodedFrame<'a> {
    /// The number of the frame in the file, from 1.
    number: u64,
    /// The time stamp in ns since the Unix epoch.
    ts_ns: u64,
    /// `None` if the Ethernet, IP or UDP header is malformed.
    frame: Option<Frame<'a>>,
    content: FrameContent<'a>,
}

impl DecodedFrame<'_> {
    /// Formats the time stamp as seconds since the Unix epoch with nine decimals.
    fn time(&self) -> String {
        format!("{}.{:09}", self.ts_ns / 1_000_000_000, self.ts_ns % 1_000_000_000)
    }
}

enum FrameContent<'a> {
    /// `icrc_ok` is `None` if the packet was truncated.
    Packet {
        packet: Packet<'a>,
        icrc_ok: Option<bool>,
    },
    Placement {
        request: PlacementRequest,
        /// The length without the ICRC.
        len: usize,
        icrc_ok: Option<bool>,
    },
    /// The BTH alone: of a congestion notification, which has no PSN, or of a packet that was
    /// truncated in its extension headers.
    Bth {
        opcode: u8,
        dest_qp: Qpn,
        psn: Option<Psn>,
        icrc_ok: Option<bool>,
    },
    Malformed(String),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(&args.file).with_context(|| {
            format!("cannot open {name}; give the path of a capture, or - for standard input")
        })?)
    };
    let mut out = Output {
        to: BufWriter::new(io::stdout().lock()),
        json: args.json,
        totals: Totals::default(),
        unsupported_link: None,
        undecoded: Vec::new(),
    };
    let read = read_records(input, &mut out);
    match &read {
        Err(StopReason::File(FileError::NotACapture)) => {
            return Err(anyhow!(
                "{name} is not a pcap or pcapng file (compressed captures must be unpacked, other formats \
                 converted: editcap -F pcap IN OUT)"
            ));
        }
        // Reading failed before the first frame, for instance because the file is a directory.
        Err(StopReason::Read(_)) if out.totals.is_empty() => {}
        Err(StopReason::Read(_) | StopReason::File(_)) | Ok(()) => out.finish()?,
        Err(StopReason::Write(_)) => {}
    }
    if let Some(link) = out.unsupported_link {
        complain(format_args!(
            "{name}: frames of link type {link} are not supported (Ethernet, raw IP, Linux cooked and \
             BSD loopback are) and count as not RoCEv2"
        ));
    }
    for (kind, frames) in &out.undecoded {
        complain(format_args!("{name}: {frames} frames are not decoded, and count as not RoCEv2: {kind}"));
    }
    match read {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(StopReason::File(error @ FileError::Truncated)) => {
            complain(format_args!("{name}: {error}; the packets before it are decoded"));
            Ok(ExitCode::SUCCESS)
        }
        Err(StopReason::File(error)) => Err(anyhow!(error).context(format!("{name}: decoding stopped"))),
        Err(StopReason::Read(error)) => Err(anyhow!(error).context(format!("cannot read {name}"))),
        Err(StopReason::Write(error)) => Err(error.into()),
    }
}

/// The reason why decoding stopped before the end of the input.
enum StopReason {
    File(FileError),
    Read(io::Error),
    Write(io::Error),
}

/// Reads the file in pieces and passes each frame to the output.
fn read_records(mut input: impl Read, out: &mut Output<impl Write>) -> Result<(), StopReason> {
    const READ_SIZE: usize = 256 << 10;
    let mut reader = Reader::new();
    // The unread bytes are `buffer[start..end]`.
    let (mut buffer, mut start, mut end) = (vec![0; READ_SIZE], 0, 0);
    let mut number = 0;
    loop {
        match reader.step(&buffer[start..end]).map_err(StopReason::File)? {
            Step::Skip(n) => start += n,
            Step::Frame(n, record) => {
                number += 1;
                out.record(number, &record).map_err(StopReason::Write)?;
                start += n;
            }
            Step::NeedMore(n) => {
                // The input may be a live capture, so the decoded lines are written before the next
                // read.
                out.to.flush().map_err(StopReason::Write)?;
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
                if buffer.len() < n {
                    buffer.resize(n.max(READ_SIZE), 0);
                }
                let got = read_some(&mut input, &mut buffer[end..]).map_err(StopReason::Read)?;
                end += got;
                if got == 0 {
                    return match (reader.is_recognised(), end) {
                        (false, _) => Err(StopReason::File(FileError::NotACapture)),
                        (true, 0) => Ok(()),
                        (true, _) => {
                            out.totals.malformed += 1;
                            Err(StopReason::File(FileError::Truncated))
                        }
                    };
                }
            }
        }
    }
}

fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

struct Output<W> {
    to: W,
    json: bool,
    totals: Totals,
    /// The first unsupported link type of the file.
    unsupported_link: Option<u16>,
    /// The kinds of frames that may concern RoCE and are not decoded, with their numbers.
    undecoded: Vec<(FrameError, u64)>,
}

impl<W: Write> Output<W> {
    fn record(&mut self, number: u64, record: &Record<'_>) -> io::Result<()> {
        let ts_ns = record.ts_ns;
        let Some(link) = LinkType::from_number(record.link) else {
            self.unsupported_link.get_or_insert(record.link);
            self.totals.not_roce += 1;
            return Ok(());
        };
        match Frame::parse(link, record.bytes) {
            Ok(frame) if frame.datagram.is_empty() || frame.datagram.len() < frame.datagram_len => {
                let mut datagram = frame.datagram.to_vec();
                datagram.resize(frame.datagram_len, 0);
                let content = truncated(&datagram, frame.datagram.len());
                self.line(&DecodedFrame { number, ts_ns, frame: Some(frame), content })
            }
            Ok(frame) => (0..).zip(frame.datagram.chunks(segment_len(&frame).max(1))).try_for_each(
                |(index, datagram)| {
                    let icrc_ok = verify_segment(&frame, datagram, index).is_good();
                    let content = decode_datagram(datagram, Some(icrc_ok));
                    self.line(&DecodedFrame { number, ts_ns, frame: Some(frame), content })
                },
            ),
            Err(kind @ (FrameError::NotRoce | FrameError::RoceV1 | FrameError::Tunnel(_))) => {
                self.totals.not_roce += 1;
                match self.undecoded.iter_mut().find(|(other, _)| *other == kind) {
                    Some((_, frames)) => *frames += 1,
                    None if kind != FrameError::NotRoce => self.undecoded.push((kind, 1)),
                    None => {}
                }
                Ok(())
            }
            Err(error) => {
                let content = FrameContent::Malformed(error.to_string());
                self.line(&DecodedFrame { number, ts_ns, frame: None, content })
            }
        }
    }

    fn line(&mut self, decoded: &DecodedFrame<'_>) -> io::Result<()> {
        match decoded.content {
            FrameContent::Packet { icrc_ok, .. }
            | FrameContent::Placement { icrc_ok, .. }
            | FrameContent::Bth { icrc_ok, .. } => {
                self.totals.packets += 1;
                self.totals.icrc_bad += u64::from(icrc_ok == Some(false));
                self.totals.icrc_unknown += u64::from(icrc_ok.is_none());
            }
            FrameContent::Malformed(_) => self.totals.malformed += 1,
        }
        if self.json {
            serde_json::to_writer(&mut self.to, &json::Line::new(decoded))?;
            self.to.write_all(b"\n")
        } else {
            text(&mut self.to, decoded)
        }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let Totals { packets, not_roce, malformed, icrc_bad, icrc_unknown } = self.totals;
        if self.json {
            serde_json::to_writer(&mut self.to, &self.totals).map_err(io::Error::from)?;
            writeln!(self.to)?;
        } else {
            let unknown = match icrc_unknown {
                0 => String::new(),
                _ => format!(", {icrc_unknown} cut short"),
            };
            writeln!(
                self.to,
                "{packets} packets ({icrc_bad} with a bad ICRC{unknown}), {malformed} malformed, {not_roce} not RoCEv2"
            )?;
        }
        Ok(self.to.flush()?)
    }
}

/// Parses a complete datagram.
fn decode_datagram(datagram: &[u8], icrc_ok: Option<bool>) -> FrameContent<'_> {
    let Some(bytes) = datagram.len().checked_sub(ICRC_LEN).filter(|&len| len >= BTH_LEN) else {
        return FrameContent::Malformed(format!("{} bytes, too few for a BTH and an ICRC", datagram.len()));
    };
    match Packet::parse(&datagram[..bytes]) {
        Ok(packet) => FrameContent::Packet { packet, icrc_ok },
        Err(ParseError::UnknownOpcode(opcode @ opcode::CNP)) => {
            FrameContent::Bth { opcode, dest_qp: dest_qp(datagram), psn: None, icrc_ok }
        }
        Err(ParseError::UnknownOpcode(opcode::FLUSH | opcode::ATOMIC_WRITE)) => {
            match PlacementRequest::parse(&datagram[..bytes]) {
                Ok(request) => FrameContent::Placement { request, len: bytes, icrc_ok },
                Err(error) => FrameContent::Malformed(error.to_string()),
            }
        }
        Err(error) => FrameContent::Malformed(error.to_string()),
    }
}

/// Parses a datagram of which the capture has the first `captured` bytes. Behind these bytes,
/// `datagram` contains zeros.
fn truncated(datagram: &[u8], captured: usize) -> FrameContent<'_> {
    if captured < BTH_LEN {
        return FrameContent::Malformed("truncated BTH".to_owned());
    }
    match decode_datagram(datagram, None) {
        FrameContent::Packet { packet, .. } if captured < packet.headers_len() => FrameContent::Bth {
            opcode: packet.opcode(),
            dest_qp: packet.dest_qp,
            psn: Some(packet.psn),
            icrc_ok: None,
        },
        FrameContent::Placement { request, len, .. } if captured < len => FrameContent::Bth {
            opcode: request.opcode(),
            dest_qp: request.dest_qp,
            psn: Some(request.psn),
            icrc_ok: None,
        },
        content => content,
    }
}

fn dest_qp(datagram: &[u8]) -> Qpn {
    Qpn::new(u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]]))
}

fn text(to: &mut impl Write, decoded: &DecodedFrame<'_>) -> io::Result<()> {
    to.write_all(decoded.time().as_bytes())?;
    if let Some(frame) = &decoded.frame {
        write!(to, " {} > {}", frame.src, frame.dst)?;
    }
    let icrc_ok = match &decoded.content {
        FrameContent::Packet { packet, icrc_ok } => {
            write!(to, " {packet}")?;
            icrc_ok
        }
        FrameContent::Placement { request, icrc_ok, .. } => {
            write!(to, " {request}")?;
            icrc_ok
        }
        FrameContent::Bth { opcode, dest_qp, psn, icrc_ok } => {
            write!(to, " {} qp {dest_qp}", opcode::name(*opcode).unwrap_or_default())?;
            if let Some(psn) = psn {
                write!(to, " psn {psn}, other headers cut,")?;
            }
            icrc_ok
        }
        FrameContent::Malformed(reason) => {
            return writeln!(to, " malformed (frame {}): {reason}", decoded.number);
        }
    };
    let verdict = match icrc_ok {
        Some(true) => "ok",
        Some(false) => "BAD",
        None => "unknown",
    };
    writeln!(to, " icrc {verdict}")
}

//! `mitra decode`: shows the RoCEv2 packets of a capture file, one per line, each with the result of its ICRC check.

mod json;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use mitra_wire::frame::{Frame, FrameError, LinkType};
use mitra_wire::icrc::verify_frame;
use mitra_wire::pcap::{FileError, Reader, Record, Step};
use mitra_wire::{ICRC_LEN, Packet, ParseError, Qpn, Verdict, opcode};
use serde::Serialize;

use super::complain;

/// Show the RoCEv2 packets of a capture file (pcap or pcapng) and check the ICRC of each
#[derive(clap::Args)]
#[command(after_help = "\
A file that ends in the middle of a record is decoded up to there, with a warning. docs/wire.md describes the fields of
--json; the last object has the totals packets, not_roce, malformed and icrc_bad.
Exit codes: 0 the file was read to its end, whatever its contents; 2 the file cannot be read or is not a capture.")]
pub(crate) struct Args {
    /// Capture file; - reads standard input, as in `tcpdump -w - udp port 4791 | mitra decode -`
    file: PathBuf,
    /// Print one JSON object per line: one per packet, then the totals
    #[arg(long)]
    json: bool,
}

/// The totals of a capture. Each frame is counted in exactly one of `packets`, `not_roce` and `malformed`.
#[derive(Default, Serialize)]
struct Totals {
    /// Well-formed RoCEv2 packets, with a good or a bad ICRC.
    packets: u64,
    /// Frames that are not RoCEv2.
    not_roce: u64,
    /// RoCEv2 packets that do not parse, that the capture truncated, or whose headers are incomplete. An incomplete
    /// record at the end of the file is counted here too.
    malformed: u64,
    /// The packets among `packets` with a bad ICRC.
    icrc_bad: u64,
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
    Packet { packet: Packet<'a>, icrc_ok: bool },
    Cnp { dest_qp: Qpn, icrc_ok: bool },
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
    };
    let read = read_records(input, &mut out);
    match &read {
        Err(StopReason::File(FileError::NotACapture)) => {
            return Err(anyhow!(
                "{name} is not a pcap or pcapng file (compressed captures must be unpacked, other formats \
                 converted: editcap -F pcap IN OUT)"
            ));
        }
        // Nothing was decoded, for instance of a directory.
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
                // The input may be a live capture, so the decoded lines are written before the next read.
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
}

impl<W: Write> Output<W> {
    fn record(&mut self, number: u64, record: &Record<'_>) -> io::Result<()> {
        let link = LinkType::from_number(record.link);
        if link.is_none() {
            self.unsupported_link.get_or_insert(record.link);
        }
        let Some(frame_info) = link.and_then(|link| decode_frame(number, record.ts_ns, link, record.bytes))
        else {
            self.totals.not_roce += 1;
            return Ok(());
        };
        match frame_info.content {
            FrameContent::Packet { icrc_ok, .. } | FrameContent::Cnp { icrc_ok, .. } => {
                self.totals.packets += 1;
                self.totals.icrc_bad += u64::from(!icrc_ok);
            }
            FrameContent::Malformed(_) => self.totals.malformed += 1,
        }
        if self.json {
            serde_json::to_writer(&mut self.to, &json::Line::new(&frame_info))?;
            self.to.write_all(b"\n")
        } else {
            text(&mut self.to, &frame_info)
        }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let Totals { packets, not_roce, malformed, icrc_bad } = self.totals;
        if self.json {
            serde_json::to_writer(&mut self.to, &self.totals).map_err(io::Error::from)?;
            writeln!(self.to)?;
        } else {
            writeln!(
                self.to,
                "{packets} packets ({icrc_bad} with a bad ICRC), {malformed} malformed, {not_roce} not RoCEv2"
            )?;
        }
        Ok(self.to.flush()?)
    }
}

/// Parses a frame. Returns `None` if it is not RoCEv2.
fn decode_frame(number: u64, ts_ns: u64, link: LinkType, bytes: &[u8]) -> Option<DecodedFrame<'_>> {
    let frame_info = |frame, content| Some(DecodedFrame { number, ts_ns, frame, content });
    let frame = match Frame::parse(link, bytes) {
        Ok(frame) => frame,
        Err(FrameError::NotRoce) => return None,
        Err(error) => return frame_info(None, FrameContent::Malformed(error.to_string())),
    };
    let icrc_ok = match verify_frame(&frame) {
        Verdict::Good { .. } => true,
        Verdict::Bad => false,
        Verdict::TooShort => {
            let reason = format!("{} bytes, too few for a BTH and an ICRC", frame.datagram.len());
            return frame_info(Some(frame), FrameContent::Malformed(reason));
        }
    };
    let bytes = &frame.datagram[..frame.datagram.len() - ICRC_LEN];
    let content = match (Packet::parse(bytes), bytes) {
        (Ok(packet), _) => FrameContent::Packet { packet, icrc_ok },
        (Err(ParseError::UnknownOpcode(opcode::CNP)), [_, _, _, _, _, q0, q1, q2, ..]) => {
            FrameContent::Cnp { dest_qp: Qpn::new(u32::from_be_bytes([0, *q0, *q1, *q2])), icrc_ok }
        }
        (Err(error), _) => FrameContent::Malformed(error.to_string()),
    };
    frame_info(Some(frame), content)
}

fn text(to: &mut impl Write, frame_info: &DecodedFrame<'_>) -> io::Result<()> {
    to.write_all(frame_info.time().as_bytes())?;
    if let Some(frame) = &frame_info.frame {
        write!(to, " {} > {}", frame.src, frame.dst)?;
    }
    let verdict = |ok| if ok { "icrc ok" } else { "icrc BAD" };
    match &frame_info.content {
        FrameContent::Packet { packet, icrc_ok } => writeln!(to, " {packet} {}", verdict(*icrc_ok)),
        FrameContent::Cnp { dest_qp, icrc_ok } => writeln!(to, " CNP qp {dest_qp} {}", verdict(*icrc_ok)),
        FrameContent::Malformed(reason) => writeln!(to, " malformed (frame {}): {reason}", frame_info.number),
    }
}

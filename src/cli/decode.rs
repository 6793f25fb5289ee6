//! `mitra decode`: the RoCEv2 packets of a capture file, one a line, each with its ICRC verdict.

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

/// Show the RoCEv2 packets of a capture file (pcap or pcapng), with the verdict on each one's ICRC
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 the file was read to its end, whatever is in it; 2 it cannot be read or is no capture.
A file that ends in the middle of a record is read as far as it goes, with a warning.
The fields of --json are in docs/wire.md; the last object has packets, not_roce, malformed, icrc_bad.")]
pub(crate) struct Args {
    /// The capture; - reads standard input, as in `tcpdump -w - udp port 4791 | mitra decode -`
    file: PathBuf,
    /// One JSON object a line: a packet each, then the totals
    #[arg(long)]
    json: bool,
}

/// What the capture holds. Every frame counts in exactly one of the first three.
#[derive(Default, Serialize)]
struct Totals {
    /// RoCEv2 packets that parse, whatever their ICRC.
    packets: u64,
    /// Frames of anything else.
    not_roce: u64,
    /// RoCEv2 that does not parse, was cut by the capture, or ended before anyone could tell what it was.
    malformed: u64,
    /// Those of `packets` whose ICRC is wrong.
    icrc_bad: u64,
}

/// A frame that is or may be RoCEv2.
struct Seen<'a> {
    /// Place in the file, from 1.
    number: u64,
    ts_ns: u64,
    frame: Option<Frame<'a>>,
    what: What<'a>,
}

impl Seen<'_> {
    /// Seconds since the Unix epoch with nine decimals.
    fn time(&self) -> String {
        format!("{}.{:09}", self.ts_ns / 1_000_000_000, self.ts_ns % 1_000_000_000)
    }
}

enum What<'a> {
    Packet { packet: Packet<'a>, icrc_ok: bool },
    Cnp { dest_qp: Qpn, icrc_ok: bool },
    Malformed(String),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(&args.file).with_context(|| format!("cannot open {name}"))?)
    };
    let mut out = Output {
        to: BufWriter::new(io::stdout().lock()),
        json: args.json,
        totals: Totals::default(),
        foreign_link: None,
    };
    let read = read_records(input, &mut out);
    match &read {
        Err(Stop::File(FileError::NotACapture)) => {
            return Err(anyhow!(
                "{name} is not a pcap or pcapng file (compressed captures must be unpacked, other formats \
                 converted: editcap -F pcap IN OUT)"
            ));
        }
        Err(Stop::Read(_) | Stop::File(_)) | Ok(()) => out.finish()?,
        Err(Stop::Write(_)) => {}
    }
    if let Some(link) = out.foreign_link {
        eprintln!(
            "mitra: {name}: frames of link type {link} were not looked into (Ethernet, raw IP, Linux cooked and \
             BSD loopback are) and count as not RoCEv2"
        );
    }
    match read {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Stop::File(error @ FileError::Truncated)) => {
            eprintln!("mitra: {name}: {error}; what came before it is decoded");
            Ok(ExitCode::SUCCESS)
        }
        Err(Stop::File(error)) => Err(anyhow!(error).context(format!("{name}: decoding stopped"))),
        Err(Stop::Read(error)) => Err(anyhow!(error).context(format!("cannot read {name}"))),
        Err(Stop::Write(error)) => Err(anyhow!(error).context("cannot write the output")),
    }
}

/// Why decoding ended early.
enum Stop {
    File(FileError),
    Read(io::Error),
    Write(io::Error),
}

/// Feeds the file to the reader in pieces, each frame to the output.
fn read_records(mut input: impl Read, out: &mut Output<impl Write>) -> Result<(), Stop> {
    const PIECE: usize = 256 << 10;
    let mut reader = Reader::new();
    // The unread bytes are buffer[start..end].
    let (mut buffer, mut start, mut end) = (vec![0; PIECE], 0, 0);
    let mut number = 0;
    loop {
        match reader.step(&buffer[start..end]).map_err(Stop::File)? {
            Step::Skip(n) => start += n,
            Step::Frame(n, record) => {
                number += 1;
                out.record(number, &record).map_err(Stop::Write)?;
                start += n;
            }
            Step::NeedMore(n) => {
                // What has been decoded is shown before waiting for more: the input may be a live capture.
                out.to.flush().map_err(Stop::Write)?;
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
                if buffer.len() < n {
                    buffer.resize(n.max(PIECE), 0);
                }
                let got = read_some(&mut input, &mut buffer[end..]).map_err(Stop::Read)?;
                end += got;
                if got == 0 {
                    return match (reader.is_recognised(), end) {
                        (false, _) => Err(Stop::File(FileError::NotACapture)),
                        (true, 0) => Ok(()),
                        (true, _) => {
                            out.totals.malformed += 1;
                            Err(Stop::File(FileError::Truncated))
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
    /// The first link type met that is not supported.
    foreign_link: Option<u16>,
}

impl<W: Write> Output<W> {
    fn record(&mut self, number: u64, record: &Record<'_>) -> io::Result<()> {
        let link = LinkType::from_number(record.link);
        if link.is_none() {
            self.foreign_link.get_or_insert(record.link);
        }
        let Some(seen) = link.and_then(|link| look(number, record.ts_ns, link, record.bytes)) else {
            self.totals.not_roce += 1;
            return Ok(());
        };
        match seen.what {
            What::Packet { icrc_ok, .. } | What::Cnp { icrc_ok, .. } => {
                self.totals.packets += 1;
                self.totals.icrc_bad += u64::from(!icrc_ok);
            }
            What::Malformed(_) => self.totals.malformed += 1,
        }
        if self.json {
            serde_json::to_writer(&mut self.to, &json::Line::new(&seen))?;
            self.to.write_all(b"\n")
        } else {
            text(&mut self.to, &seen)
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

/// What the frame is; none if it is not RoCEv2.
fn look(number: u64, ts_ns: u64, link: LinkType, bytes: &[u8]) -> Option<Seen<'_>> {
    let seen = |frame, what| Some(Seen { number, ts_ns, frame, what });
    let frame = match Frame::parse(link, bytes) {
        Ok(frame) => frame,
        Err(FrameError::NotRoce) => return None,
        Err(error) => return seen(None, What::Malformed(error.to_string())),
    };
    let icrc_ok = match verify_frame(&frame) {
        Verdict::Good { .. } => true,
        Verdict::Bad => false,
        Verdict::TooShort => {
            let reason = format!("{} bytes, too few for a BTH and an ICRC", frame.datagram.len());
            return seen(Some(frame), What::Malformed(reason));
        }
    };
    let bytes = &frame.datagram[..frame.datagram.len() - ICRC_LEN];
    let what = match (Packet::parse(bytes), bytes) {
        (Ok(packet), _) => What::Packet { packet, icrc_ok },
        (Err(ParseError::UnknownOpcode(opcode::CNP)), [_, _, _, _, _, q0, q1, q2, ..]) => {
            What::Cnp { dest_qp: Qpn::new(u32::from_be_bytes([0, *q0, *q1, *q2])), icrc_ok }
        }
        (Err(error), _) => What::Malformed(error.to_string()),
    };
    seen(Some(frame), what)
}

fn text(to: &mut impl Write, seen: &Seen<'_>) -> io::Result<()> {
    to.write_all(seen.time().as_bytes())?;
    if let Some(frame) = &seen.frame {
        write!(to, " {} > {}", frame.src, frame.dst)?;
    }
    let verdict = |ok| if ok { "icrc ok" } else { "icrc BAD" };
    match &seen.what {
        What::Packet { packet, icrc_ok } => writeln!(to, " {packet} {}", verdict(*icrc_ok)),
        What::Cnp { dest_qp, icrc_ok } => writeln!(to, " CNP qp {dest_qp} {}", verdict(*icrc_ok)),
        What::Malformed(reason) => writeln!(to, " malformed (frame {}): {reason}", seen.number),
    }
}

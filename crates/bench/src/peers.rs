//! `mitra bench peers`: measures Mitra beside other ways to move data between two processes of one
//! host: UCX, libfabric and plain sockets.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use mitra_softnic::Links;

use super::programs::measure::{POSIX, Quantity, Source, TCP, UDP};
use super::programs::program_pair::is_installed;
use super::report::{Blocks, Machine, Report};
use super::{RunFailed, progress};

/// Mitra beside UCX, libfabric and plain sockets, in one run
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench peers
  mitra bench peers --only latency --blocks 1
Needs Debian's perftest, ucx-utils, libfabric-bin and qperf; a peer that is not installed is left out with a note. Each
block runs two processes on loopback, and the blocks of all peers alternate. Rows: PEER/latency/8, PEER/latency/4096,
PEER/bandwidth/65536, PEER/bandwidth/1048576, and PEER/atomics/8 with 16 outstanding. Latencies are half of a round trip.
A ratio is to mitra-shm in the same rounds. docs/benchmarks.md says what each peer sends, and describes the fields of
--json.
Exit codes: 0 success, 1 a program failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Blocks per row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Iterations of a latency test; a bandwidth test takes a tenth. A test of qperf takes a second
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    iters: u64,
    /// Run only the rows whose name contains this text [default: all rows]
    #[arg(long, default_value = "", hide_default_value = true)]
    only: String,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

struct Peer {
    name: &'static str,
    /// Mitra's links. Other peers have their own transports.
    links: Links,
    latency: Source,
    bandwidth: Source,
    atomics: Option<Source>,
}

const fn mitra(name: &'static str, links: Links) -> Peer {
    Peer {
        name,
        links,
        latency: Source::Bench("write"),
        bandwidth: Source::Bench("write"),
        atomics: Some(Source::Perftest("ib_atomic_bw")),
    }
}

const fn ucx(name: &'static str, transport: &'static str) -> Peer {
    Peer {
        latency: Source::Ucx(transport, "ucp_put_lat"),
        bandwidth: Source::Ucx(transport, "ucp_put_bw"),
        atomics: Some(Source::Ucx(transport, "ucp_fadd")),
        ..messages(name, Source::Ucx(transport, "tag_lat"))
    }
}

/// A peer that only sends messages.
const fn messages(name: &'static str, source: Source) -> Peer {
    Peer { name, links: Links::Auto, latency: source, bandwidth: source, atomics: None }
}

/// The first peer is the baseline of the others.
const PEERS: [Peer; 9] = [
    mitra("mitra-shm", Links::SharedMemory),
    mitra("mitra-udp", Links::Udp),
    ucx("ucx-posix", POSIX),
    ucx("ucx-tcp", TCP),
    messages("libfabric-shm", Source::Libfabric("shm")),
    messages("libfabric-tcp", Source::Libfabric("tcp;ofi_rxm")),
    messages("libfabric-udp", Source::Libfabric("udp;ofi_rxd")),
    messages("qperf-tcp", Source::Qperf(TCP)),
    messages("qperf-udp", Source::Qperf(UDP)),
];

const COLUMNS: [(&str, Quantity, usize); 5] = [
    ("latency", Quantity::Latency, 8),
    ("latency", Quantity::Latency, 4096),
    ("bandwidth", Quantity::Bandwidth, 65536),
    ("bandwidth", Quantity::Bandwidth, 1 << 20),
    ("atomics", Quantity::Rate, 8),
];

impl Peer {
    /// Returns the program that measures this for the peer. `None` if the peer cannot do it.
    fn source(&self, quantity: Quantity, size: usize) -> Option<Source> {
        match quantity {
            Quantity::Latency => Some(self.latency),
            // No datagram has a MiB.
            Quantity::Bandwidth if matches!(self.bandwidth, Source::Qperf(UDP)) && size > 65536 => None,
            Quantity::Bandwidth => Some(self.bandwidth),
            Quantity::Rate => self.atomics,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let mut notes = machine.warnings();
    let mut columns = Vec::new();
    let mut missing = Vec::new();
    for (what, quantity, size) in COLUMNS {
        let mut variants: Vec<(String, Source, Links)> = Vec::new();
        for peer in &PEERS {
            let name = format!("{}/{what}/{size}", peer.name);
            let Some(source) = peer.source(quantity, size).filter(|_| name.contains(&args.only)) else {
                continue;
            };
            match source.program().filter(|program| !is_installed(program)) {
                Some(program) => missing.push((name, program)),
                None => variants.push((name, source, peer.links)),
            }
        }
        columns.push((quantity, size, variants));
    }
    notes.extend(missing.iter().map(|(name, program)| format!("{name} is left out: install {program}")));
    let count: usize = columns.iter().map(|(_, _, variants)| variants.len()).sum();
    ensure!(count > 0, "no installed peer has a row whose name contains {:?}", args.only);

    let bar = progress(count as u64 * u64::from(args.blocks));
    let mut rows = Vec::new();
    for (quantity, size, variants) in columns {
        let mut results = vec![Blocks::default(); variants.len()];
        for round in 0..args.blocks as usize {
            for at in 0..variants.len() {
                // The first peer rotates, so that each one begins equally often.
                let at = (at + round) % variants.len();
                let (name, source, links) = &variants[at];
                bar.set_message(name.clone());
                let measured = source.measure(quantity, size, args.iters, *links);
                let (median, p99) = measured.with_context(|| name.clone()).context(RunFailed)?;
                results[at].push(median, p99);
                bar.inc(1);
            }
        }
        let baseline = variants.first().filter(|(name, ..)| name.starts_with(PEERS[0].name));
        for ((name, ..), blocks) in variants.iter().zip(&results) {
            let row = blocks.row(name.clone(), quantity.unit());
            rows.push(match baseline {
                Some((first, ..)) if first != name => row.with_baseline(blocks, first.clone(), &results[0]),
                _ => row,
            });
        }
    }
    bar.finish_and_clear();
    notes.push(
        "Latencies are half of a round trip. A ratio above 1 is a higher value than that of mitra-shm."
            .into(),
    );
    notes.push("qperf's ends sleep while they wait, all others poll. libfabric's bandwidth is that of one message at a time.".into());
    let settings = serde_json::json!({ "iters": args.iters, "blocks": args.blocks });
    Report { name: "peers", unit: "us", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

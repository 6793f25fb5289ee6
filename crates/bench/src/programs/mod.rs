//! `mitra bench programs`: measures libibverbs programs under `mitra run`. The baselines are the
//! same operations of `mitra bench`, and UCX over TCP. Through shared memory, UCX over its own
//! shared memory is measured, too.

pub(crate) mod measure;
pub(crate) mod program_pair;

use std::process::ExitCode;

use anyhow::{Context, ensure};

use mitra_softnic::Links;

use self::measure::{POSIX, Quantity, RC, Source, TCP};
use super::progress;
use super::report::{Blocks, Machine, Report};

/// Programs of perftest and UCX under `mitra run`, beside `mitra bench` and UCX over TCP
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench programs
  mitra bench programs --only ib_send_lat --links shm
Needs Debian's perftest and ucx-utils. Each program runs as two processes, alternating with its baseline; a row's ratio
is the median over the rounds. Latencies are half of a round trip. Rows: ib_send_lat/8, ucx_tag_lat/8, and so on; with
--links shm also ucx_posix/8, UCX over its own shared memory.
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a program failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Blocks per program
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Iterations of a latency test; a bandwidth test takes a tenth
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    iters: u64,
    /// Run only the rows whose name contains this text [default: all rows]
    #[arg(long, default_value = "", hide_default_value = true)]
    only: String,
    /// How packets reach the other process: through shared memory (shm), over UDP (udp), or as the
    /// NICs choose (auto)
    #[arg(long, alias = "rails", default_value_t, value_name = "KIND")]
    links: Links,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

struct Case {
    name: &'static str,
    quantity: Quantity,
    /// Bytes of a message.
    size: usize,
    program: Source,
    baseline: Source,
}

/// UCX over its own shared memory.
const UCX_POSIX: Case = Case {
    name: "ucx_posix/8",
    quantity: Quantity::Latency,
    size: 8,
    program: Source::Ucx(POSIX, "ucp_put_lat"),
    baseline: Source::Bench("write"),
};

const CASES: [Case; 8] = [
    Case {
        name: "ib_send_lat/8",
        quantity: Quantity::Latency,
        size: 8,
        program: Source::Perftest("ib_send_lat"),
        baseline: Source::Bench("send"),
    },
    Case {
        name: "ib_read_lat/8",
        quantity: Quantity::Latency,
        size: 8,
        program: Source::Perftest("ib_read_lat"),
        baseline: Source::Bench("read"),
    },
    Case {
        name: "ib_atomic_lat/8",
        quantity: Quantity::Latency,
        size: 8,
        program: Source::Perftest("ib_atomic_lat"),
        baseline: Source::Bench("faa"),
    },
    Case {
        name: "ib_write_lat/8",
        quantity: Quantity::Latency,
        size: 8,
        program: Source::Perftest("ib_write_lat"),
        baseline: Source::Bench("write"),
    },
    Case {
        name: "ib_write_bw/65536",
        quantity: Quantity::Bandwidth,
        size: 65536,
        program: Source::Perftest("ib_write_bw"),
        baseline: Source::Bench("write"),
    },
    Case {
        name: "ucx_tag_lat/8",
        quantity: Quantity::Latency,
        size: 8,
        program: Source::Ucx(RC, "tag_lat"),
        baseline: Source::Ucx(TCP, "tag_lat"),
    },
    Case {
        name: "ucx_ucp_fadd/8",
        quantity: Quantity::Latency,
        size: 8,
        program: Source::Ucx(RC, "ucp_fadd"),
        baseline: Source::Ucx(TCP, "ucp_fadd"),
    },
    Case {
        name: "ucx_ucp_put_bw/65536",
        quantity: Quantity::Bandwidth,
        size: 65536,
        program: Source::Ucx(RC, "ucp_put_bw"),
        baseline: Source::Ucx(TCP, "ucp_put_bw"),
    },
];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let neighbour = Some(&UCX_POSIX).filter(|_| args.links == Links::SharedMemory);
    let cases = CASES.iter().chain(neighbour);
    let cases: Vec<&Case> = cases.filter(|case| case.name.contains(&args.only)).collect();
    ensure!(!cases.is_empty(), "no row name contains {:?}", args.only);
    let bar = progress(cases.len() as u64 * u64::from(args.blocks) * 2);
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.name);
        let (mut program, mut baseline) = (Blocks::default(), Blocks::default());
        for round in 0..args.blocks {
            // The program and its baseline take turns to be first, so that each begins equally
            // often.
            let mut pair = [(case.program, &mut program), (case.baseline, &mut baseline)];
            if round % 2 == 1 {
                pair.reverse();
            }
            for (source, blocks) in pair {
                let (median, p99) = source
                    .measure(case.quantity, case.size, args.iters, args.links)
                    .with_context(|| case.name.to_owned())?;
                blocks.push(median, p99);
                bar.inc(1);
            }
        }
        let row = program.row(case.name.to_owned(), case.quantity.unit());
        rows.push(row.with_baseline(&program, case.baseline.name(case.quantity, case.size), &baseline));
    }
    bar.finish_and_clear();
    let mut notes = machine.warnings();
    notes.push(
        "Latencies are half of a round trip. A ratio above 1 means a higher latency or a higher bandwidth than the baseline."
            .into(),
    );
    let settings =
        serde_json::json!({ "iters": args.iters, "blocks": args.blocks, "links": args.links.to_string() });
    Report { name: "programs", unit: "us", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

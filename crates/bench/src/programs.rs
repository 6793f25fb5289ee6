//! `mitra bench programs`: measures libibverbs programs under `mitra run`. The baselines are the
//! same operations of `mitra bench`, and UCX over TCP. Through shared memory, UCX over its own
//! shared memory is measured, too.

use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use mitra_softnic::Links;

use super::progress;
use super::report::{Blocks, Machine, Report};

/// Programs of perftest and UCX under `mitra run`, beside `mitra bench` and UCX over TCP
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Needs Debian's perftest and ucx-utils. Each program runs as two processes, alternating with its baseline; a row's ratio
is the median over the rounds. Latencies are half of a round trip. Rows: ib_send_lat/8, ucx_tag_lat/8, and so on; with
--rails shm also ucx_posix/8, UCX over its own shared memory.
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a program failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Blocks per program
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Iterations of a latency test; a bandwidth test takes a tenth
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    iters: u64,
    /// Run only the rows whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// How packets reach the other process: through shared memory (shm), over UDP (udp), or as the
    /// NICs choose (auto)
    #[arg(long, default_value_t, value_name = "KIND")]
    rails: Links,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The time after which a program is considered to hang.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(120);

struct Case {
    name: &'static str,
    unit: &'static str,
    program: Measure,
    baseline: Measure,
}

#[derive(Clone, Copy)]
enum Measure {
    /// A row of another benchmark: its subcommand, operation and message size.
    Bench(&'static str, &'static str, &'static str),
    /// A latency program of perftest, and the factor that turns its figure into one-way latency.
    Latency(&'static str, f64),
    /// A bandwidth program of perftest.
    Bandwidth(&'static str),
    /// A latency test of UCX: the transports, and the name of the test.
    UcxLatency(&'static str, &'static str),
    /// A bandwidth test of UCX: the transports, and the name of the test.
    UcxBandwidth(&'static str, &'static str),
}

/// UCX over Mitra's RC queue pairs. UCX adds UD for the connection set-up.
const RC: &str = "rc_v";
const TCP: &str = "tcp";
/// UCX over its own shared memory.
const POSIX: &str = "posix";

/// UCX writes into the memory of the peer, without a NIC.
const UCX_POSIX: Case = Case {
    name: "ucx_posix/8",
    unit: "us",
    program: Measure::UcxLatency(POSIX, "ucp_put_lat"),
    baseline: Measure::Bench("latency", "write", "8"),
};

const CASES: [Case; 8] = [
    Case {
        name: "ib_send_lat/8",
        unit: "us",
        program: Measure::Latency("ib_send_lat", 1.0),
        baseline: Measure::Bench("latency", "send", "8"),
    },
    // perftest reports a full round trip for READ and atomics, and half of a round trip for SEND
    // and WRITE.
    Case {
        name: "ib_read_lat/8",
        unit: "us",
        program: Measure::Latency("ib_read_lat", 0.5),
        baseline: Measure::Bench("latency", "read", "8"),
    },
    Case {
        name: "ib_atomic_lat/8",
        unit: "us",
        program: Measure::Latency("ib_atomic_lat", 0.5),
        baseline: Measure::Bench("latency", "faa", "8"),
    },
    Case {
        name: "ib_write_lat/8",
        unit: "us",
        program: Measure::Latency("ib_write_lat", 1.0),
        baseline: Measure::Bench("latency", "write", "8"),
    },
    Case {
        name: "ib_write_bw/65536",
        unit: "GB/s",
        program: Measure::Bandwidth("ib_write_bw"),
        baseline: Measure::Bench("bandwidth", "write", "65536"),
    },
    Case {
        name: "ucx_tag_lat/8",
        unit: "us",
        program: Measure::UcxLatency(RC, "tag_lat"),
        baseline: Measure::UcxLatency(TCP, "tag_lat"),
    },
    Case {
        name: "ucx_ucp_fadd/8",
        unit: "us",
        program: Measure::UcxLatency(RC, "ucp_fadd"),
        baseline: Measure::UcxLatency(TCP, "ucp_fadd"),
    },
    Case {
        name: "ucx_ucp_put_bw/65536",
        unit: "GB/s",
        program: Measure::UcxBandwidth(RC, "ucp_put_bw"),
        baseline: Measure::UcxBandwidth(TCP, "ucp_put_bw"),
    },
];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let neighbour = Some(&UCX_POSIX).filter(|_| args.rails == Links::SharedMemory);
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
            for (measure, blocks) in pair {
                let (median, p99) =
                    measure.run(args.iters, args.rails).with_context(|| case.name.to_owned())?;
                blocks.push(median, p99);
                bar.inc(1);
            }
        }
        let row = program.row(case.name.to_owned(), case.unit);
        rows.push(row.with_baseline(&program, case.baseline.name(), &baseline));
    }
    bar.finish_and_clear();
    let mut notes = machine.warnings();
    notes.push(
        "Latencies are half of a round trip. A ratio above 1 means a higher latency or a higher bandwidth than the baseline."
            .into(),
    );
    let settings =
        serde_json::json!({ "iters": args.iters, "blocks": args.blocks, "links": args.rails.to_string() });
    Report { name: "programs", unit: "us", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

impl Measure {
    fn name(self) -> String {
        match self {
            Measure::Bench(_, op, size) => format!("{op}/{size}/qp"),
            Measure::Latency(program, _) | Measure::Bandwidth(program) => program.to_owned(),
            Measure::UcxLatency(transport, test) | Measure::UcxBandwidth(transport, test) => {
                format!("{transport}/{test}")
            }
        }
    }

    /// Returns the median and the 99th percentile of a latency, or the mean bandwidth twice.
    fn run(self, iters: u64, links: Links) -> anyhow::Result<(f64, f64)> {
        let (lat, bw) = (iters.to_string(), (iters / 10).to_string());
        match self {
            Measure::Bench(bench, op, size) => {
                let n = if bench == "latency" { lat } else { bw };
                let args =
                    ["bench", bench, "--json", "--only", "qp", "--op", op, "--size", size, "--blocks", "1"];
                let links = links.to_string();
                let output = mitra().args(args).args(["--iters", &n, "--rails", &links]).output()?;
                ensure!(output.status.success(), "mitra bench {bench}: {}", output.status);
                let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
                let of = |field: &str| {
                    report["rows"][0][field].as_f64().context("the report of `mitra bench` lacks a value")
                };
                Ok((of("median")?, of("p99")?))
            }
            Measure::Latency(program, part) => {
                let figures = perftest(links, &[program, "-F", "-s", "8", "-n", &lat])?;
                // perftest columns: #bytes #iterations t_min t_max t_typical t_avg t_stdev 99%
                // 99.9%
                let [_, _, _, _, typical, _, _, p99, ..] = figures[..] else { bail!("{figures:?}") };
                Ok((typical * part, p99 * part))
            }
            Measure::Bandwidth(program) => {
                let figures = perftest(links, &[program, "-F", "-s", "65536", "-n", &bw])?;
                // perftest columns: #bytes #iterations peak average message-rate; rates in 2^20
                // bytes per second
                let [_, _, _, average, ..] = figures[..] else { bail!("{figures:?}") };
                let rate = average * f64::from(1 << 20) / 1e9;
                Ok((rate, rate))
            }
            Measure::UcxLatency(transport, test) => {
                // UCX columns: iterations, median latency, average latency, ... A latency is half
                // of a round trip. The latency of fadd is a full round trip.
                let figures = ucx(links, transport, test, "8", &lat)?;
                let half = if test.contains("fadd") { 0.5 } else { 1.0 };
                let [_, median, average, ..] = figures[..] else { bail!("{figures:?}") };
                Ok((median * half, average * half))
            }
            Measure::UcxBandwidth(transport, test) => {
                let figures = ucx(links, transport, test, "65536", &bw)?;
                let [_, _, _, _, _, overall, ..] = figures[..] else { bail!("{figures:?}") };
                let rate = overall * f64::from(1 << 20) / 1e9;
                Ok((rate, rate))
            }
        }
    }
}

fn mitra() -> Command {
    Command::new(std::env::current_exe().unwrap_or_else(|_| "mitra".into()))
}

fn under_mitra(links: Links) -> Command {
    let mut command = mitra();
    command.args(["run", "--links", &links.to_string(), "--"]);
    command
}

/// Runs a perftest program and returns the figures in the last line of its output.
fn perftest(links: Links, words: &[&str]) -> anyhow::Result<Vec<f64>> {
    let port = free_port()?.to_string();
    let start = |host: Option<&str>| {
        let mut command = under_mitra(links);
        command.args(words).args(["-p", &port]).args(host);
        command
    };
    let printed = run_pair(start(None), start(Some("127.0.0.1")), &port)?;
    figures(&printed, char::is_whitespace)
}

fn ucx(links: Links, transport: &str, test: &str, size: &str, iters: &str) -> anyhow::Result<Vec<f64>> {
    let port = free_port()?.to_string();
    let start = |host: Option<&str>| {
        let (mut command, device) = match transport {
            TCP => (Command::new("env"), "lo"),
            POSIX => (Command::new("env"), "all"),
            _ => (under_mitra(links), "mitra0:1"),
        };
        command.env("UCX_TLS", transport).env("UCX_NET_DEVICES", device);
        command
            .args(["ucx_perftest", "-f", "-v", "-t", test, "-s", size, "-n", iters, "-p", &port])
            .args(host);
        command
    };
    let printed = run_pair(start(None), start(Some("127.0.0.1")), &port)?;
    figures(&printed, |c| c == ',')
}

/// Returns the numbers of the last line that consists of more than three numbers.
fn figures(printed: &str, separator: impl Fn(char) -> bool) -> anyhow::Result<Vec<f64>> {
    let line = |line: &str| -> Option<Vec<f64>> {
        let words = line.trim().split(&separator).filter(|word| !word.is_empty());
        words.map(|word| word.parse().ok()).collect()
    };
    let found = printed.lines().rev().filter_map(line).find(|figures: &Vec<f64>| figures.len() > 3);
    found.with_context(|| format!("no figures in the output of the program:\n{printed}"))
}

/// Returns a TCP port that is free at the time of the call.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts a server, and a client as soon as the server listens. Returns the output of the client.
fn run_pair(mut server: Command, mut client: Command, port: &str) -> anyhow::Result<String> {
    let quiet = |command: &mut Command| -> anyhow::Result<Child> {
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))
    };
    let mut serving = quiet(&mut server)?;
    let until = Instant::now() + PROGRAM_TIMEOUT;
    let port: u16 = port.parse()?;
    while !is_listening(port) && serving.try_wait()?.is_none() && Instant::now() < until {
        sleep(Duration::from_millis(5));
    }
    let mut calling = quiet(&mut client)?;
    while calling.try_wait()?.is_none() {
        if Instant::now() > until {
            let _ = (calling.kill(), serving.kill()); // fails if the process has just ended
            bail!("{client:?} hangs");
        }
        sleep(Duration::from_millis(5));
    }
    let called = calling.wait_with_output()?;
    let _ = serving.kill(); // some servers wait for another client; the server's end is not measured
    serving.wait()?;
    ensure!(
        called.status.success(),
        "{client:?}: {}\n{}",
        called.status,
        String::from_utf8_lossy(&called.stderr)
    );
    Ok(String::from_utf8_lossy(&called.stdout).into_owned())
}

fn is_listening(port: u16) -> bool {
    // proc(5): columns sl, local_address, rem_address, st; state 0A is LISTEN.
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
                && columns.get(3) == Some(&"0A")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_the_last_line_of_numbers() {
        let perftest =
            " #bytes #iterations t_min\n 8  5000   3.43  150.12  4.17  4.80  4.28  17.96 80.07 \n------\n";
        assert_eq!(figures(perftest, char::is_whitespace).unwrap()[4], 4.17);
        let ucx = "iterations,50.0_percentile_lat\n1000,3.498,3.580,3.580,2.13,2.13,279332,279332\n";
        assert_eq!(figures(ucx, |c| c == ',').unwrap()[1], 3.498);
        assert!(figures("nothing here", char::is_whitespace).is_err());
    }
}

//! The sources of a figure: benchmarks of Mitra and foreign programs, and how to run them.

use std::process::Command;

use anyhow::{Context, bail, ensure};
use mitra_softnic::Links;

use super::program_pair::{free_port, run_pair};

/// The kind of a figure, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Half of a round trip, in µs.
    Latency,
    /// Payload in GB/s, 1 GB being 10^9 bytes.
    Bandwidth,
    /// Operations per µs.
    Rate,
}

impl Quantity {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Quantity::Latency => "us",
            Quantity::Bandwidth => "GB/s",
            Quantity::Rate => "op/us",
        }
    }
}

/// A benchmark of Mitra or a foreign program. Each runs as two processes on loopback.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The bare queue pair of `mitra bench`: the operation.
    Bench(&'static str),
    /// A program of perftest under `mitra run`.
    Perftest(&'static str),
    /// `ucx_perftest` over Mitra ([`RC`]) or over transports of UCX: the transports and the test.
    Ucx(&'static str, &'static str),
    /// `fi_pingpong` of libfabric: the provider. Its bandwidth is that of one message at a time.
    Libfabric(&'static str),
    /// `qperf`: [`TCP`] or [`UDP`]. Its ends sleep while they wait.
    Qperf(&'static str),
}

/// UCX over Mitra's RC queue pairs. UCX adds UD for the connection set-up.
pub(crate) const RC: &str = "rc_v";
pub(crate) const TCP: &str = "tcp";
pub(crate) const UDP: &str = "udp";
/// UCX over its own shared memory. UCX writes into the memory of the peer, without a NIC.
pub(crate) const POSIX: &str = "posix";

/// The message size of a bandwidth test that runs a tenth of the iterations of a latency test, in
/// bytes. With larger messages, a test runs fewer iterations.
const BANDWIDTH_SIZE: usize = 65536;
/// The longest datagram that `qperf` gets, in bytes, because UDP cannot carry 64 KiB.
const QPERF_DATAGRAM: usize = 63 << 10;

impl Source {
    pub(crate) fn name(self, quantity: Quantity, size: usize) -> String {
        match self {
            Source::Bench(op) => format!("{op}/{size}/qp"),
            Source::Perftest(program) => program.to_owned(),
            Source::Ucx(transport, test) => format!("{transport}/{test}"),
            Source::Libfabric(provider) => format!("fi_pingpong/{provider}"),
            Source::Qperf(protocol) => format!("qperf/{}", qperf_test(protocol, quantity)),
        }
    }

    /// Returns the program to install.
    pub(crate) fn program(self) -> Option<&'static str> {
        match self {
            Source::Bench(_) => None,
            Source::Perftest(program) => Some(program),
            Source::Ucx(..) => Some("ucx_perftest"),
            Source::Libfabric(_) => Some("fi_pingpong"),
            Source::Qperf(_) => Some("qperf"),
        }
    }

    /// Returns the median and the 99th percentile of a latency. A program that does not report a
    /// percentile gives its average instead, and everything else gives its only figure twice.
    pub(crate) fn measure(
        self,
        quantity: Quantity,
        size: usize,
        iters: u64,
        links: Links,
    ) -> anyhow::Result<(f64, f64)> {
        let count = match quantity {
            Quantity::Latency | Quantity::Rate => iters,
            Quantity::Bandwidth => {
                (iters / 10 * BANDWIDTH_SIZE as u64 / size.max(BANDWIDTH_SIZE) as u64).max(1)
            }
        };
        let (size_text, count) = (size.to_string(), count.to_string());
        match self {
            Source::Bench(op) => {
                ensure!(quantity != Quantity::Rate, "`mitra bench` measures no rate");
                let bench = if quantity == Quantity::Latency { "latency" } else { "bandwidth" };
                let args = [
                    "bench", bench, "--json", "--only", "qp", "--op", op, "--size", &size_text, "--blocks",
                    "1",
                ];
                let links = links.to_string();
                let output = mitra().args(args).args(["--iters", &count, "--links", &links]).output()?;
                ensure!(
                    output.status.success(),
                    "mitra bench {bench}: {}\n{}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                );
                let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
                let of = |field: &str| {
                    report["rows"][0][field].as_f64().context("the report of `mitra bench` lacks a value")
                };
                Ok((of("median")?, of("p99")?))
            }
            Source::Perftest(program) => {
                let words = [program, "-F", "-s", &size_text, "-n", &count];
                let figures = figures(&perftest(links, &words)?, char::is_whitespace)?;
                match (quantity, &figures[..]) {
                    // perftest columns: #bytes #iterations t_min t_max t_typical t_avg t_stdev 99%
                    // 99.9%. A latency of READ and atomics is a full round trip, and one of SEND
                    // and WRITE is half of one.
                    (Quantity::Latency, [_, _, _, _, typical, _, _, p99, ..]) => {
                        let is_round_trip = program.contains("read") || program.contains("atomic");
                        let part = if is_round_trip { 0.5 } else { 1.0 };
                        Ok((typical * part, p99 * part))
                    }
                    // perftest columns: #bytes #iterations peak average message-rate; rates in 2^20
                    // bytes per second, the message rate per µs.
                    (Quantity::Bandwidth, [_, _, _, average, ..]) => Ok(twice(average * MIB / 1e9)),
                    (Quantity::Rate, [_, _, _, _, rate]) => Ok(twice(*rate)),
                    _ => bail!("{program} printed {figures:?}"),
                }
            }
            Source::Ucx(transport, test) => {
                let outstanding = if quantity == Quantity::Rate { "16" } else { "0" };
                let words = ["-t", test, "-s", &size_text, "-n", &count, "-O", outstanding];
                let figures = figures(&ucx(links, transport, &words)?, |c| c == ',')?;
                // UCX columns: iterations, median, average and overall latency, average and overall
                // bandwidth, average and overall message rate. A latency is half of a round trip,
                // except that of fadd.
                let [_, median, average, _, _, overall, _, rate] = figures[..] else {
                    bail!("ucx_perftest printed {figures:?}")
                };
                let half = if test.contains("fadd") { 0.5 } else { 1.0 };
                Ok(match quantity {
                    Quantity::Latency => (median * half, average * half),
                    Quantity::Bandwidth => twice(overall * MIB / 1e9),
                    Quantity::Rate => twice(rate / 1e6),
                })
            }
            Source::Libfabric(provider) => {
                let printed = libfabric(&["-p", provider, "-e", "rdm", "-S", &size_text, "-I", &count])?;
                let micros = micros_per_transfer(&printed)?;
                Ok(match quantity {
                    Quantity::Latency => twice(micros),
                    Quantity::Bandwidth => twice(size as f64 / micros / 1e3),
                    Quantity::Rate => bail!("fi_pingpong measures no atomics"),
                })
            }
            Source::Qperf(protocol) => {
                let test = qperf_test(protocol, quantity);
                let size = if test == "udp_bw" { size.min(QPERF_DATAGRAM) } else { size };
                let printed = qperf(&["-t", "1", "-uu", "-m", &size.to_string(), test])?;
                Ok(match quantity {
                    Quantity::Latency => twice(qperf_figure(&printed, "latency", "ns")? / 1e3),
                    // The sender of datagrams does not know how many arrive.
                    Quantity::Bandwidth => {
                        let key = if test == "udp_bw" { "recv_bw" } else { "bw" };
                        twice(qperf_figure(&printed, key, "bytes/sec")? / 1e9)
                    }
                    Quantity::Rate => bail!("qperf measures no atomics over {protocol}"),
                })
            }
        }
    }
}

const MIB: f64 = (1 << 20) as f64;

fn twice(figure: f64) -> (f64, f64) {
    (figure, figure)
}

fn qperf_test(protocol: &str, quantity: Quantity) -> &'static str {
    match (protocol, quantity) {
        (TCP, Quantity::Latency) => "tcp_lat",
        (TCP, _) => "tcp_bw",
        (_, Quantity::Latency) => "udp_lat",
        _ => "udp_bw",
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

/// Runs a perftest program. Returns what the client printed.
fn perftest(links: Links, words: &[&str]) -> anyhow::Result<String> {
    let port = free_port()?.to_string();
    let start = |host: Option<&str>| {
        let mut command = under_mitra(links);
        command.args(words).args(["-p", &port]).args(host);
        command
    };
    run_pair(start(None), start(Some("127.0.0.1")), &port)
}

/// Runs `ucx_perftest`. Returns what the client printed.
fn ucx(links: Links, transport: &str, words: &[&str]) -> anyhow::Result<String> {
    let port = free_port()?.to_string();
    let start = |host: Option<&str>| {
        let (mut command, device) = match transport {
            TCP => (Command::new("env"), "lo"),
            POSIX => (Command::new("env"), "all"),
            _ => (under_mitra(links), "mitra0:1"),
        };
        command.env("UCX_TLS", transport).env("UCX_NET_DEVICES", device);
        command.args(["ucx_perftest", "-f", "-v", "-p", &port]).args(words).args(host);
        command
    };
    run_pair(start(None), start(Some("127.0.0.1")), &port)
}

/// Runs `fi_pingpong`. Returns what the client printed.
fn libfabric(words: &[&str]) -> anyhow::Result<String> {
    let port = free_port()?.to_string();
    let (mut server, mut client) = (Command::new("fi_pingpong"), Command::new("fi_pingpong"));
    server.args(words).args(["-B", &port]);
    client.args(words).args(["-P", &port, "127.0.0.1"]);
    run_pair(server, client, &port)
}

/// Runs `qperf`. Returns what the client printed.
fn qperf(words: &[&str]) -> anyhow::Result<String> {
    let port = free_port()?.to_string();
    let (mut server, mut client) = (Command::new("qperf"), Command::new("qperf"));
    server.args(["-lp", &port]);
    client.args(["127.0.0.1", "-lp", &port]).args(words);
    run_pair(server, client, &port)
}

/// Returns the numbers of the last line that consists of more than three numbers.
fn figures(printed: &str, separator: impl Fn(char) -> bool) -> anyhow::Result<Vec<f64>> {
    let line = |line: &str| -> Option<Vec<f64>> {
        let words = line.trim().split(&separator).filter(|word| !word.is_empty());
        words.map(|word| word.parse().ok()).collect()
    };
    let found = printed.lines().rev().filter_map(line).find(|figures: &Vec<f64>| figures.len() > 3);
    found.with_context(|| no_figures(printed))
}

/// Returns the column `usec/xfer` of `fi_pingpong`, the last but one. Others have units.
fn micros_per_transfer(printed: &str) -> anyhow::Result<f64> {
    let last = printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let micros = last.split_whitespace().nth_back(1).and_then(|word| word.parse().ok());
    micros.with_context(|| no_figures(printed))
}

/// Returns the figure of a line such as `latency  =  18255 ns`.
fn qperf_figure(printed: &str, key: &str, unit: &str) -> anyhow::Result<f64> {
    let value = |line: &str| -> Option<f64> {
        let (name, value) = line.split_once('=')?;
        let number = value.trim().strip_suffix(unit)?.trim();
        (name.trim() == key).then(|| number.parse().ok())?
    };
    printed.lines().find_map(value).with_context(|| no_figures(printed))
}

fn no_figures(printed: &str) -> String {
    format!("no figures in the output of the program:\n{printed}")
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

    #[test]
    fn figures_with_units_are_found() {
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      8       2k      =2k      31k         1.65s      0.02     412.53       0.00\n";
        assert_eq!(micros_per_transfer(fabric).unwrap(), 412.53);
        assert!(micros_per_transfer("fi_getinfo(): No data available").is_err());
        let qperf = "udp_bw:\n    send_bw  =  3747154708 bytes/sec\n    recv_bw  =  1406619648 bytes/sec\n";
        assert_eq!(qperf_figure(qperf, "recv_bw", "bytes/sec").unwrap(), 1_406_619_648.0);
        assert!(qperf_figure(qperf, "bw", "bytes/sec").is_err());
        assert!(qperf_figure(qperf, "recv_bw", "ns").is_err());
    }
}

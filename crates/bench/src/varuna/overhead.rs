//! `overhead/OP/SIZE/EVIDENCE`: the latency and the throughput of a vQP without failures, beside
//! the bare queue pair.

use super::Args;
use crate::bench_qp::Op;
use crate::block_exchange::{Setup, end_blocks};
use crate::endpoint::{Endpoint, Variant};
use crate::interleave::interleave_blocks;
use crate::report::{Blocks, Row};
use crate::{PEER_ROLE, Task, bandwidth, latency, progress};
use mitra_peer_process::PeerProcess;

/// The compared variants, and their names in the rows.
const VARIANTS: [(Variant, &str); 6] = [
    (Variant::Qp, "qp"),
    (Variant::Aa, "aa"),
    (Variant::VqpNone, "none"),
    (Variant::Vqp, "psn"),
    (Variant::VqpLog, "log"),
    (Variant::VqpLog4, "log4"),
];
/// The number of WRITEs or SENDs for which the bench requests one completion.
const SIGNAL_EVERY: u64 = 16;
/// The outstanding messages of a block that measures throughput.
const WINDOW: u32 = 16;
/// The payload bytes of a block that measures throughput.
const RATE_BYTES: u64 = 64 << 20;
/// The lowest and the highest number of messages of a block that measures throughput.
const RATE_MESSAGES: (u64, u64) = (64, 8000);

pub(super) fn run(args: &Args, notes: &mut Vec<String>) -> anyhow::Result<Vec<Row>> {
    let mut rows = latencies(args)?;
    rows.extend(rates(args)?);
    notes.push(
        "overhead: evidence `none` is a vQP with policy none, `psn` one with policy exact, `log` one with a completion log \
         too, `log4` one whose log has an entry for every fourth WRITE. A latency is half of a round trip. A rate keeps 16 messages outstanding; a ratio below 1 is the overhead. aa \
         is a second bare queue pair."
            .to_owned(),
    );
    Ok(rows)
}

fn latencies(args: &Args) -> anyhow::Result<Vec<Row>> {
    let half = args.size.iter().copied().max().unwrap_or(8);
    let [local, remote] = args.common.placements();
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Latency(Setup { placement: remote, half }))?;
    let mut endpoint = Endpoint::open(&local, half, &mut peer.connection)?;
    let mut cases = Vec::new();
    for op in Op::ALL {
        let sizes: &[usize] = if op == Op::Faa { &[8] } else { &args.size };
        cases.extend(sizes.iter().map(|&len| (op, len)));
    }
    let bar = progress((cases.len() * VARIANTS.len()) as u64 * u64::from(args.blocks));
    let mut blocks = latency::Measurement::new(args.iters, SIGNAL_EVERY);
    let mut rows = Vec::new();
    for (op, len) in cases {
        bar.set_message(format!("{} of {len} bytes", op.name()));
        let results = interleave_blocks(&VARIANTS.map(|(variant, _)| variant), args.blocks, |variant| {
            let measured = blocks.measure(&mut endpoint, &mut peer, variant, op, len)?;
            bar.inc(1);
            Ok(measured)
        })?;
        rows.extend(case_rows(op, len, "", "us", &results));
    }
    bar.finish_and_clear();
    end_blocks(&mut peer)?;
    peer.wait()?;
    Ok(rows)
}

fn rates(args: &Args) -> anyhow::Result<Vec<Row>> {
    let half = args.size.iter().copied().max().unwrap_or(8) * WINDOW as usize;
    let [local, remote] = args.common.placements();
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Bandwidth(Setup { placement: remote, half }))?;
    let mut endpoint = Endpoint::open(&local, half, &mut peer.connection)?;
    let mut blocks = bandwidth::Measurement::new(WINDOW, endpoint.mtu()?);
    let ops = [Op::Write, Op::Read];
    let bar = progress((ops.len() * args.size.len() * VARIANTS.len()) as u64 * u64::from(args.blocks));
    let mut rows = Vec::new();
    for op in ops {
        for &len in &args.size {
            bar.set_message(format!("rate of {} of {len} bytes", op.name()));
            let messages = (RATE_BYTES / len as u64).clamp(RATE_MESSAGES.0, RATE_MESSAGES.1);
            let results = interleave_blocks(&VARIANTS.map(|(variant, _)| variant), args.blocks, |variant| {
                let rate = blocks.measure(&mut endpoint, &mut peer, variant, op, len, messages)?;
                bar.inc(1);
                let per_second = rate * 1e9 / len as f64;
                Ok((per_second, per_second))
            })?;
            rows.extend(case_rows(op, len, "/rate", "op/s", &results));
        }
    }
    bar.finish_and_clear();
    end_blocks(&mut peer)?;
    peer.wait()?;
    Ok(rows)
}

/// Returns the rows of one operation and size, one per variant. The baseline of each row is the
/// bare queue pair.
fn case_rows(op: Op, len: usize, measure: &str, unit: &'static str, results: &[Blocks]) -> Vec<Row> {
    let name = |variant: &str| format!("overhead/{}/{len}/{variant}{measure}", op.name());
    let [bare, aa, ..] = results else { return Vec::new() };
    let aa_ratio = aa.ratio_to(bare);
    let row = |((_, variant), blocks): (&(Variant, &str), &Blocks)| {
        let row = blocks.row(name(variant), unit);
        match *variant {
            "qp" => row,
            "aa" => row.with_baseline(blocks, name("qp"), bare),
            _ => Row { aa_ratio: Some(aa_ratio), ..row.with_baseline(blocks, name("qp"), bare) },
        }
    };
    VARIANTS.iter().zip(results).map(row).collect()
}

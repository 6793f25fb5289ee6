//! `mitra txn check`: checks a store at rest.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;

use mitra_txn::{Findings, Inspection, Layout, RecordKey, Verdict};
use mitra_txn_rdma::{Links, inspect};
use mitra_txn_workloads::tpcc::{self, Report};
use serde_json::{Map, Value, json};

use super::store::{StoreArgs, Workload, connect};
use crate::cli::cluster::ClusterArgs;
use crate::cli::write_json;

/// The most violations of TPC-C's conditions that are printed.
const FIRST: usize = 20;
/// The exit code for a store with locks of coordinators that were not recovered.
const NOT_RECOVERED: u8 = 3;

/// Read all tables of a store, and report held locks, torn records, copies that differ, and a wrong
/// index
///
/// No transaction may run meanwhile, because what it changes may be found torn or different. For
/// tpcc, the twelve consistency conditions of the specification are checked too.
///
/// If the program that ran transactions was killed, the store has its locks, and is not recovered.
/// `mitra txn local` with the same options completes or undoes what the program has left. The index
/// and the consistency conditions can be judged after that.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  mitra txn check --nodes 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
--json: `is_clean`; `is_recovered` (false: exit code 3); `records` (number by table); `held_locks`,
`unrecovered_locks` (of coordinators that have ended in the middle of transactions and are not recovered, or still run),
`torn`, `differing`, `index_errors`, `store_errors` (memory nodes that do not have the store), each with `count` and
`first` (up to 20, in words); `recovered_locks` (number of locks of recovered coordinators, which the next transaction
frees); tpcc: `consistency` (`c1` to `c12`: whether the condition holds) and `violations` (`count`, `first`).
Exit codes: 0 nothing is wrong, 1 the store is damaged, 2 bad arguments or input, 3 the store is not recovered.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Address of each memory node, from memory node 0
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',', required = true)]
    nodes: Vec<SocketAddr>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.store.links(args.store.checker(), &args.nodes, &args.cluster)?;
    let (domain, _faults) = args.cluster.open()?;
    let mut links = connect(|| Links::connect(&domain, &config))?;
    let found = Found::read(&args.store, &mut links, &args.store.layout()?)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        write_json(&mut out, &found.json())?
    } else {
        found.print(&mut out)?
    }
    out.flush()?;
    Ok(match found.verdict() {
        Verdict::Clean => ExitCode::SUCCESS,
        Verdict::Unrecovered => ExitCode::from(NOT_RECOVERED),
        Verdict::Damaged => ExitCode::FAILURE,
    })
}

/// The result of a check.
pub(super) struct Found {
    pub(super) records: BTreeMap<RecordKey, Vec<u8>>,
    inspection: Inspection,
    /// For tpcc.
    report: Option<Report>,
    tables: Vec<(String, u64)>,
}

impl Found {
    /// Reads a store at rest.
    pub(super) fn read(store: &StoreArgs, links: &mut Links, layout: &Rc<Layout>) -> anyhow::Result<Found> {
        let (inspection, records) = inspect(links, layout)?;
        let report = match store.workload {
            Workload::Tpcc => Some(tpcc::check(&records, &store.scale()?)),
            Workload::Smallbank => None,
        };
        let number = |(name, table): (String, mitra_txn::TableId)| {
            (name, inspection.records.get(usize::from(table.0)).copied().unwrap_or_default())
        };
        let tables = store.table_names().into_iter().map(number).collect();
        Ok(Found { records, inspection, report, tables })
    }

    pub(super) fn is_clean(&self) -> bool {
        self.verdict() == Verdict::Clean
    }

    fn verdict(&self) -> Verdict {
        match self.inspection.verdict() {
            // A transaction that is not recovered may be half applied, so that conditions are
            // violated.
            Verdict::Clean if !self.report.as_ref().is_none_or(Report::is_consistent) => Verdict::Damaged,
            verdict => verdict,
        }
    }

    /// Returns the kinds of findings: the name in JSON, what they are in words, and the findings.
    fn findings(&self) -> [(&'static str, &'static str, FindingsInWords); 6] {
        let Inspection { held_locks, unrecovered_locks, torn, differing, index_errors, store_errors, .. } =
            &self.inspection;
        [
            ("held_locks", "held locks", in_words(held_locks)),
            (
                "unrecovered_locks",
                "locks of coordinators that are not recovered",
                in_words(unrecovered_locks),
            ),
            ("torn", "torn records", in_words(torn)),
            ("differing", "copies that differ from the primary", in_words(differing)),
            ("index_errors", "index errors", in_words(index_errors)),
            ("store_errors", "memory nodes without the store", in_words(store_errors)),
        ]
    }

    pub(super) fn json(&self) -> Value {
        let tables: Map<_, _> =
            self.tables.iter().map(|(name, records)| (name.clone(), json!(records))).collect();
        let mut object = json!({
            "is_clean": self.is_clean(),
            "records": tables,
            "is_recovered": self.verdict() != Verdict::Unrecovered,
            "recovered_locks": self.inspection.recovered_locks,
        });
        for (name, _, FindingsInWords { count, first }) in self.findings() {
            object[name] = json!({"count": count, "first": first});
        }
        if let Some(report) = &self.report {
            let conditions = (1..).zip(report.conditions());
            let conditions: Map<_, _> =
                conditions.map(|(number, holds)| (format!("c{number}"), json!(holds))).collect();
            let first: Vec<_> = report.violations.iter().take(FIRST).map(ToString::to_string).collect();
            object["consistency"] = conditions.into();
            object["violations"] = json!({"count": report.violations.len(), "first": first});
        }
        object
    }

    pub(super) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for (name, records) in &self.tables {
            writeln!(out, "{name}: {records} records")?;
        }
        for (_, what, FindingsInWords { count, first }) in self.findings() {
            writeln!(out, "{what}: {count}")?;
            first.iter().try_for_each(|finding| writeln!(out, "  {finding}"))?;
            if count > first.len() as u64 {
                writeln!(out, "  and {} more", count - first.len() as u64)?;
            }
        }
        let recovered_locks = self.inspection.recovered_locks;
        writeln!(out, "locks of recovered coordinators, which transactions free: {recovered_locks}")?;
        if let Some(report) = &self.report {
            let hold = report.conditions().into_iter().filter(|holds| *holds).count();
            writeln!(out, "consistency conditions of TPC-C that hold: {hold} of 12")?;
            for violation in report.violations.iter().take(FIRST) {
                writeln!(out, "  {violation}")?;
            }
            if let Some(more) = report.violations.len().checked_sub(FIRST + 1) {
                writeln!(out, "  and {} more", more + 1)?;
            }
        }
        match self.verdict() {
            Verdict::Clean => writeln!(out, "nothing is wrong"),
            Verdict::Unrecovered => writeln!(
                out,
                "the store is not recovered: a coordinator has ended in the middle of transactions, or still runs; if it has ended, `mitra txn local` with the same options recovers the store"
            ),
            Verdict::Damaged => writeln!(out, "the store is damaged"),
        }
    }
}

/// All findings of a kind: how many, and the first of them.
struct FindingsInWords {
    count: u64,
    first: Vec<String>,
}

fn in_words<T: Display>(Findings { count, first }: &Findings<T>) -> FindingsInWords {
    FindingsInWords { count: *count, first: first.iter().map(ToString::to_string).collect() }
}

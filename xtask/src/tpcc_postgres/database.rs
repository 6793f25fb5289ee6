//! The content of a database: the load, and the records after a run.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use mitra_txn::RecordKey;
use mitra_txn_workloads::tpcc::{Load, Loaded, Scale, Table};
use postgres::Client;
use postgres::binary_copy::BinaryCopyInWriter;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::{ToSql, Type};

use super::cluster::{Clusters, Server};
use super::columns::{self, Cell, TABLES};

/// The database with the content before a run.
const LOADED: &str = "loaded";

/// The database of a run.
pub(super) const RUN: &str = "run";

/// The tables, and behind the mark the indexes and functions.
const SCHEMA: &str = include_str!("schema.sql");
const MARK: &str = "-- AFTER THE LOAD\n";

/// Creates the database with which every run begins.
pub(super) fn load(clusters: &Clusters, load: Load, scale: &Scale) -> Result<()> {
    let (tables, rest) = SCHEMA.split_once(MARK).context("schema.sql has no mark")?;
    clusters.connect(Server::Primary, "postgres")?.batch_execute(&format!("CREATE DATABASE {LOADED}"))?;
    let mut client = clusters.connect(Server::Primary, LOADED)?;
    client.batch_execute(tables).context("schema.sql")?;
    eprintln!("loading the items");
    copy(&mut client, load.items())?;
    for warehouse in 1..=scale.warehouses() {
        eprintln!("loading warehouse {warehouse} of {}", scale.warehouses());
        copy(&mut client, load.warehouse(warehouse))?;
    }
    eprintln!("making the indexes");
    client.batch_execute(rest).context("schema.sql")?;
    client.batch_execute("CREATE EXTENSION pg_prewarm").context("the package has no pg_prewarm")?;
    client.batch_execute("VACUUM (FREEZE, ANALYZE)")?;
    Ok(())
}

/// Copies the records of the tables that PostgreSQL has.
fn copy(client: &mut Client, records: impl Iterator<Item = Loaded>) -> Result<()> {
    let mut records: Vec<Loaded> = records.collect();
    records.sort_unstable_by_key(|(at, _)| *at);
    for of_table in records.chunk_by(|(a, _), (b, _)| a.table == b.table) {
        let of_table_id = Table::of(of_table[0].0.table);
        let Some(&(table, name)) = TABLES.iter().find(|(table, _)| Some(*table) == of_table_id) else {
            continue;
        };
        let columns = client.prepare(&format!("SELECT * FROM {name}"))?;
        let types: Vec<Type> = columns.columns().iter().map(|column| column.type_().clone()).collect();
        let sink = client.copy_in(&format!("COPY {name} FROM STDIN (FORMAT binary)"))?;
        let mut writer = BinaryCopyInWriter::new(sink, &types);
        for (at, value) in of_table {
            let row = columns::row(table, *at, value)?;
            let row: Vec<&(dyn ToSql + Sync)> = row.iter().map(|cell| cell as _).collect();
            writer.write(&row).with_context(|| format!("a row of {name}"))?;
        }
        writer.finish()?;
    }
    Ok(())
}

/// Makes [`RUN`] a copy of the loaded database, and reads it into the buffers of both servers.
pub(super) fn reset(clusters: &Clusters) -> Result<()> {
    let mut client = clusters.connect(Server::Primary, "postgres")?;
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {RUN}"))?;
    client.batch_execute(&format!("CREATE DATABASE {RUN} TEMPLATE {LOADED} STRATEGY file_copy"))?;
    clusters.wait_for_standby()?;
    for server in [Server::Primary, Server::Standby] {
        let warm = "SELECT count(pg_prewarm(oid::regclass)) FROM pg_class
                    WHERE relkind IN ('r', 'i') AND relnamespace = 'public'::regnamespace";
        clusters.connect(server, RUN)?.batch_execute(warm)?;
    }
    Ok(())
}

/// All records of [`RUN`] at a server, without index records.
pub(super) fn records(clusters: &Clusters, server: Server) -> Result<BTreeMap<RecordKey, Vec<u8>>> {
    let mut client = clusters.connect(server, RUN)?;
    let mut records = BTreeMap::new();
    for (table, name) in TABLES {
        let query = match table {
            // The keys of HISTORY number a customer's payments in the order of their dates.
            Table::History => "SELECT h_c_w_id, h_c_d_id, h_c_id,
                    row_number() OVER (PARTITION BY h_c_w_id, h_c_d_id, h_c_id ORDER BY h_date),
                    h_w_id, h_d_id, h_date, h_amount, h_data FROM history"
                .to_owned(),
            _ => format!("SELECT * FROM {name}"),
        };
        let mut rows = client.query_raw(&query, &[] as &[&str])?;
        while let Some(row) = rows.next()? {
            let cells: Vec<Cell> =
                (0..row.len()).map(|column| row.try_get(column)).collect::<Result<_, _>>()?;
            let (at, value) = columns::record(table, cells).with_context(|| format!("a row of {name}"))?;
            ensure!(records.insert(at, value).is_none(), "{name} has two rows for {at:?}");
        }
    }
    Ok(records)
}

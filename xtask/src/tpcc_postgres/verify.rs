//! Compares the functions of `schema.sql` with the programs of `mitra_txn_workloads::tpcc`.

use anyhow::{Result, ensure};
use mitra_txn::Model;
use mitra_txn_workloads::Program;
use mitra_txn_workloads::tpcc::{Load, Scale, Sizes, Table, Terminal, check};

use super::cluster::{Clusters, Server};
use super::columns::TABLES;
use super::database::{self, RUN};
use super::session::{Isolation, Session};

/// A tenth of TPC-C's customers, orders and items.
const SIZES: Sizes = Sizes { items: 10_000, districts: 10, customers: 300, new_orders: 90 };
const WAREHOUSES: u16 = 2;
const TRANSACTIONS: u64 = 5000;

/// Runs the same transactions on PostgreSQL and on a model of a store, and compares all results and
/// all records.
pub(super) fn run(seed: u64) -> Result<()> {
    let scale = Scale::reduced(WAREHOUSES, SIZES)?;
    let load = Load::new(scale, seed, 0);
    let clusters = Clusters::start()?;
    database::load(&clusters, load, &scale)?;
    clusters.add_standby()?;
    for isolation in Isolation::ALL {
        database::reset(&clusters)?;
        let mut session = Session::connect(clusters.config(Server::Primary, RUN), isolation)?;
        let mut model = Model::new();
        load.records().for_each(|(at, value)| model.load(at, value));
        let mut terminals = [0, 1].map(|client| Terminal::numbered(scale, seed, client, 0));
        let (mut count, mut rolled_back) = (0, 0);
        for now in 1..=TRANSACTIONS {
            for input in terminals[(now % 2) as usize].next(now) {
                let expected = model.run(async |tx| input.execute(tx).await);
                let found = session.output(&input)?.map(Ok);
                ensure!(found == expected, "{input:?}: PostgreSQL has {found:?}, the model {expected:?}");
                count += 1;
                rolled_back += u32::from(found.is_err());
            }
        }
        // The model has index records, too.
        let mut expected = model.records().clone();
        expected.retain(|at, _| TABLES.iter().any(|(table, _)| Table::of(at.table) == Some(*table)));
        clusters.wait_for_standby()?;
        for server in [Server::Primary, Server::Standby] {
            let found = database::records(&clusters, server)?;
            for (at, value) in &expected {
                ensure!(found.get(at) == Some(value), "{} differs", mitra_txn_workloads::tpcc::describe(*at));
            }
            ensure!(found.len() == expected.len(), "PostgreSQL has more records than the model");
            ensure!(
                check(&found, &scale).conditions() == [true; 12],
                "a consistency condition does not hold"
            );
        }
        println!(
            "{}: {count} transactions ({rolled_back} rolled back) have returned, and {} records of the primary \
             and of the standby are, what the model says",
            isolation.name(),
            expected.len()
        );
    }
    Ok(())
}

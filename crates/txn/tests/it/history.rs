//! Checks whether a history of transactions that read and append to lists is strictly serializable.

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

/// A transaction whose caller knows of the commit, or that took effect without its caller's
/// knowledge.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The lists that the transaction has read, by record.
    pub reads: BTreeMap<u32, Vec<u32>>,
    /// The records to which the transaction has appended its number.
    pub appends: Vec<u32>,
    pub begun: u64,
    /// The time at which the caller knew of the commit; `None` if it never did.
    pub told: Option<u64>,
}

/// Checks the transactions, whose numbers are their keys, against the final lists.
pub fn check(
    transactions: &BTreeMap<u32, Transaction>,
    lists: &BTreeMap<u32, Vec<u32>>,
) -> Result<(), String> {
    let mut graph = DiGraphMap::<u32, ()>::new();
    for (number, transaction) in transactions {
        graph.add_node(*number);
        for record in &transaction.appends {
            let times = lists[record].iter().filter(|&appended| appended == number).count();
            if times != 1 {
                return Err(format!("transaction {number} is {times} times in list {record}"));
            }
        }
        for (record, read) in &transaction.reads {
            let list = &lists[record];
            if !list.starts_with(read) {
                return Err(format!("transaction {number} has read {read:?} of list {record}, {list:?}"));
            }
            if let Some(&writer) = read.last() {
                graph.add_edge(writer, *number, ());
            }
            if let Some(&overwriter) = list.get(read.len()).filter(|&after| after != number) {
                graph.add_edge(*number, overwriter, ());
            }
        }
    }
    for list in lists.values() {
        for pair in list.windows(2) {
            graph.add_edge(pair[0], pair[1], ());
        }
        if let Some(unknown) = list.iter().find(|number| !transactions.contains_key(number)) {
            return Err(format!("transaction {unknown} was aborted, and is in a list"));
        }
    }
    for (number, transaction) in transactions {
        for (later, other) in transactions {
            if transaction.told.is_some_and(|told| told < other.begun) {
                graph.add_edge(*number, *later, ());
            }
        }
    }
    match tarjan_scc(&graph).into_iter().find(|component| component.len() > 1) {
        Some(cycle) => Err(format!("the transactions {cycle:?} are in a cycle")),
        None => Ok(()),
    }
}

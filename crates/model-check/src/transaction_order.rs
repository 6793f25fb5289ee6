//! Checks whether transactions are strictly serializable.

use crate::transaction_step::{RecordUse, TransactionProgram};

/// The outcome that the caller of a transaction was told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Told {
    Nothing,
    Committed,
    Aborted,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Transaction {
    pub(crate) program: TransactionProgram,
    /// The transactions, as bits, whose callers had been told the outcome when this transaction
    /// began.
    pub(crate) begun_after: Option<u16>,
    /// Whether the transaction has tried to commit, and therefore may have taken effect.
    pub(crate) is_committing: bool,
    /// The values that the transaction has read, by record.
    pub(crate) reads: Vec<Option<u64>>,
    pub(crate) told: Told,
}

impl Transaction {
    pub(crate) fn new(program: TransactionProgram, records: usize) -> Transaction {
        Transaction {
            program,
            begun_after: None,
            is_committing: false,
            reads: vec![None; records],
            told: Told::Nothing,
        }
    }
}

/// Returns the value that a transaction writes to a record whose value was `before`.
pub(crate) fn written(how: RecordUse, before: u64, own: u64) -> Option<u64> {
    match how {
        RecordUse::Read => None,
        RecordUse::ReadThenAppend | RecordUse::LockThenAppend => Some(before << 4 | own),
        RecordUse::Overwrite => Some(own),
    }
}

/// Returns whether a serial order explains the values that transactions have read, and leaves
/// `values`. The order contains all transactions whose callers were told that they are committed,
/// and no transaction whose caller was told that it is aborted. The order may contain any
/// transaction whose caller was told nothing. Each transaction comes after the transactions whose
/// callers were told the outcome before it began.
pub(crate) fn explains(transactions: &[Transaction], values: &[u64]) -> bool {
    goes_on(transactions, values, 0, &vec![0; values.len()])
}

fn goes_on(transactions: &[Transaction], values: &[u64], placed: u16, now: &[u64]) -> bool {
    let must = |(number, transaction): (usize, &Transaction)| {
        transaction.told != Told::Committed || placed & 1 << number != 0
    };
    if now == values && transactions.iter().enumerate().all(must) {
        return true;
    }
    transactions.iter().enumerate().any(|(number, transaction)| {
        let may = placed & 1 << number == 0
            && transaction.is_committing
            && transaction.told != Told::Aborted
            && transaction.begun_after.is_some_and(|told| told & !placed == 0)
            && transaction.reads.iter().zip(now).all(|(read, now)| read.is_none_or(|read| read == *now));
        may && {
            let mut after = now.to_vec();
            for &(record, how) in transaction.program {
                let value = &mut after[usize::from(record)];
                *value = written(how, *value, number as u64 + 1).unwrap_or(*value);
            }
            goes_on(transactions, values, placed | 1 << number, &after)
        }
    })
}

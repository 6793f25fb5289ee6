//! Programs that run as one transaction, and the replay of a serial order of them.

use std::fmt::Debug;

use mitra_txn::{Abort, Access, Model, RecordKey, Transaction};

use crate::{Damaged, Value};

/// A program that runs as one transaction, over any store.
#[allow(async_fn_in_trait, reason = "a coordinator polls the futures of its transactions on its own thread")]
pub trait Program: Debug {
    /// The result of a committed transaction.
    type Output: PartialEq + Debug;

    /// Runs the program. A store that calls this commits the transaction after `Ok`.
    ///
    /// The inner error reports a record that the program cannot use. The program has then written
    /// nothing, and the transaction commits like any other. Before its validation, a transaction
    /// may have seen records that never existed together, so only a commit shows that the store is
    /// corrupt.
    ///
    /// # Errors
    /// The [`Abort`] of the store, or [`Abort::RolledBack`] where the workload asks for it.
    async fn execute<T: Transaction>(&self, tx: &mut T) -> Result<Result<Self::Output, Corrupt>, Abort>;
}

/// A record that a program cannot use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Corrupt {
    /// The record does not exist.
    #[error("{0:?} does not exist")]
    Missing(RecordKey),
    /// The value does not have the record's type.
    #[error("the value of {0:?} is damaged")]
    Damaged(RecordKey, #[source] Damaged),
}

/// Why a program has ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Abort(#[from] Abort),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// Returns the result of [`Program::execute`] for the result of a program's steps.
pub(crate) fn outcome<T>(result: Result<T, Failure>) -> Result<Result<T, Corrupt>, Abort> {
    match result {
        Ok(output) => Ok(Ok(output)),
        Err(Failure::Corrupt(corrupt)) => Ok(Err(corrupt)),
        Err(Failure::Abort(abort)) => Err(abort),
    }
}

/// The values that one [`read`] has found, to be taken in the order of its items.
pub(crate) struct Found(std::vec::IntoIter<(RecordKey, Option<Vec<u8>>)>);

/// Reads all of `items`, in one round trip where the store can.
pub(crate) async fn read(
    tx: &mut impl Transaction,
    items: impl IntoIterator<Item = (RecordKey, Access)>,
) -> Result<Found, Abort> {
    let items: Vec<_> = items.into_iter().collect();
    let values = tx.get_all(&items).await?;
    Ok(Found(items.into_iter().map(|(at, _)| at).zip(values).collect::<Vec<_>>().into_iter()))
}

impl Found {
    fn next<V: Value>(&mut self) -> Result<(RecordKey, Option<V>), Corrupt> {
        let (at, bytes) = self.0.next().expect("a program takes as many values as it has read");
        let value = bytes.map(|bytes| V::decode(&bytes)).transpose();
        Ok((at, value.map_err(|damaged| Corrupt::Damaged(at, damaged))?))
    }

    /// The next value, or `None` if its record does not exist.
    pub(crate) fn optional<V: Value>(&mut self) -> Result<Option<V>, Corrupt> {
        Ok(self.next()?.1)
    }

    /// The next value, whose record must exist.
    pub(crate) fn required<V: Value>(&mut self) -> Result<V, Corrupt> {
        let (at, value) = self.next()?;
        value.ok_or(Corrupt::Missing(at))
    }

    /// All values that are left. Their records must exist.
    pub(crate) fn all<V: Value>(&mut self) -> Result<Vec<V>, Corrupt> {
        (0..self.0.len()).map(|_| self.required()).collect()
    }
}

/// A transaction of a serial order that returned something else when it ran again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "transaction {position} of the serial order, {program}, has returned {recorded}, \
     and {replayed} when it ran again"
)]
pub struct Difference {
    /// The number of transactions before this one in the serial order.
    pub position: usize,
    /// The program, with its inputs.
    pub program: String,
    /// The result in the run.
    pub recorded: String,
    /// The result in the replay.
    pub replayed: String,
}

/// Runs the committed transactions of a run again, on a model with the initial content of the
/// store.
///
/// `history` has each program with its output, in an order that is equivalent to the run.
/// Transactions that ended with an [`Abort`] are not in `history`. After `Ok`, the store and the
/// model must have the same records.
///
/// # Errors
/// The first transaction that does not commit, or whose result differs from its recorded output.
pub fn replay<'a, P: Program + 'a>(
    model: &mut Model,
    history: impl IntoIterator<Item = (&'a P, &'a P::Output)>,
) -> Result<(), Difference> {
    for (position, (program, recorded)) in history.into_iter().enumerate() {
        let replayed = model.run(async |tx| program.execute(tx).await);
        if !matches!(&replayed, Ok(Ok(output)) if output == recorded) {
            return Err(Difference {
                position,
                program: format!("{program:?}"),
                recorded: format!("{recorded:?}"),
                replayed: match replayed {
                    Ok(Ok(output)) => format!("{output:?}"),
                    Ok(Err(corrupt)) => format!("{corrupt:?}"),
                    Err(abort) => format!("{abort:?}"),
                },
            });
        }
    }
    Ok(())
}

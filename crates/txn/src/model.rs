//! A store in the memory of one process, which executes one transaction at a time.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::transaction::{Abort, Access, RecordKey, Transaction};

/// The records of a store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Model {
    records: BTreeMap<RecordKey, Vec<u8>>,
}

/// A transaction on a [`Model`].
#[derive(Debug)]
pub struct ModelTransaction<'a> {
    records: &'a BTreeMap<RecordKey, Vec<u8>>,
    /// The values that the transaction has written; `None` for a deleted record.
    writes: BTreeMap<RecordKey, Option<Vec<u8>>>,
    failed: Option<Abort>,
}

impl Model {
    /// Creates an empty store.
    pub fn new() -> Model {
        Model::default()
    }

    /// Runs a transaction, and commits it if the program returns `Ok`.
    ///
    /// # Errors
    /// The error of the program, or the [`Abort`] of a write.
    ///
    /// # Panics
    /// If the program waits for something other than its transaction.
    pub fn run<T>(
        &mut self,
        program: impl AsyncFnOnce(&mut ModelTransaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let mut transaction =
            ModelTransaction { records: &self.records, writes: BTreeMap::new(), failed: None };
        let result = {
            let future = pin!(program(&mut transaction));
            match future.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => result,
                Poll::Pending => panic!("the program waits for something other than its transaction"),
            }
        };
        let ModelTransaction { writes, failed, .. } = transaction;
        let value = result?;
        if let Some(abort) = failed {
            return Err(abort);
        }
        for (at, value) in writes {
            match value {
                Some(value) => _ = self.records.insert(at, value),
                None => _ = self.records.remove(&at),
            }
        }
        Ok(value)
    }

    /// Makes a record, or replaces it, without a transaction: for the first content of a store.
    pub fn load(&mut self, at: RecordKey, value: Vec<u8>) {
        self.records.insert(at, value);
    }

    /// All records, in order of their keys.
    pub fn records(&self) -> &BTreeMap<RecordKey, Vec<u8>> {
        &self.records
    }
}

impl ModelTransaction<'_> {
    fn value(&self, at: RecordKey) -> Option<&Vec<u8>> {
        match self.writes.get(&at) {
            Some(written) => written.as_ref(),
            None => self.records.get(&at),
        }
    }

    fn write(&mut self, at: RecordKey, value: Option<Vec<u8>>, must_exist: bool) {
        let exists = self.value(at).is_some();
        if exists != must_exist {
            let abort = if exists { Abort::Exists(at) } else { Abort::Missing(at) };
            self.failed.get_or_insert(abort);
        }
        self.writes.insert(at, value);
    }
}

impl Transaction for ModelTransaction<'_> {
    async fn get_all(&mut self, items: &[(RecordKey, Access)]) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        Ok(items.iter().map(|(at, _)| self.value(*at).cloned()).collect())
    }

    fn put(&mut self, at: RecordKey, value: Vec<u8>) {
        self.write(at, Some(value), true);
    }

    fn insert(&mut self, at: RecordKey, value: Vec<u8>) {
        self.write(at, Some(value), false);
    }

    fn delete(&mut self, at: RecordKey) {
        self.write(at, None, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableId;

    const A: RecordKey = RecordKey { table: TableId(0), key: 1 };
    const B: RecordKey = RecordKey { table: TableId(0), key: 2 };

    #[test]
    fn committed_writes_take_effect_together_and_others_not() {
        let mut model = Model::new();
        model.load(A, vec![1]);
        let moved = model.run(async |tx| {
            let found = tx.get_all(&[(A, Access::Update), (B, Access::Read)]).await?;
            assert_eq!(found, [Some(vec![1]), None]);
            tx.delete(A);
            tx.insert(B, vec![2]);
            assert_eq!(tx.get(A, Access::Read).await?, None);
            tx.get(B, Access::Read).await
        });
        assert_eq!(moved, Ok(Some(vec![2])));
        let before = model.clone();
        let rolled_back: Result<(), Abort> = model.run(async |tx| {
            tx.put(B, vec![3]);
            Err(Abort::RolledBack)
        });
        assert_eq!(rolled_back, Err(Abort::RolledBack));
        let missing = model.run(async |tx| {
            tx.put(A, vec![0]);
            Ok(())
        });
        assert_eq!(missing, Err(Abort::Missing(A)));
        let exists = model.run(async |tx| {
            tx.insert(B, vec![0]);
            Ok(())
        });
        assert_eq!(exists, Err(Abort::Exists(B)));
        assert_eq!(model, before);
    }
}

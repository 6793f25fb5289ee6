//! What a transaction can do, whoever executes it.

/// The number of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u16);

/// The name of a record: its table, and its key there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordKey {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: u64,
}

/// What a transaction reads a record for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// To know its value.
    Read,
    /// To write it later. The record is locked in the same round trip.
    Update,
}

/// Why a transaction ended without an effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Abort {
    /// Another transaction holds the lock of the record. The transaction may be run again.
    #[error("another transaction holds the lock of {0:?}")]
    Locked(RecordKey),
    /// Another transaction has changed the record since it was read. The transaction may be run again.
    #[error("{0:?} was changed by another transaction")]
    Changed(RecordKey),
    /// An inserted record exists.
    #[error("{0:?} exists")]
    Exists(RecordKey),
    /// A written or deleted record does not exist.
    #[error("{0:?} does not exist")]
    Missing(RecordKey),
    /// The program has ended the transaction.
    #[error("the program has rolled the transaction back")]
    RolledBack,
}

/// A transaction. Its writes take effect together, or not at all, when it commits.
///
/// A program is generic over this trait, so that it runs over remote memory and on a [`Model`](crate::Model).
#[allow(async_fn_in_trait, reason = "a coordinator polls the futures of its transactions on its own thread")]
pub trait Transaction {
    /// Reads several records together, in one round trip where their places are known. The result has the values in the order of `items`, `None` for
    /// records that do not exist. The transaction sees its own writes.
    ///
    /// # Errors
    /// An [`Abort`], after which the transaction does nothing more. A program passes it on.
    async fn get_all(&mut self, items: &[(RecordKey, Access)]) -> Result<Vec<Option<Vec<u8>>>, Abort>;

    /// Replaces the value of a record when the transaction commits. If it does not exist then, the transaction aborts with [`Abort::Missing`].
    fn put(&mut self, at: RecordKey, value: Vec<u8>);

    /// Makes a record when the transaction commits. If it exists then, the transaction aborts with [`Abort::Exists`].
    fn insert(&mut self, at: RecordKey, value: Vec<u8>);

    /// Deletes a record when the transaction commits. If it does not exist then, the transaction aborts with [`Abort::Missing`].
    fn delete(&mut self, at: RecordKey);

    /// Reads one record.
    ///
    /// # Errors
    /// As for [`Transaction::get_all`].
    async fn get(&mut self, at: RecordKey, access: Access) -> Result<Option<Vec<u8>>, Abort> {
        Ok(self.get_all(&[(at, access)]).await?.pop().flatten())
    }
}

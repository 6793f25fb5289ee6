//! The interface of transactions, which all stores implement.

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

/// The purpose of reading a record.
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
    /// Another transaction holds the lock of a record or of a bucket of this table's index.
    #[error("another transaction holds a lock of {0:?}")]
    Locked(TableId),
    /// Another transaction has changed a record or a bucket of this table's index since it was
    /// read.
    #[error("a record of {0:?} was changed by another transaction")]
    Changed(TableId),
    /// An inserted record exists.
    #[error("{0:?} exists")]
    Exists(RecordKey),
    /// A written or deleted record does not exist.
    #[error("{0:?} does not exist")]
    Missing(RecordKey),
    /// The program has ended the transaction.
    #[error("the program has rolled the transaction back")]
    RolledBack,
    /// A node that has a copy of a needed record is declared dead.
    #[error("a memory node that has a record of {0:?} is declared dead")]
    Unavailable(TableId),
    /// Fewer memory nodes live than must have the log entry.
    #[error("too few memory nodes live for a commit")]
    TooFewNodes,
    /// The store has no such table.
    #[error("the store has no {0:?}")]
    UnknownTable(TableId),
    /// A value is longer than the table allows.
    #[error("the value of {0:?} is longer than its table allows")]
    TooLong(RecordKey),
    /// The writes of the transaction do not fit into a log entry.
    #[error(
        "the transaction writes {bytes} bytes, and a log entry has at most {max}; write less in a transaction, or give the schema longer slots"
    )]
    TooManyBytes {
        /// The length of the entry, in bytes.
        bytes: usize,
        /// The length of the slots.
        max: usize,
    },
    /// The partition of an inserted record has no place left.
    #[error("a partition of {0:?} is full; give the schema more records")]
    Full(TableId),
    /// The memory of the index does not contain an index.
    #[error("the index of {0:?} is damaged")]
    DamagedIndex(TableId),
    /// The memory of the record does not contain a record.
    #[error("a record of {0:?} is damaged")]
    DamagedRecord(TableId),
    /// The life of the coordinator has ended before the transaction committed.
    #[error("the coordinator's life has ended")]
    LifeEnded,
}

impl Abort {
    /// Returns whether the transaction may commit when it runs again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Abort::Locked(_) | Abort::Changed(_))
    }

    /// The reason in one word, for statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Abort::Locked(_) => "locked",
            Abort::Changed(_) => "changed",
            Abort::Exists(_) => "exists",
            Abort::Missing(_) => "missing",
            Abort::RolledBack => "rolled_back",
            Abort::Unavailable(_) => "unavailable",
            Abort::TooFewNodes => "too_few_nodes",
            Abort::UnknownTable(_) => "unknown_table",
            Abort::TooLong(_) => "too_long",
            Abort::TooManyBytes { .. } => "too_many_bytes",
            Abort::Full(_) => "full",
            Abort::DamagedIndex(_) => "damaged_index",
            Abort::DamagedRecord(_) => "damaged_record",
            Abort::LifeEnded => "life_ended",
        }
    }
}

/// A transaction. Its writes take effect together, or not at all, when it commits.
///
/// A program is generic over this trait, so that it runs over remote memory and on a
/// [`Model`](crate::Model).
#[allow(async_fn_in_trait, reason = "a coordinator polls the futures of its transactions on its own thread")]
pub trait Transaction {
    /// Reads several records together, in one round trip where their places are known. The result
    /// has the values in the order of `items`, `None` for records that do not exist. The
    /// transaction sees its own writes.
    ///
    /// # Errors
    /// An [`Abort`], after which the transaction does nothing more. A program passes it on.
    async fn get_all(&mut self, items: &[(RecordKey, Access)]) -> Result<Vec<Option<Vec<u8>>>, Abort>;

    /// Replaces the value of a record when the transaction commits. If the record does not exist
    /// then, the transaction aborts with [`Abort::Missing`].
    fn put(&mut self, at: RecordKey, value: Vec<u8>);

    /// Inserts a record when the transaction commits. If the record exists then, the transaction
    /// aborts with [`Abort::Exists`].
    fn insert(&mut self, at: RecordKey, value: Vec<u8>);

    /// Deletes a record when the transaction commits. If the record does not exist then, the
    /// transaction aborts with [`Abort::Missing`].
    fn delete(&mut self, at: RecordKey);

    /// Reads one record.
    ///
    /// # Errors
    /// As for [`Transaction::get_all`].
    async fn get(&mut self, at: RecordKey, access: Access) -> Result<Option<Vec<u8>>, Abort> {
        Ok(self.get_all(&[(at, access)]).await?.pop().flatten())
    }
}

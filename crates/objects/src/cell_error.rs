/// The error of an operation on a cell. The operation did not change the cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CellError {
    /// The owner has used all sequence numbers that the cell's words can hold. If a word or a slow
    /// client still had a number that is used again, an operation that did not happen would count
    /// as executed.
    #[error(
        "owner {owner} has used all {max} sequence numbers of this kind of cell; go on with a new owner number, or set cells and announcements back while no client uses them"
    )]
    SequencesUsedUp {
        /// The owner.
        owner: u8,
        /// The last sequence number.
        max: u64,
    },
    /// There is no announcement for this owner.
    #[error(
        "there is no owner {owner}: the announcements are for owners 1 to {owners}; the memory is not a cell, or its clients disagree about the number of owners"
    )]
    NoSuchOwner {
        /// The number, from the caller or from a cell's word.
        owner: u8,
        /// The highest number.
        owners: u8,
    },
}

//! What carries the messages.

use core::fmt::Debug;

use mitra_verbs::{Result, Time};

/// What a carrier reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A message has arrived.
    Message(&'a [u8]),
    /// The connection to the node has ended.
    Closed,
}

/// A carrier of messages between nodes. It may lose, repeat, reorder and corrupt them.
///
/// The carrier knows the node from which a message came: a node must not be able to send in the
/// name of another.
pub trait Carrier {
    /// The identity of a node.
    type Node: Copy + Ord + Debug;

    /// Returns the time of a clock that never goes back.
    fn now(&self) -> Time;

    /// Returns the maximum length of a message in bytes.
    fn max_message(&self) -> usize;

    /// Sends a message of at most [`Carrier::max_message`] bytes. It is lost if the carrier has no
    /// room for it.
    fn send(&mut self, to: Self::Node, message: &[u8]);

    /// Passes everything that has arrived to `handle`, in the order of arrival.
    ///
    /// # Errors
    /// The carrier's NIC failed.
    fn poll(&mut self, handle: &mut dyn FnMut(Self::Node, Event<'_>)) -> Result<()>;
}

/// A carrier whose messages from one node to another arrive in order: every copy of a message
/// arrives before the next message.
pub trait OrderedCarrier: Carrier {}

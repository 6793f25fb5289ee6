//! The interface of the transports of messages.

use core::fmt::Debug;

use mitra_verbs::{Result, Time};

/// An event that a carrier reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A message has arrived.
    Message(&'a [u8]),
    /// The connection to the node has ended.
    Closed,
}

/// A carrier of messages between nodes. The carrier may lose, repeat, reorder and corrupt messages.
///
/// The carrier reports the true sender of a message: no node can send in the name of another node.
pub trait Carrier {
    /// The identity of a node.
    type Node: Copy + Ord + Debug;

    /// Returns the time of a clock that never goes back.
    fn now(&self) -> Time;

    /// Returns the maximum length of a message in bytes.
    fn max_message(&self) -> usize;

    /// Sends a message of at most [`Carrier::max_message`] bytes. The message is lost if the
    /// carrier has no room for it.
    fn send(&mut self, to: Self::Node, message: &[u8]);

    /// Passes everything that has arrived to `handle`, in the order of arrival.
    ///
    /// # Errors
    /// If the carrier's NIC failed.
    fn poll(&mut self, handle: &mut dyn FnMut(Self::Node, Event<'_>)) -> Result<()>;
}

/// A carrier whose messages from one node to another arrive in order: every copy of a message
/// arrives before the next message.
pub trait OrderedCarrier: Carrier {}

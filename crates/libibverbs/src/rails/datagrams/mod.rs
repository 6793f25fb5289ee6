//! UD queue pairs over several rails.
//!
//! Programs know a UD queue pair by the GID and the queue pair number of rail 0. On each rail, the
//! NIC has a queue pair of its own for it. Each datagram leaves on one rail that is up at
//! both ends, as far as this end knows, and is never sent again. A datagram that arrives on any
//! rail is copied to the program's oldest receive, and shows the GID and the number that the
//! sender's program knows.
//!
//! - [`directory`] is the state machine that knows where devices and their queue pairs can be
//!   reached, and chooses rails. [`qp_table`] holds the numbers of the queue pairs of one device.
//! - [`network`] drives the directory: it exchanges the messages through the rendezvous, and
//!   observes the ports.
//! - [`address_handles`] holds the program's address handles, which are valid on all rails.
//! - [`arrivals`] receives datagrams in memory of its own on each rail.
//! - [`queue_pair`] is the queue pair, and [`rail_qp`] its part on one rail. [`send`] posts its
//!   sends, and [`send_queue`] holds them.

pub(crate) mod address_handles;
mod arrivals;
mod directory;
pub(crate) mod network;
mod qp_table;
pub(crate) mod queue_pair;
mod rail_qp;
mod send;
mod send_queue;

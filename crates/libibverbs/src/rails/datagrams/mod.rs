//! UD queue pairs over several rails.
//!
//! Each such queue pair consists of one queue pair on the NIC of each rail. Programs know it by the
//! GID and the queue pair number of rail 0. Each datagram leaves on one rail that is up at both
//! ends, as far as this end knows, and is never sent again. A datagram that arrives on any rail is
//! copied to the program's oldest receive. Its GRH shows the GID of the sender's rail 0, and the
//! receive completion shows the queue pair number.
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

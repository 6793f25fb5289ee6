//! The calls of librdmacm: connections between queue pairs, by IP address (`man 7 rdma_cm`).
//!
//! The connection managers of two programs exchange the messages of the IBTA's connection manager,
//! as those of the kernel do: datagrams between the queue pairs 1 of the NICs, or between UDP
//! sockets where the kernel owns that queue pair. Their faults and losses are those of the rails. A
//! TCP socket at the port of a listener only tells which device listens there
//! ([`service_directory`]).
//!
//! The modules form layers. A module uses only modules of its own layer and of earlier layers:
//!
//! 1. `protocol`: messages and state machines without I/O. `caller_ptr`, `sockaddr`, `return_code`,
//!    `explanation`: the C boundary.
//! 2. `rdma_port`, `neighbour`, `network`, `service_directory`, `cm_event`, `membership`, `device`,
//!    `identifier`, `connection_table`, `refusals`, `peer_watch`, `qp_attributes`, `unreachable`:
//!    the parts of the state.
//! 3. `manager_state` (all identifiers), `message_handling` (messages, ready sockets and timers),
//!    `manager` (the lock and the thread), `received` (what the device has received).
//! 4. `acknowledgement`, `id_memory`: the memory that the program holds.
//! 5. `calls`: the exported functions.
//!
//! The manager's thread never changes memory or queue pairs of the program. The thread only appends
//! a [`CmEvent`](cm_event::CmEvent) to the queue of the identifier's channel. The call that reads
//! the event applies the effects to the program's memory and queue pair.

mod acknowledgement;
mod caller_ptr;
mod calls;
mod cm_event;
mod connection_table;
mod device;
mod explanation;
mod id_memory;
mod identifier;
mod manager;
mod manager_state;
mod membership;
mod message_handling;
mod neighbour;
mod network;
mod peer_watch;
mod protocol;
mod qp_attributes;
mod rdma_port;
mod received;
mod refusals;
mod return_code;
mod service_directory;
mod sockaddr;
mod unreachable;
mod waker;

pub use self::calls::unsupported::REFUSED_FUNCTIONS;

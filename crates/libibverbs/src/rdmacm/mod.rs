//! The calls of librdmacm: connections between queue pairs, by IP address (`man 7 rdma_cm`).
//!
//! The connection managers of two programs exchange messages over ordinary sockets at the addresses
//! that the programs give. Each request, and each reply that accepts one, carries the GID of the
//! sender's NIC. A connection uses a TCP stream. The stream stays open as long as the connection,
//! because the end of the stream shows that the peer died. A lookup of a datagram service uses UDP
//! datagrams.
//!
//! The modules form layers. A module uses only modules of its own layer and of the layers before
//! it:
//!
//! 1. `protocol`: messages and state machines without I/O. `caller_ptr`, `sockaddr`, `return_code`,
//!    `explanation`: conversions at the C boundary and other helpers.
//! 2. `rdma_port`, `cm_event`, `membership`, `device`, `identifier`, `qp_attributes`: the parts of
//!    the state.
//! 3. `manager_state` (all identifiers), `network_events` (handles ready sockets and timers),
//!    `manager` (the lock and the thread).
//! 4. `acknowledgement`, `id_memory`: the memory that the program holds.
//! 5. `calls`: the exported functions.
//!
//! The manager's thread never changes memory or queue pairs of the program. It only appends a
//! [`CmEvent`](cm_event::CmEvent) to the queue of the identifier's channel. When the program reads
//! the event, that call applies the event's effects to the program's memory and queue pair.

mod acknowledgement;
mod caller_ptr;
mod calls;
mod cm_event;
mod device;
mod explanation;
mod id_memory;
mod identifier;
mod manager;
mod manager_state;
mod membership;
mod network_events;
mod protocol;
mod qp_attributes;
mod rdma_port;
mod return_code;
mod sockaddr;

pub use self::calls::unsupported::REFUSED_FUNCTIONS;

//! The calls of librdmacm: connections between queue pairs, by IP address (`man 7 rdma_cm`).
//!
//! The connection managers of two programs exchange messages over ordinary sockets at the programs'
//! addresses. A request, and a reply that accepts a request, carries the GID of the sender's NIC. A
//! connection uses a TCP stream. The stream stays open as long as the connection, because the end
//! of the stream shows that the peer died. The lookup of a datagram service uses UDP.
//!
//! The modules form layers. A module uses only modules of its own layer and of earlier layers:
//!
//! 1. `protocol`: messages and state machines without I/O. `caller_ptr`, `sockaddr`, `return_code`,
//!    `explanation`: the C boundary.
//! 2. `rdma_port`, `cm_event`, `membership`, `device`, `identifier`, `qp_attributes`: the parts of
//!    the state.
//! 3. `manager_state` (all identifiers), `network_events` (ready sockets and timers), `manager`
//!    (the lock and the thread).
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

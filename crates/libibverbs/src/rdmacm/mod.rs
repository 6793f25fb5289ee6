//! The calls of librdmacm: connections between queue pairs, by IP address (`man 7 rdma_cm`).
//!
//! The connection managers of two programs exchange messages over ordinary sockets at the addresses that the programs give,
//! and each message carries the GID of the sender's NIC. A connection uses a TCP stream, which stays open, so that its end
//! reports a peer that died. A lookup of a datagram service uses UDP datagrams.
//!
//! The modules form layers. A module uses only modules of the layers above it in this list:
//!
//! 1. `protocol`: messages and state machines without I/O. `caller_ptr`, `sockaddr`, `close_on_fork`, `return_code`, `random`: values
//!    at the C boundary.
//! 2. `socket`, `report`, `report_queue`, `membership`, `device`, `identifier`, `qp_attributes`: the parts of the state.
//! 3. `state` (all identifiers), `network_events` (from ready sockets to the state machines and to reports), `manager` (the
//!    lock and the thread).
//! 4. `acknowledgement`, `id_memory`: the memory that the program holds.
//! 5. `calls`: the exported functions.
//!
//! The manager's thread never changes memory or queue pairs of the program. What happens on the network becomes a report in
//! the identifier's channel, and the report becomes an event, with all its effects, in the call by which the program reads it.
mod acknowledgement;
mod caller_ptr;
mod calls;
mod close_on_fork;
mod device;
mod id_memory;
mod identifier;
mod manager;
mod membership;
mod network_events;
mod protocol;
mod qp_attributes;
mod random;
mod report;
mod report_queue;
mod return_code;
mod sockaddr;
mod socket;
mod state;

//! The NICs under the device, and connections that survive the loss of a NIC. Each NIC is a *rail*
//! of the device.
//!
//! On a device with one rail, the program's objects are objects of the rail's NIC, and
//! [`async_event_thread`] delivers the NIC's asynchronous events. On a device with several rails
//! ([`virtual_qps`]), a connection (RC, UC or XRC) is a virtual queue pair ([`multi_rail_qp`]). It
//! obtains the peer's connection data through queue pair 1 of the NICs ([`rendezvous`]), and
//! completes in a queue in this process's memory ([`virtual_cq`]). [`progress_thread`] drives it
//! while the program does not poll. A UD queue pair has a queue pair on each rail ([`datagrams`]).
//!
//! Imports within this folder go one way: [`open`] → threads and [`fault_control`] → [`rail_set`] →
//! [`virtual_qps`] → [`multi_rail_qp`] and [`datagrams`] → everything else.

mod async_event_thread;
pub(crate) mod cm_datagrams;
pub(crate) mod cm_receiver;
pub(crate) mod datagrams;
pub(crate) mod device_memory;
mod drive_queue;
mod fault_control;
pub(crate) mod multi_rail_domain;
pub(crate) mod multi_rail_qp;
mod object_number;
pub(crate) mod object_table;
pub(crate) mod on_demand_regions;
pub(crate) mod open;
mod peer_closed;
mod peer_region_keys;
mod progress_thread;
pub(crate) mod protection_domain;
mod queue_users;
pub(crate) mod rail_set;
mod rendezvous;
pub(crate) mod virtual_cq;
pub(crate) mod virtual_qps;
pub(crate) mod virtual_srq;
pub(crate) mod virtual_xrc_domain;
pub(crate) mod xrc_domains;

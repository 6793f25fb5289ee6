//! The NICs under the device, and reliable connections that survive the loss of one.
//!
//! With one rail the program's objects are objects of its NIC, and [`event_thread`] delivers the NIC's asynchronous events.
//! With several rails ([`multi_rail`]) a reliable connection is a virtual queue pair ([`multi_rail_qp`]). It finds its
//! peer through queue pair 1 of the NICs ([`rendezvous`]), completes in a queue of this process ([`virtual_cq`]), and
//! is driven by [`progress_thread`] when the program does not poll. UD and UC queue pairs stay on rail 0.
//!
//! Imports within this folder go one way: [`open`] → threads and [`fault_control`] → [`rail_set`] → [`multi_rail`] →
//! [`multi_rail_qp`] → everything else.

mod bounce_ring;
mod event_thread;
mod fault_control;
pub(crate) mod multi_rail;
pub(crate) mod multi_rail_domain;
pub(crate) mod multi_rail_qp;
pub(crate) mod objects;
pub(crate) mod open;
mod peer_closed;
mod progress_thread;
pub(crate) mod rail_set;
mod region_keys;
mod rendezvous;
pub(crate) mod virtual_cq;
pub(crate) mod virtual_srq;

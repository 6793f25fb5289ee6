//! The NICs under the device, and connections that survive the loss of a NIC. Each NIC is a *rail*
//! of the device.
//!
//! The C interface knows the device by the traits of [`device`]. On a device with one rail
//! ([`one_nic`]), the program's objects are objects of the rail's NIC, whose asynchronous events a
//! thread delivers. On a device with several rails ([`several_rails`]), a connection (RC, UC or
//! XRC) is a virtual queue pair ([`multi_rail_qp`]). It obtains the peer's connection data by
//! datagrams between the devices ([`rendezvous`]), and completes in a queue in this process's
//! memory ([`virtual_cq`]). [`progress_thread`] drives it while the program does not poll. A UD
//! queue pair has a queue pair on each rail ([`datagrams`]).
//!
//! Imports within this folder go one way: [`open`] → [`one_nic`] and [`several_rails`] → threads
//! and [`fault_control`] → [`rail_set`] → [`device`]. [`several_rails`] and its thread also import
//! [`virtual_qps`] → [`multi_rail_qp`] and [`datagrams`] → everything else.

pub(crate) mod cm_datagrams;
pub(crate) mod cm_receiver;
mod datagrams;
pub(crate) mod device;
pub(crate) mod device_memory;
mod drive_queue;
mod fault_control;
mod multi_rail_domain;
mod multi_rail_qp;
mod object_number;
pub(crate) mod object_table;
pub(crate) mod on_demand_regions;
mod one_nic;
pub(crate) mod open;
mod peer_closed;
mod peer_region_keys;
mod progress_thread;
mod protection_domain;
mod queue_users;
pub(crate) mod rail_address;
pub(crate) mod rail_set;
mod rendezvous;
mod several_rails;
mod unanswered;
mod virtual_cq;
mod virtual_qps;
mod virtual_srq;
mod virtual_xrc_domain;
pub(crate) mod xrc_domains;

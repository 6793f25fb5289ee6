//! The RDMA vocabulary and the Provider trait that every NIC implements; never drives a NIC itself.
#![forbid(unsafe_code)]

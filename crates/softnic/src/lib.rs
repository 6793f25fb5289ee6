//! The software NIC: RoCEv2 over UDP sockets from user space, rootless; never decides protocol.
#![forbid(unsafe_code)]

//! Virtual queue pairs that survive a link or a NIC; knows NICs by the Provider trait alone.
#![forbid(unsafe_code)]

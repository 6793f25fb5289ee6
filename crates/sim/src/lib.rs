//! A seeded fabric in virtual time that drives transport and failover unchanged; never used in production.
#![forbid(unsafe_code)]

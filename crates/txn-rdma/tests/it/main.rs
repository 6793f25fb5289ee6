//! Tests of memory nodes and links in one process, each with NICs of its own on loopback.

mod bulk;
mod common;
mod drivers;
mod failover;
mod hostile;
mod lives;
mod requests;

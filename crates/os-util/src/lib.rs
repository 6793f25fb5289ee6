#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod event_queue;
pub mod eventfd;
pub mod thread;

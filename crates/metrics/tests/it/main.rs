//! The tests of the public interface, one program with a module for each subject.

#[path = "../sample_snapshot/mod.rs"]
mod sample_snapshot;

mod http_endpoint;
mod openmetrics;

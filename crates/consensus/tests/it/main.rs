//! The tests of the public interface, one program with a module for each subject.

mod kv_store;
mod replicated_log;

//! The tests of the public interface, one program with a module for each subject.

#[path = "../c_program/mod.rs"]
mod c_program;
#[allow(unsafe_code)]
#[path = "../cm_wrapper/mod.rs"]
mod cm_wrapper;
#[path = "../rdma_core/mod.rs"]
mod rdma_core;

mod abi_layout;
mod c_programs;
mod exported_symbols;
#[allow(unsafe_code)]
mod rdmacm;
mod refusal_messages;
mod refusal_walk;

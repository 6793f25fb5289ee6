//! The tests of the public interface, one program with a module for each subject.

mod against_brute_force;
mod documented_table;
mod generators_and_input;
mod large_graphs;

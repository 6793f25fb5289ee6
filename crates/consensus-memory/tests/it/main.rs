//! The tests of the public interface, one program with a module for each subject.

mod corpus;
mod first_start;

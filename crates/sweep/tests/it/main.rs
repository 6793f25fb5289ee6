//! The workloads of `mitra sim`, from a few seeds each.

mod home_ring;
mod objects;
mod seeded_workloads;
mod txn;

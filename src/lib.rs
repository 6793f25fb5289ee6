//! Mitra: RDMA that keeps its word.
#![forbid(unsafe_code)]

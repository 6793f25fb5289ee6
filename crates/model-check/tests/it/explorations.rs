//! The record of explorations knows what a model reads.

use crate::common::explorations::{Reads, crates_that};

#[test]
fn crates_of_a_model_are_found_in_their_manifests() {
    let of_objects = crates_that(Reads::Objects);
    for name in ["model-check", "objects", "failover", "verbs", "wire", "mutants"] {
        assert!(of_objects.iter().any(|of| of == name), "{name} is not among {of_objects:?}");
    }
    assert_eq!(crates_that(Reads::Consensus), ["consensus", "model-check", "mutants"]);
}

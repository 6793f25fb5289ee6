//! The module `rails` of the C library, as far as the messages of its private module `rendezvous`
//! need it: their items are visible within `rails`.

#[path = "rails_rendezvous.rs"]
pub mod rendezvous;

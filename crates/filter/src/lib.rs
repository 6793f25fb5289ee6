#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod calls;
mod filter;
pub mod message;
mod one_bit;
pub mod rpc;
mod rules;
mod sender;
mod table;

pub use calls::{Action, MAX_DOUBLINGS, Outcome, SenderCore, Submit};
pub use filter::{FilterAction, FilterCore, Ticket, Verdict};
pub use message::{Attempt, Grant, Message, ParseError, Terms};
pub use one_bit::{BitFilter, BitSender};
pub use rules::{AllRules, Rules};
pub use sender::Sender;
pub use table::{FilterTable, TableConfig};

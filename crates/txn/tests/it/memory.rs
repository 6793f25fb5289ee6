//! Memory nodes that execute each request at once.

use std::collections::BTreeMap;

use mitra_txn::{NodeId, Op, Outcome, Request};

/// The bytes of all nodes. Bytes that were never written are zero.
#[derive(Clone, Default)]
pub struct Memory(BTreeMap<(NodeId, u64), u8>);

impl Memory {
    pub fn bytes(&self, node: NodeId, at: u64, len: u64) -> Vec<u8> {
        (at..at + len).map(|at| self.0.get(&(node, at)).copied().unwrap_or(0)).collect()
    }

    pub fn put(&mut self, node: NodeId, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            self.0.insert((node, at), *byte);
        }
    }

    pub fn execute(&mut self, request: &Request) -> Outcome {
        let Request { node, at, op } = request;
        match op {
            Op::Read(len) => Outcome::Executed(self.bytes(*node, *at, u64::from(*len))),
            Op::Write(bytes) => {
                self.put(*node, *at, bytes);
                Outcome::Executed(Vec::new())
            }
            Op::CompareSwap { compare, swap } => {
                let old = self.bytes(*node, *at, 8);
                if u64::from_le_bytes(old.clone().try_into().unwrap()) == *compare {
                    self.put(*node, *at, &swap.to_le_bytes());
                }
                Outcome::Executed(old)
            }
        }
    }
}

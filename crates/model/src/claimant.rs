//! A face of Byzantine processes of Fast & Robust: it leaves Cheap Quorum alone and claims in the backup, before anybody, that all have signed
//! its value.

use mitra_agreement::cheap_quorum::VALUE;
use mitra_agreement::fast_and_robust::{BackupSlot, Cell, moved, narrowed};
use mitra_agreement::preferential_paxos::PreferentialPaxos;
use mitra_agreement::robust_backup::RobustBackup;
use mitra_agreement::signature::{Signed, Symbolic, SymbolicSignature};
use mitra_agreement::{Actions, Input, Process, ProcessId};

use crate::Forge;

/// A process with a claim.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claimant {
    processes: u8,
    backup: RobustBackup<PreferentialPaxos<u8>, Symbolic>,
}

impl Claimant {
    /// One of `n` processes over `m` memories with room for `room` turns, which claims that `value` is the value.
    pub fn new(me: ProcessId, (n, m): (u8, u8), room: u16, keys: Symbolic, value: u8) -> Claimant {
        let own = Signed::by(me, &keys, VALUE, (), value);
        let claim = own.forge(&own);
        Claimant { processes: n, backup: RobustBackup::new(me, (n, m), room, keys, claim) }
    }
}

impl Process for Claimant {
    type Cell = Cell<u8, SymbolicSignature>;
    type Message = ();
    type Value = u8;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        let input: Input<BackupSlot<u8, SymbolicSignature>, ()> = match input {
            Input::Response { memory, nth, response } => {
                Input::Response { memory, nth, response: narrowed(response) }
            }
            Input::Start => Input::Start,
            Input::Wake => Input::Wake,
            Input::Leader(p) => Input::Leader(p),
            Input::Message { .. } | Input::Coin(_) => return,
        };
        let mut actions = Vec::new();
        self.backup.handle(input, &mut actions);
        out.extend(actions.into_iter().map(|action| moved(action, self.processes + 1)));
    }

    fn decision(&self) -> Option<&u8> {
        None
    }

    fn attempts(&self) -> u64 {
        0
    }
}

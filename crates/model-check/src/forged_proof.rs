//! Instances of a Byzantine process of Fast & Robust that forges a unanimity proof. One instance
//! takes part in Cheap Quorum. Another instance claims in the backup, before any process has
//! panicked, that all processes signed a different value.

use mitra_consensus::cheap_quorum::{CheapQuorum, VALUE};
use mitra_consensus::fast_and_robust::{Cell, convert_response, offset_regions};
use mitra_consensus::preferential_paxos::PreferentialPaxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::{Signed, Signer};
use mitra_consensus::{Actions, Input, Process, ProcessId};

use crate::Forge;

/// An instance that takes part in one of the two protocols of Fast & Robust.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ForgedProof<K: Signer> {
    /// An instance of Cheap Quorum.
    CheapQuorum(Box<CheapQuorum<u8, K>>),
    /// An instance of the backup, and the number of its first region.
    Backup(Box<RobustBackup<PreferentialPaxos<u8>, K>>, u8),
}

impl<K: Signer> ForgedProof<K> {
    /// Creates the instance of the backup that claims that all processes signed `value`. Only the
    /// signature of process `me` is valid. The memories have room for `room` broadcasts of each
    /// process.
    pub fn backup(me: ProcessId, (n, m): (u8, u8), room: u16, keys: K, value: u8) -> ForgedProof<K> {
        let own = Signed::by(me, &keys, VALUE, (), value);
        let claim = own.forge(&own);
        ForgedProof::Backup(Box::new(RobustBackup::new(me, (n, m), room, keys, claim)), n + 1)
    }
}

impl<K: Signer> Process for ForgedProof<K> {
    type Cell = Cell<u8, K::Signature>;
    type Message = ();
    type Value = u8;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match self {
            ForgedProof::CheapQuorum(quorum) => deliver::<K, _>(&mut **quorum, input, 0, out),
            ForgedProof::Backup(backup, first_region) => {
                deliver::<K, _>(&mut **backup, input, *first_region, out)
            }
        }
    }

    fn decision(&self) -> Option<&u8> {
        None
    }

    fn attempts(&self) -> u64 {
        0
    }
}

/// Delivers an input to one of the protocols, and translates its actions to the cells and regions
/// of Fast & Robust.
fn deliver<K: Signer, P: Process<Message = ()>>(
    part: &mut P,
    input: Input<Cell<u8, K::Signature>, ()>,
    first_region: u8,
    out: &mut Actions<ForgedProof<K>>,
) where
    P::Cell: From<Cell<u8, K::Signature>>,
    Cell<u8, K::Signature>: From<P::Cell>,
{
    let input = match input {
        Input::Response { memory, id, response } => {
            Input::Response { memory, id, response: convert_response(response) }
        }
        Input::Start => Input::Start,
        Input::Wake => Input::Wake,
        Input::Leader(p) => Input::Leader(p),
        Input::Message { .. } | Input::Coin(_) => return,
    };
    let mut actions = Vec::new();
    part.handle(input, &mut actions);
    out.extend(actions.into_iter().map(|action| offset_regions(action, first_region)));
}

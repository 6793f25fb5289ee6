use core::fmt;
use core::time::Duration;

use mitra_transport::fault::{Failure, Stage};

use super::OpKind;
use crate::{NicId, World};

/// The component that fails in a test case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureTarget {
    /// The requester's link goes down.
    Link,
    /// The requester's NIC dies.
    Requester,
    /// The responder's NIC dies.
    Responder,
    /// Both NICs of the rail die.
    Both,
    /// The requester's NIC hangs: host access fails, and DMA continues.
    RequesterHung,
    /// The responder's NIC hangs.
    ResponderHung,
}

impl FailureTarget {
    /// All failure targets.
    pub const ALL: [FailureTarget; 6] = [
        FailureTarget::Link,
        FailureTarget::Requester,
        FailureTarget::Responder,
        FailureTarget::Both,
        FailureTarget::RequesterHung,
        FailureTarget::ResponderHung,
    ];
}

/// A failure at a stage of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FailureCase {
    /// The stage of the operation at which the failure happens.
    pub stage: Stage,
    /// The component that fails.
    pub target: FailureTarget,
    /// The kind of the operation.
    pub kind: OpKind,
}

impl FailureCase {
    /// Returns every possible case. [`Stage::PartlyExecuted`] is possible only for kinds with
    /// messages of several packets. [`Stage::NotPlaced`] is impossible for a READ, which places
    /// nothing at its responder. Some NICs do not have the cases with
    /// [`FailureCase::requires_early_ack`].
    pub fn all() -> Vec<FailureCase> {
        let mut all = Vec::new();
        for stage in Stage::ALL {
            for target in FailureTarget::ALL {
                let possible = OpKind::ALL.into_iter().filter(|kind| match stage {
                    Stage::PartlyExecuted => {
                        matches!(kind, OpKind::Block | OpKind::WriteImm | OpKind::Send)
                    }
                    Stage::NotPlaced => *kind != OpKind::Read,
                    _ => true,
                });
                all.extend(possible.map(|kind| FailureCase { stage, target, kind }));
            }
        }
        all
    }

    /// Returns whether this case needs a responder that acknowledges data before it has placed them
    /// in memory. Such a responder lacks
    /// [`ack_after_placement`](mitra_verbs::Capabilities::ack_after_placement).
    pub fn requires_early_ack(&self) -> bool {
        self.stage == Stage::NotPlaced
    }

    /// Returns whether the requester's NIC observes the stage. Otherwise, the responder's NIC does.
    pub fn at_requester(&self) -> bool {
        matches!(self.stage, Stage::Posted | Stage::RequestOnWire | Stage::Acknowledged)
    }

    /// Arms the failure, which happens when the `nth` packet reaches the stage. `nics` are the
    /// requester's and the responder's NIC. Packets of all operations count, so the test must not
    /// post operations of other kinds. `hold` delays the `nth` packet as in
    /// [`World::fail_at_stage`]. Returns the NIC that observes the stage.
    pub fn arm(&self, world: &mut World, nics: [NicId; 2], nth: u32, hold: Option<Duration>) -> NicId {
        let [requester, responder] = nics;
        let targets = match self.target {
            FailureTarget::Link => vec![(requester, Failure::LinkDown)],
            FailureTarget::Requester => vec![(requester, Failure::NicDead)],
            FailureTarget::Responder => vec![(responder, Failure::NicDead)],
            FailureTarget::Both => vec![(requester, Failure::NicDead), (responder, Failure::NicDead)],
            FailureTarget::RequesterHung => vec![(requester, Failure::NicHung)],
            FailureTarget::ResponderHung => vec![(responder, Failure::NicHung)],
        };
        let observer = if self.at_requester() { requester } else { responder };
        world.fail_at_stage(observer, self.stage, nth, &targets, hold);
        observer
    }
}

impl fmt::Display for FailureCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "stage {} ({:?}) × {:?} × {}",
            self.stage.number(),
            self.stage,
            self.target,
            self.kind.name()
        )
    }
}

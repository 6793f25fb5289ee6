use core::cell::RefCell;
use core::fmt;
use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use mitra_transport::fault::{Failure, Stage};

use crate::workload::{Endpoint, Kind, Party};
use crate::{App, Config, Ctx, HostId, NicId, SimNic, World};

/// Two hosts, `a` and `b`, with a NIC on each of some rails: what most tests need.
pub struct Rig {
    /// The world that they are in.
    pub world: World,
    /// The hosts.
    pub hosts: [HostId; 2],
    /// Their NICs, by rail.
    pub nics: [Vec<Arc<SimNic>>; 2],
}

impl Rig {
    /// In a world whose faults the seed chooses.
    pub fn new(seed: u64, rails: u8) -> Rig {
        Rig::with(seed, Config::swarm(seed), rails)
    }

    /// In a world that behaves like this.
    pub fn with(seed: u64, config: Config, rails: u8) -> Rig {
        Rig::of(World::with(seed, config), rails)
    }

    /// In this world.
    pub fn of(mut world: World, rails: u8) -> Rig {
        let hosts = ["a", "b"].map(|name| world.add_host(name));
        let nics = hosts.map(|host| (0..rails).map(|rail| world.add_nic(host, rail)).collect());
        Rig { world, hosts, nics }
    }

    /// The NICs of a rail, of both hosts.
    pub fn rail(&self, rail: usize) -> [NicId; 2] {
        [self.nics[0][rail].id(), self.nics[1][rail].id()]
    }
}

/// A party and its endpoint as an application. Both can be looked at from outside.
pub struct PartyApp<E> {
    /// The party.
    pub party: Rc<RefCell<Party>>,
    /// Its endpoint.
    pub endpoint: Rc<RefCell<E>>,
}

impl<E: Endpoint> App for PartyApp<E> {
    fn step(&mut self, ctx: &mut Ctx<'_>) {
        if self.party.borrow_mut().step(&mut *self.endpoint.borrow_mut()) {
            ctx.busy();
        }
    }
}

/// What fails in a test case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum What {
    /// The requester's link.
    Link,
    /// The requester's NIC dies.
    Requester,
    /// The responder's NIC dies.
    Responder,
    /// Both NICs of the rail die.
    Both,
    /// The requester's NIC hangs: it goes on, but does not listen.
    RequesterHung,
    /// The responder's NIC hangs.
    ResponderHung,
}

impl What {
    /// All of them.
    pub const ALL: [What; 6] =
        [What::Link, What::Requester, What::Responder, What::Both, What::RequesterHung, What::ResponderHung];
}

/// One cell of the table that failover must get right: what fails, in which stage of an operation of which kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Case {
    /// Where the operation is.
    pub stage: Stage,
    /// What fails then.
    pub what: What,
    /// What it is.
    pub kind: Kind,
}

impl Case {
    /// Every case that can happen: only a message of several packets can be partly executed, and a READ places
    /// nothing at its responder. Stage 8 needs NICs that do not promise
    /// [`ack_after_placement`](mitra_verbs::Capabilities::ack_after_placement); see [`Case::breaks_promise`].
    pub fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for stage in Stage::ALL {
            for what in What::ALL {
                for kind in Kind::ALL {
                    let case = Case { stage, what, kind };
                    let possible = match stage {
                        Stage::PartlyExecuted => matches!(kind, Kind::Block | Kind::WriteImm | Kind::Send),
                        Stage::NotPlaced => kind != Kind::Read,
                        _ => true,
                    };
                    if possible {
                        all.push(case);
                    }
                }
            }
        }
        all
    }

    /// Whether this case can only happen to a responder that acknowledges before it has placed.
    pub fn breaks_promise(&self) -> bool {
        self.stage == Stage::NotPlaced
    }

    /// Whether the stage is seen at the requester's NIC; else at the responder's.
    pub fn at_requester(&self) -> bool {
        matches!(self.stage, Stage::Posted | Stage::RequestOnWire | Stage::Acknowledged)
    }

    /// Lets it happen in a world: to the `nth` packet of `[requester, responder]` that reaches the stage. Operations
    /// of other kinds count too, so post none. `hold`: what passes at that moment comes so much later.
    pub fn arm(&self, world: &mut World, nics: [NicId; 2], nth: u32, hold: Option<Duration>) -> NicId {
        let [requester, responder] = nics;
        let targets = match self.what {
            What::Link => vec![(requester, Failure::LinkDown)],
            What::Requester => vec![(requester, Failure::NicDead)],
            What::Responder => vec![(responder, Failure::NicDead)],
            What::Both => vec![(requester, Failure::NicDead), (responder, Failure::NicDead)],
            What::RequesterHung => vec![(requester, Failure::NicHung)],
            What::ResponderHung => vec![(responder, Failure::NicHung)],
        };
        let at = if self.at_requester() { requester } else { responder };
        world.on_stage(at, self.stage, nth, &targets, hold);
        at
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage {} ({:?}) × {:?} × {}", self.stage.number(), self.stage, self.what, self.kind.name())
    }
}

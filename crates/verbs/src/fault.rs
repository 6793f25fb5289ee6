//! Faults of NICs and links: what can fail, at which stage of an operation, and the switch of a NIC
//! that fails on demand.
//!
//! `docs/faults.md` defines the stages and the script syntax.

mod script;

use core::net::IpAddr;
use core::time::Duration;

pub use script::{Delay, ScriptError};

/// A kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Failure {
    /// The link is down: no packet passes in either direction, and the port is down. The NIC works.
    LinkDown,
    /// The NIC is dead: host access fails, DMA stops, and no packet passes.
    NicDead,
    /// The NIC is hung: host access fails, but the NIC executes and answers packets.
    NicHung,
    /// The NIC acknowledges writes and delays the placement of their data in memory. If the NIC
    /// dies, the data is lost. If another failure happens, the driver places the data.
    NotPlaced,
}

/// The stage of an operation at which a failure happens. Stages 1, 2 and 7 occur at the requester's
/// NIC, the others at the responder's NIC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// Stage 1: the request is posted and not sent.
    Posted = 1,
    /// Stage 2: the request is sent, and lost on the wire.
    RequestOnWire,
    /// Stage 3: the request has arrived at the responder and is not executed.
    Arrived,
    /// Stage 4: the responder has executed some packets of the message.
    PartlyExecuted,
    /// Stage 5: the responder has executed the message and not acknowledged it.
    Executed,
    /// Stage 6: the acknowledgement or response is sent, and lost on the wire.
    AckOnWire,
    /// Stage 7: the acknowledgement has arrived at the requester, which has not completed the
    /// request.
    Acknowledged,
    /// Stage 8: the responder has acknowledged the message and not placed its data in memory.
    NotPlaced,
}

/// A failure that happens when the `nth` matching packet reaches a stage.
///
/// `docs/faults.md` defines for each stage which packets match, and whether the packet that fires
/// the trigger passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trigger {
    /// The stage whose packets the trigger counts.
    pub stage: Stage,
    /// The number of the packet that fires the trigger, counted from 1 since [`FaultSwitch::arm`].
    pub nth: u32,
    /// The failure that happens then.
    pub failure: Failure,
}

/// The rates of random packet faults, in parts per million of all packets.
///
/// A packet has at most one fault. If the rates add up to more than a million, the later rates in
/// the order drop, corrupt, duplicate, reorder are reduced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Noise {
    /// The rate of lost packets.
    pub drop_ppm: u32,
    /// The rate of packets that are delivered twice.
    pub duplicate_ppm: u32,
    /// The rate of packets that are delayed by a random time of up to `max_delay`, so that later
    /// packets overtake them.
    pub reorder_ppm: u32,
    /// The rate of packets with one flipped bit.
    pub corrupt_ppm: u32,
    /// The longest delay of a reordered packet.
    pub max_delay: Duration,
}

/// A kind of fault, or of its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultKind {
    /// [`FaultSwitch::fail`] with this failure.
    Failure(Failure),
    /// [`FaultSwitch::heal`].
    Heal,
    /// [`FaultSwitch::arm`].
    Trigger,
    /// [`FaultSwitch::set_noise`].
    Noise,
    /// [`FaultSwitch::change_address`].
    Address,
}

/// Makes a NIC and its link fail on demand. The methods work from any thread, also on a dead or
/// hung NIC.
pub trait FaultSwitch {
    /// Checks whether this NIC can have faults of a kind. The method for a kind that is refused
    /// does nothing.
    ///
    /// # Errors
    /// In one line, which faults it can have.
    fn check(&self, kind: FaultKind) -> Result<(), String> {
        let _ = kind;
        Ok(())
    }

    /// Fails the link or the NIC immediately.
    fn fail(&self, failure: Failure);

    /// Brings the link up again, and places the writes that [`Failure::NotPlaced`] has deferred. A
    /// dead or hung NIC stays dead or hung.
    fn heal(&self);

    /// Arms a trigger, which fails the NIC when a packet reaches a stage. Several triggers can be
    /// armed; each counts packets independently and fires once.
    fn arm(&self, trigger: Trigger);

    /// Sets the noise on transmitted packets and on received packets.
    fn set_noise(&self, transmitted: Noise, received: Noise);

    /// Gives the NIC another address of the same family, as when its interface gets one by DHCP.
    /// `None` selects a free one.
    ///
    /// # Errors
    /// Why the NIC cannot have the address, in one line. It then keeps its address.
    fn change_address(&self, address: Option<IpAddr>) -> Result<(), String>;
}

use core::fmt;
use core::time::Duration;

use mitra_verbs::Time;

use crate::timeline::{NoteKind, Subject};
use crate::world_state::{Shared, lock};
use crate::{HostId, Prng};

/// A simulated application, which runs in turns at times that the seed chooses. A closure is an
/// application.
///
/// A turn takes no virtual time and must not block: an application that waits for an event looks
/// for the event, and returns if it has not happened. The next turn comes by itself.
/// [`AppContext::sleep`] waits for a time, and [`AppContext::exit`] ends the application.
///
/// An application holds its NICs as `Arc<SimNic>`. An active application gets turns often. While
/// its turns are idle, the interval between them grows, until an event happens at its host's NICs.
/// A turn is idle if its calls change no state and return no completion or event.
pub trait App {
    /// Runs one turn, in which no virtual time passes.
    fn step(&mut self, ctx: &mut AppContext<'_>);
}

impl<F: FnMut(&mut AppContext<'_>)> App for F {
    fn step(&mut self, ctx: &mut AppContext<'_>) {
        self(ctx);
    }
}

/// The world as an application sees it during a turn.
pub struct AppContext<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) host: HostId,
    pub(crate) app: usize,
    pub(crate) rng: &'a mut Prng,
    pub(crate) next_turn: NextTurn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextTurn {
    Soon,
    At(Time),
    Never,
}

impl AppContext<'_> {
    /// Returns the virtual time. A NIC's own clock may differ.
    pub fn now(&self) -> Time {
        lock(self.shared).now
    }

    /// Returns the application's random number generator.
    pub fn rng(&mut self) -> &mut Prng {
        self.rng
    }

    /// Returns the host that the application runs on.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Schedules the next turn after `time`, or earlier if an event happens at the host's NICs.
    pub fn sleep(&mut self, time: Duration) {
        self.next_turn = NextTurn::At(self.now() + time);
    }

    /// Ends the application.
    pub fn exit(&mut self) {
        self.next_turn = NextTurn::Never;
    }

    /// Marks this turn as active, even if its calls changed no state.
    pub fn mark_active(&mut self) {
        lock(self.shared).hosts[self.host.0].activity += 1;
    }

    /// Adds a line to the trace. The report of a failure shows the end of the trace, and the last
    /// line of each application. So a line that says what the application waits for explains a run
    /// that stalls.
    pub fn trace(&mut self, text: impl fmt::Display) {
        let mut world = lock(self.shared);
        let (now, text) = (world.now, text.to_string());
        world.apps[self.app].last_trace.clone_from(&text);
        world.trace.note(now, Subject::Host(self.host.0), NoteKind::Event, text);
    }

    /// Counts the state of a virtual queue pair of this host in [`Coverage`](crate::Coverage): its
    /// active rail, the epoch of its last failover, and whether it is closed.
    pub fn observe_recovery(&mut self, active_rail: usize, epoch: u64, is_closed: bool) {
        lock(self.shared).cover_program(self.host.0, active_rail, epoch, is_closed);
    }

    /// Returns whether a fault affected a rail before the time `ago`: a NIC or a link of the rail
    /// had failed or was changed at any time before, or a packet on the rail was lost, late or
    /// corrupted in the time `watched` before.
    pub fn was_rail_affected(&self, rail: u8, ago: Duration, watched: Duration) -> bool {
        let world = lock(self.shared);
        let back = |time: Duration| Time::ZERO + world.now.saturating_since(Time::ZERO + time);
        world.disturbances.affected(rail, back(ago + watched), back(ago))
    }

    /// Whether the trace keeps records, so that they are worth making.
    pub fn keeps_trace(&self) -> bool {
        lock(self.shared).trace.is_kept()
    }

    /// Adds a record of this host to the trace. If the trace keeps no records, `text` is not
    /// called.
    pub fn note(&mut self, kind: NoteKind, text: impl FnOnce() -> String) {
        let mut world = lock(self.shared);
        if world.trace.is_kept() {
            let now = world.now;
            world.trace.note(now, Subject::Host(self.host.0), kind, text());
        }
    }
}

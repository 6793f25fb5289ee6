use core::fmt;
use core::time::Duration;

use mitra_verbs::Time;

use crate::world_state::{Shared, lock};
use crate::{HostId, Prng};

/// A simulated application, which runs in turns at times that the seed chooses.
///
/// An application holds its NICs as `Arc<SimNic>`. An active application gets turns often. While its turns
/// are idle, the interval between them grows, until something happens at its host's NICs. A turn is idle if
/// its calls change no state and return no completion or event.
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
    pub(crate) rng: &'a mut Prng,
    pub(crate) next_turn: NextTurn,
}

/// The time of the application's next turn.
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

    /// Schedules the next turn after `time`. It comes earlier if something happens at the host's NICs.
    pub fn sleep(&mut self, time: Duration) {
        self.next_turn = NextTurn::At(self.now() + time);
    }

    /// Ends the application: it gets no more turns.
    pub fn exit(&mut self) {
        self.next_turn = NextTurn::Never;
    }

    /// Marks this turn as active, even if its calls changed no state.
    pub fn mark_active(&mut self) {
        lock(self.shared).hosts[self.host.0].activity += 1;
    }

    /// Adds a line to the trace.
    pub fn trace(&mut self, text: impl fmt::Display) {
        let mut world = lock(self.shared);
        let now = world.now;
        let line = format!("{:<4} {text}", world.hosts[self.host.0].name);
        world.trace.text(now, line);
    }
}

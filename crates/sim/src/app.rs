use core::fmt;
use core::time::Duration;

use mitra_verbs::Time;

use crate::world_state::{Shared, lock};
use crate::{HostId, Prng};

/// A simulated application, which runs in turns at times that the seed chooses.
///
/// An application holds its NICs as `Arc<SimNic>`. A busy application gets turns often. The interval between
/// the turns of an idle one grows until something happens at its host's NICs. A turn is idle if it makes no
/// call that changes anything and polls no completion.
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

/// When the application's next turn is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextTurn {
    Soon,
    At(Time),
    Never,
}

impl AppContext<'_> {
    /// Returns the world's time. A NIC's own clock may differ.
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

    /// Requests the next turn after `time`, or earlier if something happens at the host's NICs.
    pub fn sleep(&mut self, time: Duration) {
        self.next_turn = NextTurn::At(self.now() + time);
    }

    /// Ends the application: it gets no more turns.
    pub fn exit(&mut self) {
        self.next_turn = NextTurn::Never;
    }

    /// Marks this turn as active although it made no call that shows it.
    pub fn mark_active(&mut self) {
        lock(self.shared).hosts[self.host.0].activity += 1;
    }

    /// Writes a line into the trace.
    pub fn trace(&mut self, text: impl fmt::Display) {
        let mut world = lock(self.shared);
        let now = world.now;
        let line = format!("{:<4} {text}", world.hosts[self.host.0].name);
        world.trace.text(now, line);
    }
}

use core::fmt;
use core::time::Duration;

use mitra_verbs::Time;

use crate::fabric::{Shared, lock};
use crate::{HostId, Prng};

/// A program on a host: takes a turn at times that the seed chooses.
///
/// It holds its NICs itself, as `Arc<SimNic>`. Busy programs take turns often; one whose turns do nothing (no call
/// that changes anything, no completion) waits longer and longer, until something happens at its NICs.
pub trait App {
    /// One turn. Time does not pass within it.
    fn step(&mut self, ctx: &mut Ctx<'_>);
}

impl<F: FnMut(&mut Ctx<'_>)> App for F {
    fn step(&mut self, ctx: &mut Ctx<'_>) {
        self(ctx);
    }
}

/// What an application may ask of its host in its turn.
pub struct Ctx<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) host: HostId,
    pub(crate) rng: &'a mut Prng,
    pub(crate) wish: Wish,
}

/// When the application wants its next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Soon,
    At(Time),
    Never,
}

impl Ctx<'_> {
    /// The time. (Of the world: a NIC's own clock may show another.)
    pub fn now(&self) -> Time {
        lock(self.shared).now
    }

    /// The application's own chance.
    pub fn rng(&mut self) -> &mut Prng {
        self.rng
    }

    /// The host that it runs on.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// The next turn shall come after this long, or earlier if something happens at the host's NICs.
    pub fn sleep(&mut self, time: Duration) {
        self.wish = Wish::At(self.now() + time);
    }

    /// The application is done: no more turns.
    pub fn exit(&mut self) {
        self.wish = Wish::Never;
    }

    /// Something happened that the host's other calls do not show: it is not idle.
    pub fn busy(&mut self) {
        lock(self.shared).hosts[self.host.0].activity += 1;
    }

    /// Writes a line into the trace.
    pub fn note(&mut self, text: impl fmt::Display) {
        let mut core = lock(self.shared);
        let now = core.now;
        let line = format!("{:<4} {text}", core.hosts[self.host.0].name);
        core.trace.note(now, line);
    }
}

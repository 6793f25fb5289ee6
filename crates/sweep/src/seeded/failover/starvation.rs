//! Starvation: times in which a part of an end gets no processor, while everything else runs.

use core::time::Duration;

use super::FailoverWorld;
use mitra_sim::workload::FailoverQp;
use mitra_sim::{NicId, Prng};

const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(50);

/// A time without a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Starvation {
    pub(super) begin: Duration,
    pub(super) time: Duration,
    pub(super) end: usize,
    pub(super) part: Part,
}

/// The part of an end that gets no processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// The program, with the progress of all its connections. The NICs continue, as those in
    /// hardware do.
    Program,
    /// The own thread of the NIC on this rail, which then works only for calls of the program.
    Nic(usize),
    /// The program and all its NICs, as when a process with software NICs is stopped.
    Process,
}

/// Draws starvation at ends with so many rails. All of it together takes at most `longest`.
pub(super) fn draw(rng: &mut Prng, rails: usize, longest: Duration) -> Vec<Starvation> {
    let (count, span) = (rng.between(1, 4), 1_000 << rng.below(8));
    let (mut begin, mut left) = (Duration::ZERO, longest);
    let mut starvation = Vec::new();
    for _ in 0..count {
        begin += Duration::from_micros(rng.below(span));
        let micros = rng.between(SHORTEST.as_micros() as u64, LONGEST.as_micros() as u64);
        let time = Duration::from_micros(micros).min(left);
        let rail = rng.index(rails);
        let part = *rng.pick(&[Part::Program, Part::Nic(rail), Part::Process]);
        let end = rng.index(2);
        if time < SHORTEST {
            break;
        }
        starvation.push(Starvation { begin, time, end, part });
        left -= time;
        begin += time;
    }
    starvation
}

/// Returns the time at which the last starvation ends.
pub(super) fn end(starvation: &[Starvation]) -> Duration {
    starvation.iter().map(|s| s.begin + s.time).max().unwrap_or_default()
}

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    pub(super) fn starve(&mut self) {
        for &Starvation { begin, time, end, part } in &self.setup.starvation {
            let host = self.hosts[end];
            let nics: Vec<NicId> = match part {
                Part::Program => Vec::new(),
                Part::Nic(rail) => self.nics[end].iter().skip(rail).take(1).map(|nic| nic.id()).collect(),
                Part::Process => self.nics[end].iter().map(|nic| nic.id()).collect(),
            };
            self.world.after(begin, move |world| {
                let until = world.now() + time;
                if !matches!(part, Part::Nic(_)) {
                    world.pause(host, Some(until));
                }
                for nic in nics {
                    world.starve(nic, until);
                }
            });
        }
    }
}

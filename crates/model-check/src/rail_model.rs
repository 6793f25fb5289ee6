//! The exhaustive exploration of the rail negotiation, and its runs from seeds.

use mitra_prng::Prng;

use crate::rail_settling::stable_period_violation;
use crate::rail_world::ALL_FAILURES;
use crate::{Exhaustive, Exploration, RailFaultLimits, RailRule, RailStep, RailWorld, SeedResult, Violation};

/// The maximum number of steps before the stable period of a run from a seed.
const MAX_RANDOM_STEPS: u64 = 1000;

/// Explores the worlds of a vQP with two rails that are reachable within the limits, while no
/// ballot has an epoch above `max_epoch`. `without` names a rule of the driver that is left out.
pub fn exhaustive_rails(
    limits: RailFaultLimits,
    max_epoch: u16,
    without: Option<RailRule>,
) -> Exhaustive<RailWorld, RailStep> {
    Exhaustive::new(RailWorld::new(limits, without), RailWorld::steps, RailWorld::apply)
        .within(move |world| world.ends.iter().all(|e| e.negotiation.promised().epoch <= max_epoch))
        .always(PROPERTIES[0], |world| world.violation.is_none())
        .always(PROPERTIES[1], |world| {
            world.violation.is_some() || stable_period_violation(world.clone()).is_none()
        })
}

pub(crate) const PROPERTIES: &[&str] = &["safety", "liveness"];

/// Explores worlds with one failure of any kind, with links that go down twice, with an application
/// that closes its end, with one usable rail that fails twice, and with an old home rail that is
/// still in use.
pub(crate) fn explore_small_worlds() -> Exploration {
    let one = exhaustive_rails(RailFaultLimits::ONE_FAILURE, 4, None);
    let links = || exhaustive_rails(RailFaultLimits::TWO_LINKS_DOWN, 3, None).explore();
    one.explore()
        .and_then(links)
        .and_then(|| exhaustive_rails(RailFaultLimits::ONE_CLOSE, 3, None).explore())
        .and_then(|| exhaustive_rails(RailFaultLimits::LAST_RAIL, 3, None).explore())
        .and_then(|| exhaustive_rails(RailFaultLimits::HELD_HOME, 3, None).explore())
}

/// Runs a vQP through random steps from a seed, and then through a stable period. `without` names a
/// rule of the driver that is left out.
pub fn run_rails_from_seed(seed: u64, without: Option<RailRule>) -> SeedResult {
    let mut prng = Prng::new(seed);
    let limits = [
        RailFaultLimits::MANY_FAILURES,
        RailFaultLimits::MANY_FAILURES,
        RailFaultLimits {
            failures: 4,
            kinds: [ALL_FAILURES; 2],
            nics_recover: seed.is_multiple_of(2),
            ..RailFaultLimits::MANY_FAILURES
        },
        RailFaultLimits { late_timers: 1, ..RailFaultLimits::MANY_FAILURES },
        RailFaultLimits { crashes: 1, ..RailFaultLimits::MANY_FAILURES },
        RailFaultLimits { closes: 1, ..RailFaultLimits::MANY_FAILURES },
    ][prng.index(6)];
    let mut world = RailWorld::new(limits, without);
    let steps = prng.below(MAX_RANDOM_STEPS);
    let mut faults = 0;
    for _ in 0..steps {
        let Some(step) = random_step(&mut prng, world.steps()) else { break };
        faults += u32::from(is_fault(&step));
        world.apply(step);
    }
    let violation = world.violation.or_else(|| stable_period_violation(world));
    SeedResult { steps, faults, violation: violation.map(Violation::Property) }
}

fn is_fault(step: &RailStep) -> bool {
    matches!(step, RailStep::Fail { .. } | RailStep::Crash { .. } | RailStep::Close { .. })
}

/// Chooses a step. All kinds of steps but faults are about equally frequent, although many messages
/// may be in transit.
fn random_step(prng: &mut Prng, steps: Vec<RailStep>) -> Option<RailStep> {
    let (faults, others): (Vec<RailStep>, Vec<RailStep>) = steps.into_iter().partition(is_fault);
    if !faults.is_empty() && prng.index(24) == 0 {
        return Some(prng.pick(&faults).clone());
    }
    let (messages, others): (Vec<RailStep>, Vec<RailStep>) =
        others.into_iter().partition(|step| matches!(step, RailStep::Deliver { .. }));
    let choices = if messages.is_empty() || prng.index(2) == 0 { others } else { messages };
    (!choices.is_empty()).then(|| prng.pick(&choices).clone())
}

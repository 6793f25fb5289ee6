//! The smaller worlds of a seed.

use mitra_verbs::Mtu;

use super::fault_schedule::{Fault, FaultSchedule, Rail};
use super::setup::{Polling, Setup};
use crate::seeded::parts::{Parts, less};
use crate::seeded::{Extra, FIRST_GENERATION, Reduction, ReductionError, ReductionStep};
use mitra_sim::workload::Plan;

pub(super) type DrawSetup = fn(u64) -> Setup;

/// Draws the world of a seed, and reduces it.
pub(super) fn draw(
    draw_setup: DrawSetup,
    seed: u64,
    reduction: &Reduction,
) -> Result<(Setup, FaultSchedule), ReductionError> {
    let mut setup = draw_setup(seed);
    let mut schedule = FaultSchedule::draw(seed & !FIRST_GENERATION, &setup);
    if let Some(kept) = &reduction.faults {
        let fault = |&i: &usize| schedule.faults.get(i).copied();
        let faults: Option<Vec<_>> = kept.iter().map(fault).collect();
        let number = schedule.faults.len();
        schedule.faults = faults.ok_or_else(|| {
            ReductionError::new(format!("seed {seed} has {number} faults, numbered from 0"))
        })?;
    }
    if let Some(connections) = reduction.connections {
        setup.plans.truncate(connections.max(1));
    }
    if let Some(rails) = reduction.rails {
        let least = rails_in_use(&setup, &schedule);
        if rails < least {
            return Err(ReductionError::new(format!(
                "the faults and options of seed {seed} need {least} rails"
            )));
        }
        setup.rails.truncate(rails);
    }
    if let Some(operations) = reduction.operations {
        for plans in &mut setup.plans {
            for (plan, operations) in plans.iter_mut().zip(operations) {
                plan.ops = plan.ops.min(operations);
            }
        }
    }
    for &extra in &reduction.without {
        leave_out(&mut setup, extra);
    }
    Ok((setup, schedule))
}

/// Returns reductions that take away more than `reduction`, by one step. The first reduction takes
/// the most away.
pub(super) fn smaller(
    draw_setup: DrawSetup,
    seed: u64,
    reduction: &Reduction,
    step: ReductionStep,
) -> Vec<Reduction> {
    let Ok((setup, schedule)) = draw(draw_setup, seed, reduction) else { return Vec::new() };
    match step {
        ReductionStep::Faults | ReductionStep::Connections | ReductionStep::Operations => {
            let most = |h: usize| setup.plans.iter().map(|plans| plans[h].ops).max().unwrap_or(0);
            let (faults, connections) = (schedule.faults.len(), setup.plans.len());
            let parts = Parts { faults, connections, operations: [most(0), most(1)], extras: Vec::new() };
            parts.smaller(reduction, step)
        }
        ReductionStep::Rails => {
            let least = rails_in_use(&setup, &schedule);
            less(setup.rails.len(), least).map(|n| reduction.with(|r| r.rails = Some(n))).collect()
        }
        ReductionStep::Extras => {
            let changes = |&extra: &Extra| {
                let mut changed = setup.clone();
                leave_out(&mut changed, extra);
                changed != setup
            };
            Extra::ALL.into_iter().filter(changes).map(|extra| reduction.and_without(extra)).collect()
        }
    }
}

/// Returns the least number of rails that includes all rails of faults, the spared rail and the
/// preferred rail.
fn rails_in_use(setup: &Setup, schedule: &FaultSchedule) -> usize {
    let of_faults = schedule.faults.iter().flat_map(|(_, fault)| rails_of(fault));
    let numbers = of_faults.filter_map(|rail| match rail {
        Rail::Number(number) => Some(number),
        Rail::Active => None,
    });
    let others = [schedule.spared_rail, setup.vqp.failback.map(|failback| failback.rail.into())];
    numbers.chain(others.into_iter().flatten()).max().unwrap_or(0) + 1
}

fn rails_of(fault: &Fault) -> Vec<Rail> {
    match *fault {
        Fault::Link { rail, .. }
        | Fault::Nic { rail, .. }
        | Fault::OneWay { rail, .. }
        | Fault::Address { rail, .. }
        | Fault::AtStage { rail, .. }
        | Fault::AtPoint { rail, .. }
        | Fault::AtPacket { rail, .. } => vec![rail],
        Fault::Nap { then, .. } => then.map(|(rail, _)| rail).into_iter().collect(),
        Fault::InRecovery { first, second, .. } => vec![first, second],
        Fault::Leave { .. } => Vec::new(),
    }
}

fn leave_out(setup: &mut Setup, extra: Extra) {
    match extra {
        Extra::Noise => {
            setup.world.link = setup.world.link.without_noise();
            setup.rails.iter_mut().for_each(|rail| rail.link = rail.link.without_noise());
        }
        Extra::Pauses => setup.world.host.pause_ppm = 0,
        Extra::Starvation => setup.starvation.clear(),
        Extra::Windows => setup.options.iter_mut().for_each(|options| options.windows = None),
        Extra::SharedReceives => {
            setup.options.iter_mut().for_each(|options| options.shared_receives = [false; 2]);
        }
        Extra::Durable => {
            setup.vqp.completion_log.iter_mut().for_each(|log| log.durable = false);
        }
        Extra::Log => setup.vqp.completion_log = None,
        Extra::Failback => setup.vqp.failback = None,
        Extra::LazyPolls => setup.polling = [Polling::Always; 2],
        Extra::Shapes => plans(setup).for_each(|plan| {
            (plan.inline_limit, plan.sges, plan.unsignalled_ppm) = (Some(0), 1, 0);
            (plan.empty_ppm, plan.empty_block_ppm) = (0, 0);
        }),
        Extra::Fences => plans(setup).for_each(|plan| {
            (plan.fence_ppm, plan.overwritten_read_ppm, plan.counted_read_ppm) = (0, 0, 0);
        }),
        Extra::Mtu => setup.rails.iter_mut().for_each(|rail| rail.mtu = [Mtu::M1024; 2]),
        Extra::Cells | Extra::Counter | Extra::Latch | Extra::Mutex | Extra::Mailboxes => {}
    }
}

fn plans(setup: &mut Setup) -> impl Iterator<Item = &mut Plan> {
    setup.plans.iter_mut().flatten()
}

#[cfg(test)]
mod tests {
    use super::super::run_reduced;
    use super::*;

    fn reduced(seed: u64, text: &str) -> crate::seeded::SeedRun {
        run_reduced(Setup::draw, seed, &text.parse().unwrap(), 1).unwrap()
    }

    /// Returns the first seed with one connection, a few operations of each end, and several
    /// faults.
    fn seed_with_faults() -> u64 {
        let has_all = |&seed: &u64| {
            let (setup, schedule) = draw(Setup::draw, seed, &Reduction::default()).unwrap();
            let [plans] = &setup.plans[..] else { return false };
            plans.iter().all(|plan| plan.ops > 4) && schedule.faults.len() > 2
        };
        (0..).find(has_all).unwrap()
    }

    #[test]
    fn reduction_takes_faults_and_operations_away() {
        let seed = seed_with_faults();
        let whole = run_reduced(Setup::draw, seed, &Reduction::default(), 1).unwrap();
        assert!(whole.schedule.len() > 2 && whole.operations > 8, "{}", whole.operations);
        let one = reduced(seed, "faults=1,operations=4+3,without=noise+pauses");
        assert_eq!((&one.findings, one.operations), (&Vec::new(), 7));
        assert_eq!(one.schedule.len(), 1);
        assert!(whole.schedule.contains(&one.schedule[0]), "{:?}", one.schedule);
        assert_eq!(reduced(seed, "faults=none").faults, 0);
    }

    #[test]
    fn starvation_is_left_out_by_its_word() {
        let seed = (0..).find(|&seed| !Setup::draw(seed).starvation.is_empty()).unwrap();
        let is_starved =
            |run: &crate::seeded::SeedRun| run.setup.iter().any(|line| line.contains("Starvation"));
        let whole = run_reduced(Setup::draw, seed, &Reduction::default(), 1).unwrap();
        let left = reduced(seed, "without=starvation");
        assert_eq!((is_starved(&whole), is_starved(&left)), (true, false));
        assert_ne!(whole.trace_hash, left.trace_hash, "seed {seed} is starved");
        let offered = smaller(Setup::draw, seed, &Reduction::default(), ReductionStep::Extras);
        assert!(offered.iter().any(|reduction| reduction.lacks(Extra::Starvation)));
    }

    #[test]
    fn reduction_that_a_seed_cannot_have_is_refused() {
        for text in ["faults=99", "rails=0"] {
            let error = run_reduced(Setup::draw, 6, &text.parse().unwrap(), 0).unwrap_err().to_string();
            assert!(error.contains("seed 6"), "{error}");
        }
    }
}

//! Counts rounds and messages in the simulator: of HBO (hybrid Ben-Or, a consensus protocol) by
//! graph and number of crashes, and of Ω (leader election) after stabilization.

use anyhow::{Context, ensure};
use mitra_consensus::omega::Omega;
use mitra_consensus::{AllRules, ProcessId, ProcessSet};
use mitra_model_check::{FaultLimits, Step, message_cost, protocol_worlds};
use mitra_topology::{Graph, Measures, generators};

use crate::report::{Blocks, Row, quantile};

/// The graphs, by family and size.
const GRAPHS: [(&str, &[usize]); 4] =
    [("complete", &[8]), ("hypercube", &[3]), ("ring", &[8]), ("petersen", &[])];
/// The number of runs per graph and number of crashes.
const SEEDS: u64 = 200;
/// The number of steps within which every live process must decide.
const MAX_STEPS: u32 = 1_000_000;

/// Returns HBO's rounds and messages until all live processes have decided, without crashes and
/// with the largest number of crashes that HBO tolerates on the graph. The seed determines the
/// order of steps, the coins and the crashes. Half of the processes propose each value.
pub(super) fn hbo() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, sizes) in GRAPHS {
        let graph = generators::generate(name, sizes, 0)?;
        let max_crashes = Measures::of(&graph, 0, &|_| ()).hbo_f.at_least;
        let sized = match sizes {
            [n] => format!("{name}-{n}"),
            _ => name.to_owned(),
        };
        for crashes in [0, max_crashes] {
            let (mut rounds, mut messages) = (Vec::new(), Vec::new());
            for seed in 0..SEEDS {
                let world = protocol_worlds::hbo::<AllRules>(&neighbours(&graph), FaultLimits::default());
                let cost = message_cost(seed, world, crashes, MAX_STEPS).with_context(|| {
                    format!(
                        "HBO on {sized} with {crashes} crashes, seed {seed}: a live process did not decide"
                    )
                })?;
                rounds.push(cost.attempts as f64);
                messages.push(cost.messages as f64);
            }
            for (counter, unit, counted) in [("rounds", "rounds", rounds), ("messages", "messages", messages)]
            {
                let mut one = Blocks::default();
                one.push(quantile(&counted, 0.5), quantile(&counted, 0.99));
                rows.push(one.row(format!("hbo/{counter}/{sized}/f={crashes}"), unit));
            }
        }
    }
    Ok(rows)
}

fn neighbours(graph: &Graph) -> Vec<ProcessSet> {
    let of = |v: u32| {
        let all = graph.neighbours(v).iter().map(|&u| ProcessId(u as u8));
        all.fold(ProcessSet::NONE, ProcessSet::with)
    };
    graph.vertices().map(of).collect()
}

/// The number of rounds of a measurement. The benchmark measures twice and reports the second
/// measurement, in which the election has stabilized.
const ROUNDS: usize = 1000;

/// Returns the number of messages of Ω in [`ROUNDS`] rounds after stabilization.
pub(super) fn omega() -> anyhow::Result<Row> {
    let n = 4;
    let mut world = protocol_worlds::omega::<AllRules>(n, FaultLimits::default());
    let mut messages = [0; 2];
    for half in &mut messages {
        for _ in 0..ROUNDS {
            world.pass_delay();
            (0..n).for_each(|p| world.apply(Step::Wake(ProcessId(p))));
            *half += world.messages_in_transit();
        }
    }
    let leaders: Vec<_> = (0..n).filter_map(|p| world.process(ProcessId(p)).map(Omega::leader)).collect();
    ensure!(
        leaders.iter().all(|leader| *leader == leaders[0]),
        "the election has not stabilized: the processes name {}; this is a defect of Mitra, please report it",
        leaders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    );
    let mut one = Blocks::default();
    one.push(messages[1] as f64, messages[1] as f64);
    Ok(one.row("omega/messages".into(), "messages"))
}

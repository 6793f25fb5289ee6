//! What a vQP makes of the failure in a theorem's steps: the program's operation on two rails of
//! the simulator, with policy `exact`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mitra_failover::{Completion, Config, Domain, Outcome, VirtualQp};
use mitra_model_check::{Atomic, ResendStep};
use mitra_sim::{Failure, Stage, Testbed};
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};
use serde::Serialize;

const POLL_INTERVAL: Duration = Duration::from_micros(5);
/// The number of polls before the operation is posted, and after it: 10 ms, by which the vQP has
/// moved and a late request has arrived.
const POLLS: [usize; 2] = [100, 2_000];
/// The time by which a late request is delayed. The vQP has moved by then.
const LATE: Duration = Duration::from_millis(2);

/// The state after the operation on a vQP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct VqpEnd {
    /// How often the operation changed the word.
    executions: u64,
    /// The number of completions with success.
    completions: usize,
    /// The value that the requester has.
    value: u64,
    word: u64,
}

impl fmt::Display for VqpEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VqpEnd { executions, completions, value, word } = self;
        write!(f, "executions {executions}, completions {completions} with the value {value}, word {word}")
    }
}

/// The failure of rail 0 in the steps of a model.
struct RailFailure {
    /// The responder has executed the request, and the answer is lost.
    is_executed: bool,
    /// The request arrives after the requester has given the rail up.
    is_late: bool,
    /// Another client sets the word to 0 when the request has been executed.
    is_reset: bool,
}

impl RailFailure {
    fn of(steps: &[ResendStep]) -> RailFailure {
        let position = |wanted: fn(&ResendStep) -> bool| steps.iter().position(wanted);
        let fails = position(|step| matches!(step, ResendStep::Fail { rail: 0 }));
        let executes = position(|step| matches!(step, ResendStep::Execute { rail: 0 }));
        let is_executed = executes.is_some() && executes < fails;
        let is_late = executes.is_some() && !is_executed;
        RailFailure { is_executed, is_late, is_reset: steps.contains(&ResendStep::Reset) }
    }
}

/// Posts the operation on a vQP. Rail 0 fails as in these steps.
///
/// # Errors
/// The errors of the vQP. None occurs if the simulator and the vQP work.
pub(super) fn run(operation: Atomic, steps: &[ResendStep]) -> anyhow::Result<VqpEnd> {
    let failure = RailFailure::of(steps);
    let mut testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let [a, b] = testbed.rail(0);
    let memory = [(); 2].map(|()| Arc::new(Buffer::new(64)));
    let mut ends = Vec::new();
    for (nics, buffer) in testbed.nics.iter().zip(&memory) {
        let domain = Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())?;
        let mr = domain.register(buffer, Access::LOCAL_WRITE | Access::REMOTE)?;
        ends.push((VirtualQp::builder(&domain).config(Config::default()).build()?, mr));
    }
    let [(vqp, result), (peer, word)] = &mut ends[..] else { unreachable!("there are two ends") };
    let infos = [vqp.local_info(), peer.local_info()];
    vqp.connect(&infos[1])?;
    peer.connect(&infos[0])?;
    vqp.import(&word.remote())?;

    let mut completions: Vec<Completion> = Vec::new();
    let (mut executions, mut last) = (0, 0);
    for phase in [0, 1] {
        if phase == 1 {
            let down = [(a, Failure::LinkDown)];
            let (at, stage, hold) = match failure {
                RailFailure { is_executed: true, .. } => (b, Stage::AckOnWire, None),
                RailFailure { is_late: true, .. } => (a, Stage::RequestOnWire, Some(LATE)),
                _ => (a, Stage::RequestOnWire, None),
            };
            testbed.world.fail_at_stage(at, stage, 1, &down, hold);
            let remote = word.remote().at(0);
            let op = match operation {
                Atomic::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
                Atomic::CompareSwap => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            };
            vqp.post_send(SendWr::new(1, op, Data::sge(result.sge(0, 8))))?;
        }
        for _ in 0..POLLS[phase] {
            vqp.poll(&mut completions);
            peer.poll(&mut Vec::new());
            testbed.world.run_for(POLL_INTERVAL);
            let word = memory[1].load(0);
            executions += word - last;
            last = word;
            if failure.is_reset
                && failure.is_executed
                && executions == 1
                && word == 1
                && completions.is_empty()
            {
                memory[1].store(0, 0);
                last = 0;
            }
        }
    }
    vqp.close_reason().map_or(Ok(()), |reason| Err(anyhow::anyhow!("the vQP has closed: {reason:?}")))?;
    completions.first().context("the operation has not ended")?;
    let completions = completions.iter().filter(|completion| completion.outcome == Outcome::Success).count();
    Ok(VqpEnd { executions, completions, value: memory[0].load(0), word: memory[1].load(0) })
}

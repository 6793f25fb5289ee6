//! Operations of every kind in flight while a rail or the peer fails: none is lost, none takes
//! effect twice, and no value is wrong. A client that sends everything again doubles operations.

mod exchange;
mod killed_requester;
mod peer;
mod verdicts;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_failover::{CompletionLogConfig, Config, Domain, Policy, VirtualMr, VirtualQp};
use mitra_qualify::QualificationStore;
use mitra_qualify::testing::{FaultyNic, NicFault};
use mitra_verbs::fault::Failure::LinkDown;
use mitra_verbs::{Access, Buffer, LocalAckTimeout, Nic, PortState, Provider};

pub use peer::run as run_peer;

use crate::devices::Devices;
use crate::link_faults::Fault;
use crate::rails::Ends;
use exchange::{Exchange, Receiver, exchange};
use peer::OtherProcess;
use verdicts::{check, count_doubled};

/// The operations of a trial at most.
const OPERATIONS: u64 = 8192;
const WRITE: u32 = 64 << 10;
/// The length of the responder's memory: two words for atomics, the place of WRITEs, and a word for
/// each message.
const FAR_BYTES: usize = 4096 + WRITE as usize + 8 * OPERATIONS as usize;

/// How long the client waits for a killed peer.
const KILLED_PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// What the client's memory holds where no value was stored.
const UNSTORED: u64 = u64::MAX;

/// What the decisions rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Evidence {
    Psn,
    Log,
    Both,
    /// The number that the NIC reports never moves, and the log decides.
    FrozenPsn,
    /// Nothing is decided: the client sends everything again.
    Blanket,
}

/// What fails in a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Rail(Fault),
    /// The link of the requester's NIC of rail 0, on demand.
    LinkOnDemand,
    /// The link of the responder's.
    PeerLinkOnDemand,
    /// The peer's process, by SIGKILL.
    PeerKilled,
}

/// The operations of some trials, and those among them that did not simply succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    trials: u32,
    moved: u32,
    operations: u64,
    value_lost: u64,
    indeterminate: u64,
    /// Operations that nobody can decide, because the peer is gone.
    undecided: u64,
    behind_error: u64,
    not_executed: u64,
    /// Atomics that the NIC itself completed with success without storing the value.
    unstored: u64,
    /// Operations that took effect twice. A client that decides by evidence has none, or its trial
    /// fails.
    doubled: u64,
}

fn trials_of_each_failure() -> u32 {
    std::env::var("MITRA_TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

type Test = fn(&Devices) -> Result<(), Failed>;

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let tests: [(&str, Test); 6] = [
        ("by_psn", |devices| run_all(devices, Evidence::Psn)),
        ("by_log", |devices| run_all(devices, Evidence::Log)),
        ("by_both", |devices| run_all(devices, Evidence::Both)),
        ("with_frozen_psn", |devices| run_all(devices, Evidence::FrozenPsn)),
        ("blanket_doubles", |devices| run_all(devices, Evidence::Blanket)),
        ("killed_requester_leaves_a_prefix", kill_requesters),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            let devices = devices.cloned();
            Trial::test(format!("central_schedule::{name}"), move || test(&*devices.ok_or("no devices")?))
        })
        .collect()
}

/// Returns the result of no qualification. A NIC that is not qualified reports no number that
/// decides.
fn unqualified() -> Result<QualificationStore, Failed> {
    Ok(QualificationStore::load(Path::new("/nonexistent"))?)
}

fn kill_requesters(devices: &Devices) -> Result<(), Failed> {
    if devices.rails().len() < 4 {
        println!("needs two rails");
        return Ok(());
    }
    let ends = Ends::open(devices.rails(), &unqualified()?, |nic| nic as Arc<dyn Provider>);
    for evidence in [Evidence::Psn, Evidence::Log] {
        for _ in 0..trials_of_each_failure() {
            killed_requester::trial(&ends, evidence).map_err(|why| format!("{evidence:?}: {why}"))?;
        }
    }
    Ok(())
}

fn run_all(devices: &Devices, evidence: Evidence) -> Result<(), Failed> {
    if !devices.are_rxe() || devices.rails().len() < 4 {
        println!("needs the links of the emulated machine, which can be made to fail");
        return Ok(());
    }
    let unqualified = unqualified()?;
    let store =
        if matches!(evidence, Evidence::Psn | Evidence::Both) { devices.store() } else { &unqualified };
    let ends = Ends::open(devices.rails(), store, |nic| match evidence {
        Evidence::FrozenPsn => Arc::new(FaultyNic::new(nic, NicFault::FrozenPsn)),
        _ => nic as Arc<dyn Provider>,
    });
    // The operations of a client without a peer are not sent again, so nothing doubles them.
    let killed = (evidence != Evidence::Blanket).then_some(Failure::PeerKilled);
    let on_demand = (evidence == Evidence::Psn)
        .then_some([Failure::LinkOnDemand, Failure::PeerLinkOnDemand])
        .into_iter()
        .flatten();
    let mut doubled = 0;
    for failure in Fault::ONE_SIDED.map(Failure::Rail).into_iter().chain(on_demand).chain(killed) {
        let mut counts = Counts::default();
        for _ in 0..trials_of_each_failure() {
            trial(&ends, evidence, failure, &mut counts).map_err(|why| format!("{failure:?}: {why}"))?;
        }
        println!("{evidence:?}, {failure:?}: {counts:?}");
        doubled += counts.doubled;
    }
    // Otherwise the trials would not show what the evidence is for.
    if evidence == Evidence::Blanket && doubled == 0 {
        return Err("sending everything again doubled no operation".into());
    }
    Ok(())
}

fn config(evidence: Evidence) -> Config {
    let mut config = Config::default();
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(12);
    config.detector.retry_cnt = 3;
    config.send_wrs = 64;
    config.recv_wrs = 64;
    config.completion_log = match evidence {
        Evidence::Psn | Evidence::Blanket => None,
        Evidence::Log | Evidence::Both | Evidence::FrozenPsn => Some(CompletionLogConfig::default()),
    };
    if evidence == Evidence::Blanket {
        config.policy = Policy::Blanket;
    }
    config
}

struct Memory {
    buffer: Arc<Buffer>,
    mr: VirtualMr,
}

impl Memory {
    fn new(domain: &Domain, buffer: Arc<Buffer>) -> Result<Memory, String> {
        let mr = domain.register(&buffer, Access::LOCAL_WRITE | Access::REMOTE);
        Ok(Memory { buffer, mr: mr.map_err(|error| error.to_string())? })
    }
}

/// What the thread that makes a rail fail and the exchange tell each other.
#[derive(Default)]
struct Phase {
    is_begun: AtomicBool,
    is_failed: AtomicBool,
}

fn trial(ends: &Ends, evidence: Evidence, failure: Failure, counts: &mut Counts) -> Result<(), String> {
    let mut config = config(evidence);
    if failure == Failure::PeerKilled {
        config.peer_timeout = KILLED_PEER_TIMEOUT;
    }
    let client = VirtualQp::builder(&ends.client).config(config).build();
    let mut client = client.map_err(|error| error.to_string())?;
    let near = Memory::new(&ends.client, Arc::new(Buffer::new(8 * OPERATIONS as usize + WRITE as usize)))?;
    let (mut here, mut other) = (None, None);
    let (info, region, far) = match failure {
        Failure::Rail(_) | Failure::LinkOnDemand | Failure::PeerLinkOnDemand => {
            let mut server = Receiver::new(&ends.server, config, Arc::new(Buffer::new(FAR_BYTES)))?;
            let (info, region) = server.connect(&client.local_info())?;
            let far = server.memory();
            here = Some(server);
            (info, region, far)
        }
        Failure::PeerKilled => {
            let mut process = OtherProcess::start()?;
            let (info, region) = process.connect(evidence, &client.local_info())?;
            let far = process.memory();
            other = Some(process);
            (info, region, far)
        }
    };
    client.connect(&info).map_err(|error| error.to_string())?;
    client.import(&region).map_err(|error| error.to_string())?;

    let phase = Phase::default();
    let injection = match failure {
        Failure::Rail(fault) => Some(fault.prepare(0)),
        _ => None,
    };
    let failing_nic = match failure {
        Failure::LinkOnDemand => Some(&ends.nics[0]),
        Failure::PeerLinkOnDemand => Some(&ends.nics[1]),
        _ => None,
    };
    let outcomes = thread::scope(|scope| {
        let failing = scope.spawn(|| {
            while !phase.is_begun.load(Ordering::Acquire) {
                thread::yield_now();
            }
            drop(other.take());
            if let Some(injection) = injection {
                injection.inject();
            }
            if let Some(switch) = failing_nic.and_then(|nic| nic.fault_switch()) {
                switch.fail(LinkDown);
            }
            phase.is_failed.store(true, Ordering::Release);
        });
        let result = exchange(&mut client, here.as_mut(), &near, &region, &phase);
        phase.is_begun.store(true, Ordering::Release);
        failing.join().map_err(|_| "the failure could not be caused".to_owned())?;
        if let Failure::Rail(fault) = failure {
            fault.heal(0);
        }
        if let Some(switch) = failing_nic.and_then(|nic| nic.fault_switch()) {
            switch.heal();
        }
        result
    })?;
    // The vQP ends with its peer, and not with a rail.
    if client.close_reason().is_some() != (failure == Failure::PeerKilled) {
        return Err(format!("the client's vQP is closed: {:?}", client.close_reason()));
    }
    if failing_nic.is_some() && client.active_rail() == 0 {
        return Err("the vQP did not leave the rail".to_owned());
    }
    let exchange = Exchange { outcomes, messages: exchange::messages(here.as_ref(), &far) };
    counts.trials += 1;
    counts.moved += u32::from(client.active_rail() != 0);
    counts.operations += exchange.outcomes.len() as u64;
    match evidence {
        Evidence::Blanket => counts.doubled += count_doubled(&exchange, &far),
        _ => check(&exchange, &near.buffer, &far, failure, counts)?,
    }
    let _ = client.close();
    drop(client);
    if let Some(server) = here {
        server.end(&ends.server)?;
    }
    ends.client.deregister(&near.mr).map_err(|error| error.to_string())?;
    wait_for_rail(ends);
    Ok(())
}

/// Waits until the ports of rail 0 are up again.
fn wait_for_rail(ends: &Ends) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let is_down = |nic: &dyn Provider| nic.query_port().is_ok_and(|port| port.state != PortState::Active);
    while ends.nics.iter().any(|nic| is_down(&**nic)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

//! Operations of every kind in flight while a rail fails: none is lost, none takes effect twice,
//! and no value is wrong.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_failover::{
    CompletionLogConfig, Config, Outcome, Resolution, UnresolvedError, VirtualMr, VirtualQp,
};
use mitra_qualify::QualificationStore;
use mitra_qualify::testing::{FaultyNic, NicFault};
use mitra_verbs::{
    Access, Buffer, Data, LocalAckTimeout, Provider, RecvWr, RemoteAddr, SendOp, SendWr, WcStatus,
};

use crate::devices::Devices;
use crate::rails::{Ends, Fault};

/// The operations of a trial at most.
const OPERATIONS: u64 = 8192;
/// The operations that are posted before a rail fails, and after it has failed.
const BEFORE: u64 = 16;
const AFTER: u64 = 24;
/// The receives that wait for messages.
const RECEIVES: u64 = 32;
/// The operations in flight.
const WINDOW: u64 = 12;
const WRITE: u32 = 64 << 10;

/// What the decisions rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Evidence {
    Psn,
    Log,
    Both,
    /// The number that the NIC reports never moves, and the log decides.
    FrozenPsn,
}

/// The operations of a trial that did not succeed, and those that did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    trials: u32,
    moved: u32,
    operations: u64,
    value_lost: u64,
    indeterminate: u64,
    behind_error: u64,
    not_executed: u64,
    /// Atomics that the NIC itself completed with success without storing the value.
    unstored: u64,
}

/// What the client's memory holds where no value was stored.
const UNSTORED: u64 = u64::MAX;

fn trials_of_each_fault() -> u32 {
    std::env::var("MITRA_TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    [
        ("by_psn", Evidence::Psn),
        ("by_log", Evidence::Log),
        ("by_both", Evidence::Both),
        ("with_frozen_psn", Evidence::FrozenPsn),
    ]
    .into_iter()
    .map(|(name, evidence)| {
        let devices = devices.cloned();
        Trial::test(format!("central_schedule::{name}"), move || {
            run_all(&*devices.ok_or("no devices")?, evidence)
        })
    })
    .collect()
}

fn run_all(devices: &Devices, evidence: Evidence) -> Result<(), Failed> {
    if !devices.are_rxe() || devices.rails().len() < 4 {
        println!("needs the links of the emulated machine, which can be made to fail");
        return Ok(());
    }
    // A NIC that is not qualified reports no number that decides.
    let unqualified = QualificationStore::load(Path::new("/nonexistent")).map_err(|e| e.to_string())?;
    let store =
        if matches!(evidence, Evidence::Psn | Evidence::Both) { devices.store() } else { &unqualified };
    let ends = Ends::open(devices.rails(), store, |nic| match evidence {
        Evidence::FrozenPsn => Arc::new(FaultyNic::new(nic, NicFault::FrozenPsn)),
        _ => nic as Arc<dyn Provider>,
    });
    for fault in Fault::ALL {
        let mut counts = Counts::default();
        for _ in 0..trials_of_each_fault() {
            trial(&ends, evidence, fault, &mut counts).map_err(|why| format!("{fault:?}: {why}"))?;
        }
        println!("{evidence:?}, {fault:?}: {counts:?}");
    }
    Ok(())
}

struct Memory {
    buffer: Arc<Buffer>,
    mr: VirtualMr,
}

impl Memory {
    fn new(domain: &mitra_failover::Domain, len: usize) -> Memory {
        let buffer = Arc::new(Buffer::new(len));
        let mr =
            domain.register(&buffer, Access::LOCAL_WRITE | Access::REMOTE).expect("memory is registered");
        Memory { buffer, mr }
    }
}

/// What the thread that makes a rail fail and the exchange tell each other.
#[derive(Default)]
struct Phase {
    is_begun: AtomicBool,
    is_failed: AtomicBool,
}

/// Where the server's receive `i` puts its message.
fn inbox(i: u64) -> u64 {
    4096 + u64::from(WRITE) + 8 * i
}

fn receive(far: &Memory, i: u64) -> RecvWr {
    RecvWr::new(i, far.mr.sge(inbox(i), 8))
}

/// Where operation `i` puts what it receives, or takes what it sends, in the client's memory.
fn place(i: u64) -> u64 {
    i * 8
}

fn operation(i: u64, remote: impl Fn(u64) -> RemoteAddr) -> SendOp {
    match i % 4 {
        0 => SendOp::FetchAdd { remote: remote(0), add: 1 },
        1 => SendOp::CompareSwap { remote: remote(8), compare: i / 4, swap: i / 4 + 1 },
        2 => SendOp::Write(remote(4096)),
        _ => SendOp::Send,
    }
}

fn trial(ends: &Ends, evidence: Evidence, fault: Fault, counts: &mut Counts) -> Result<(), String> {
    let mut config = Config::default();
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(12);
    config.detector.retry_cnt = 3;
    config.send_wrs = 64;
    config.recv_wrs = 64;
    if matches!(evidence, Evidence::Psn) {
        config.completion_log = None;
    } else {
        config.completion_log = Some(CompletionLogConfig::default());
    }
    let new = |domain| VirtualQp::builder(domain).config(config).build().map_err(|error| error.to_string());
    let (mut client, mut server) = (new(&ends.client)?, new(&ends.server)?);
    let (client_info, server_info) = (client.local_info(), server.local_info());
    client.connect(&server_info).map_err(|error| error.to_string())?;
    server.connect(&client_info).map_err(|error| error.to_string())?;

    let near = Memory::new(&ends.client, 8 * OPERATIONS as usize + WRITE as usize);
    let far = Memory::new(&ends.server, 4096 + WRITE as usize + 8 * OPERATIONS as usize);
    let region = far.mr.remote();
    client.import(&region).map_err(|error| error.to_string())?;
    for i in 0..RECEIVES {
        server.post_recv(receive(&far, i)).map_err(|error| error.to_string())?;
    }

    let phase = Phase::default();
    let outcome = thread::scope(|scope| {
        let failing = scope.spawn(|| {
            while !phase.is_begun.load(Ordering::Acquire) {
                thread::yield_now();
            }
            fault.inject(0);
            phase.is_failed.store(true, Ordering::Release);
        });
        let result = exchange(&mut client, &mut server, &near, &far, &region, &phase);
        phase.is_begun.store(true, Ordering::Release);
        failing.join().map_err(|_| "the fault could not be injected".to_owned())?;
        fault.heal(0);
        result
    });
    let Exchange { outcomes, received } = outcome?;
    counts.trials += 1;
    counts.moved += u32::from(client.active_rail() != 0);
    counts.operations += outcomes.len() as u64;
    check(&outcomes, &received, &near, &far, counts)?;
    let _ = (client.close(), server.close());
    drop((client, server));
    let deregistered = ends.client.deregister(&near.mr).and(ends.server.deregister(&far.mr));
    deregistered.map_err(|error| error.to_string())?;
    wait_for_rail(ends);
    Ok(())
}

/// Waits until the ports of rail 0 are up again.
fn wait_for_rail(ends: &Ends) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while ends
        .nics
        .iter()
        .any(|nic| nic.query_port().is_ok_and(|port| port.state != mitra_verbs::PortState::Active))
        && Instant::now() < deadline
    {
        thread::sleep(Duration::from_millis(1));
    }
}

struct Exchange {
    outcomes: BTreeMap<u64, (Outcome, Resolution)>,
    received: Vec<u64>,
}

fn exchange(
    client: &mut VirtualQp,
    server: &mut VirtualQp,
    near: &Memory,
    far: &Memory,
    region: &mitra_failover::RemoteRegion,
    phase: &Phase,
) -> Result<Exchange, String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut posted, mut outcomes, mut received) = (0, BTreeMap::new(), Vec::new());
    let (mut done, mut arrived) = (Vec::new(), Vec::new());
    let mut receives = RECEIVES;
    let mut last = OPERATIONS;
    // The peer keeps driving until the client has all answers.
    while (outcomes.len() as u64) < last {
        if Instant::now() > deadline {
            let reasons = (client.close_reason(), server.close_reason());
            return Err(format!("{} of {posted} operations ended; closed: {reasons:?}", outcomes.len()));
        }
        while posted < last && posted - (outcomes.len() as u64) < WINDOW && !client.is_halted() {
            let i = posted;
            let op = operation(i, |offset| region.at(offset));
            let data = match op {
                SendOp::Write(_) => {
                    near.buffer.write_at(8 * OPERATIONS as usize, &i.to_le_bytes());
                    Data::sge(near.mr.sge(8 * OPERATIONS, WRITE))
                }
                SendOp::Send => {
                    near.buffer.store(place(i) as usize, i);
                    Data::sge(near.mr.sge(place(i), 8))
                }
                _ => {
                    near.buffer.store(place(i) as usize, UNSTORED);
                    Data::sge(near.mr.sge(place(i), 8))
                }
            };
            match client.post_send(SendWr::new(i, op, data)) {
                Ok(_) => posted += 1,
                Err(_) if client.close_reason().is_some() => {
                    outcomes.insert(i, (Outcome::Failed(WcStatus::Flushed), Resolution::Direct));
                    posted += 1;
                }
                Err(_) => break,
            }
        }
        if posted >= BEFORE {
            phase.is_begun.store(true, Ordering::Release);
        }
        if last == OPERATIONS && phase.is_failed.load(Ordering::Acquire) {
            last = OPERATIONS.min(posted + AFTER);
        }
        client.poll(&mut done);
        server.poll(&mut arrived);
        outcomes.extend(
            done.drain(..).map(|completion| (completion.wr_id, (completion.outcome, completion.resolution))),
        );
        received.extend(arrived.drain(..).filter(|c| c.is_success()).map(|completion| completion.wr_id));
        while receives < RECEIVES + received.len() as u64 && server.post_recv(receive(far, receives)).is_ok()
        {
            receives += 1;
        }
        if client.is_halted() {
            client.resume();
        }
        if server.is_halted() {
            server.resume();
        }
        thread::yield_now();
    }
    // The last SENDs may complete at the receiver after the sender.
    let settled = Instant::now() + Duration::from_millis(50);
    while Instant::now() < settled {
        client.progress();
        server.poll(&mut arrived);
        received.extend(arrived.drain(..).filter(|c| c.is_success()).map(|completion| completion.wr_id));
    }
    Ok(Exchange { outcomes, received })
}

/// Compares what the operations said with what is in memory.
fn check(
    outcomes: &BTreeMap<u64, (Outcome, Resolution)>,
    received: &[u64],
    near: &Memory,
    far: &Memory,
    counts: &mut Counts,
) -> Result<(), String> {
    let (mut adds, mut maybe_adds) = (0, 0);
    let mut values = Vec::new();
    let (mut sends, mut maybe_sends) = (Vec::new(), 0);
    for (&i, (outcome, resolution)) in outcomes {
        let (executed, maybe) = match outcome {
            Outcome::Success => (true, false),
            Outcome::Unresolved(UnresolvedError::ValueLost) => {
                counts.value_lost += 1;
                (true, false)
            }
            Outcome::Unresolved(UnresolvedError::ExecutedBehindError) => {
                counts.behind_error += 1;
                (true, false)
            }
            Outcome::Unresolved(UnresolvedError::Indeterminate) => {
                counts.indeterminate += 1;
                (false, true)
            }
            Outcome::Failed(WcStatus::Flushed) => {
                counts.not_executed += 1;
                (false, false)
            }
            other => return Err(format!("operation {i}: {other:?}")),
        };
        match i % 4 {
            0 => {
                adds += u64::from(executed);
                maybe_adds += u64::from(maybe);
                match near.buffer.load(place(i) as usize) {
                    _ if *outcome != Outcome::Success => {}
                    // soft-RoCE of Linux 6.1 completes an atomic whose own answer was lost by the
                    // acknowledgement of a repeated request before it, which has no value.
                    UNSTORED if *resolution == Resolution::Direct => counts.unstored += 1,
                    value => values.push(value),
                }
            }
            1 if *outcome == Outcome::Success
                && outcomes.range(..i).all(|(_, (o, _))| *o == Outcome::Success) =>
            {
                let found = near.buffer.load(place(i) as usize);
                if found == UNSTORED && *resolution == Resolution::Direct {
                    counts.unstored += 1;
                } else if found != i / 4 {
                    return Err(format!("the compare-and-swap {i} found {found} in place of {}", i / 4));
                }
            }
            3 => {
                if executed {
                    sends.push(i);
                }
                maybe_sends += u64::from(maybe);
            }
            _ => {}
        }
    }
    let counter = far.buffer.load(0);
    if !(adds..=adds + maybe_adds).contains(&counter) {
        return Err(format!(
            "{adds} additions were executed, {maybe_adds} perhaps, and the counter is {counter}"
        ));
    }
    let mut distinct = values.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() != values.len() || values.iter().any(|&value| value >= counter) {
        return Err(format!("additions returned {values:?} with the counter at {counter}"));
    }
    let messages: Vec<u64> = received.iter().map(|&r| far.buffer.load(inbox(r) as usize)).collect();
    if messages.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("messages arrived twice or out of order: {messages:?}"));
    }
    if let Some(lost) = sends.iter().find(|i| !messages.contains(i)) {
        return Err(format!("message {lost} was sent and did not arrive: {messages:?}"));
    }
    let _ = maybe_sends;
    Ok(())
}

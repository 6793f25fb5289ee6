//! The times from a failure to its detection, to the decision, and to the last completion of the
//! operations in flight.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mitra_failover::{Cause, CompletionLogConfig, Config, FailoverReport};
use mitra_verbs::{LocalAckTimeout, PortState, Provider, Time};

use crate::devices::Devices;
use crate::link_faults::Fault;
use crate::rails::Ends;
use crate::requester::{Kind, Requester, Result, VirtualPair};
use crate::rows::Rows;

const TRIALS: usize = 7;
/// The time that the program that makes a rail fail has to start.
const PREPARATION: Duration = Duration::from_millis(400);
/// The WRITEs in flight.
const WINDOW: usize = 8;
const FAULTS: [(Fault, &str); 4] = [
    (Fault::LinkDown, "link-down"),
    (Fault::RequestsLost, "blackhole"),
    (Fault::AnswersLost, "answers-lost"),
    (Fault::AddressRemoved, "address-removed"),
];

struct Failover {
    began: Time,
    report: FailoverReport,
}

pub fn measure(devices: &Devices, rows: &mut Rows) -> Result<()> {
    let ends = Ends::open(devices.rails(), devices.store(), |nic| nic as Arc<dyn Provider>);
    for (fault, name) in FAULTS {
        for code in [8, 14] {
            let mut failovers = Vec::new();
            let mut causes: Vec<String> = Vec::new();
            for _ in 0..TRIALS {
                let failover = trial(&ends, fault, code)?;
                causes.push(cause(failover.report.cause));
                failovers.push(failover);
            }
            causes.sort();
            causes.dedup();
            let prefix = format!("failover/{name}/timeout-{code}");
            let times = |end: fn(&FailoverReport) -> Option<Time>| -> Vec<f64> {
                let millis = |it: &Failover| end(&it.report).map(|end| (end - it.began).as_secs_f64() * 1e3);
                failovers.iter().filter_map(millis).collect()
            };
            rows.add(
                format!("{prefix}/detected ({})", causes.join(", ")),
                "ms",
                &times(|it| Some(it.detected_at)),
            );
            rows.add(format!("{prefix}/decided"), "ms", &times(|it| Some(it.decided_at)));
            rows.add(format!("{prefix}/completed"), "ms", &times(|it| it.completed_at));
        }
    }
    Ok(())
}

fn cause(cause: Cause) -> String {
    match cause {
        Cause::Completion(_) => "completion".to_owned(),
        Cause::Device => "device event".to_owned(),
        other => other.to_string(),
    }
}

/// WRITEs of 8 bytes are in flight when the rail fails. `began` is when the program that makes the
/// rail fail is told to.
fn trial(ends: &Ends, fault: Fault, code: u8) -> Result<Failover> {
    let mut config = Config::default();
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(code);
    config.detector.retry_cnt = 3;
    config.completion_log = Some(CompletionLogConfig::default());
    let mut pair = VirtualPair::new(&ends.client, &ends.server, config)?;
    let began = OnceLock::new();
    let (mut injection, prepared) = (Some(fault.prepare(0)), Instant::now());
    let clock = &ends.nics[0];
    let deadline = prepared + Duration::from_secs(20);
    let report = std::thread::scope(|scope| {
        let began = &began;
        let mut failing = None;
        let mut in_flight = 0;
        let result: Result<FailoverReport> = loop {
            if Instant::now() > deadline {
                break Err("no failover".into());
            }
            let report = pair.near.last_failover().filter(|report| report.completed_at.is_some());
            if let Some(report) = report {
                break Ok(report);
            }
            while in_flight < WINDOW && !pair.near.is_halted() && pair.post(Kind::Write8).is_ok() {
                in_flight += 1;
            }
            in_flight -= pair.poll_both().len();
            if let Some(injection) = injection.take_if(|_| prepared.elapsed() > PREPARATION) {
                failing = Some(scope.spawn(move || {
                    let _ = began.set(clock.now());
                    injection.inject();
                }));
            }
        };
        if let Some(failing) = failing {
            failing.join().map_err(|_| "the fault could not be injected")?;
        }
        fault.heal(0);
        result
    })?;
    drop(pair);
    let is_up =
        || ends.nics.iter().all(|nic| nic.query_port().is_ok_and(|port| port.state == PortState::Active));
    while !is_up() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Failover { began: *began.get().ok_or("the rail did not fail")?, report })
}

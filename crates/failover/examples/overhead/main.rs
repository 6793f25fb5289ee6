//! Measures what a virtual queue pair adds to a post with its completion and to an empty poll, in
//! nanoseconds and instructions.
//!
//! The vQP runs over a NIC that only completes what is posted. The same calls are also measured on
//! this NIC without a vQP, so the difference is the vQP's own cost.
//!
//! `cargo run --release -p mitra-failover --example overhead [-- --json]`
//!
//! Warm: the minimum of seven runs of many calls. Cold: the median of single calls, before each of
//! which the program writes 64 MiB, which displaces the vQP's data and code from the caches, and
//! not what the processor has learned of its branches. The vQP's clock stands still meanwhile.
//! Instructions: `valgrind --tool=callgrind` counts those of 10,000 calls in a process of its own,
//! whose clock advances by 100 ns a call, so that timers are as often due as without valgrind.

mod null_nic;

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use mitra_failover::{
    Completion, CompletionLogConfig, Config, DetectorConfig, Domain, RemoteRegion, VirtualMr, VirtualQp,
};
use mitra_verbs::{Access, Buffer, CqId, Data, Provider, Qpn, SendOp, SendWr, Wc};

use null_nic::Null;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Post8,
    Post4K,
    EmptyPoll,
}

impl Call {
    const ALL: [Call; 3] = [Call::Post8, Call::Post4K, Call::EmptyPoll];

    fn name(self) -> &'static str {
        match self {
            Call::Post8 => "post and complete 8 B",
            Call::Post4K => "post and complete 4 KiB",
            Call::EmptyPoll => "empty poll",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Nic,
    Vqp,
}

impl Side {
    const ALL: [Side; 2] = [Side::Nic, Side::Vqp];
}

/// A connected vQP, and the NIC below it.
struct Setup {
    nic: Arc<dyn Provider>,
    near: VirtualQp,
    _far: VirtualQp,
    memory: VirtualMr,
    region: RemoteRegion,
    wcs: Vec<Wc>,
    completions: Vec<Completion>,
}

impl Setup {
    fn new(has_log: bool) -> Result<Setup> {
        let nics = [Null::open(), Null::open()];
        let domain = Domain::new(nics.to_vec())?;
        // No peer answers heartbeats here.
        let detector = DetectorConfig { max_missed_heartbeats: 1 << 20, ..DetectorConfig::default() };
        let completion_log = has_log.then(CompletionLogConfig::default);
        let config = Config { completion_log, detector, ..Config::default() };
        let mut near = VirtualQp::builder(&domain).config(config).build()?;
        let mut far = VirtualQp::builder(&domain).config(config).build()?;
        let memory =
            domain.register(&Arc::new(Buffer::new(1 << 16)), Access::LOCAL_WRITE | Access::REMOTE)?;
        let (near_info, far_info) = (near.local_info(), far.local_info());
        near.connect(&far_info)?;
        far.connect(&near_info)?;
        let region = memory.remote();
        near.import(&region)?;
        let [nic, _] = nics;
        Ok(Setup { nic, near, _far: far, memory, region, wcs: Vec::new(), completions: Vec::new() })
    }

    fn work_request(&self, call: Call) -> SendWr {
        let data =
            if call == Call::Post4K { Data::sge(self.memory.sge(0, 4096)) } else { Data::inline(&[7; 8]) };
        SendWr::new(0, SendOp::Write(self.region.at(0)), data)
    }

    fn run_on_nic(&mut self, wr: Option<&SendWr>) {
        if let Some(wr) = wr {
            self.nic.post_send(Qpn::new(1), &[black_box(wr).clone()]).expect("the NIC accepts everything");
        }
        self.wcs.clear();
        self.nic.poll_cq(CqId(0), 32, &mut self.wcs).expect("the NIC accepts everything");
    }

    fn run_on_vqp(&mut self, wr: Option<&SendWr>) {
        if let Some(wr) = wr {
            self.near.post_send(black_box(wr).clone()).expect("the queue has room");
        }
        self.completions.clear();
        self.near.poll(&mut self.completions);
    }

    /// Runs a call `times` times and returns the nanoseconds of one.
    fn run(&mut self, side: Side, call: Call, times: u32) -> f64 {
        let wr = self.work_request(call);
        let wr = (call != Call::EmptyPoll).then_some(&wr);
        let begin = Instant::now();
        match side {
            Side::Nic => (0..times).for_each(|_| self.run_on_nic(wr)),
            Side::Vqp => (0..times).for_each(|_| self.run_on_vqp(wr)),
        }
        begin.elapsed().as_nanos() as f64 / f64::from(times)
    }

    fn warm(&mut self, side: Side, call: Call) -> f64 {
        (0..7).map(|_| self.run(side, call, 20_000)).fold(f64::INFINITY, f64::min)
    }

    /// The clock's own time is in the result, of either side.
    fn cold(&mut self, side: Side, call: Call, other: &mut [u64]) -> f64 {
        let mut nanos: Vec<f64> = Vec::new();
        for _ in 0..101 {
            null_nic::pause(|| {
                other.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_add(1));
                black_box(&mut *other);
            });
            nanos.push(self.run(side, call, 1));
        }
        nanos.sort_by(f64::total_cmp);
        nanos[nanos.len() / 2]
    }
}

/// The calls whose instructions are counted.
const COUNTED_CALLS: u32 = 10_000;

/// Returns the instructions of one call, or `None` without valgrind.
fn instructions(side: Side, call: Call, has_log: bool) -> Option<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*count_calls*"])
        .arg(std::env::current_exe().ok()?)
        .arg("--run")
        .args([side as u32, call as u32, u32::from(has_log)].map(|number| number.to_string()))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let count: f64 = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())?;
    Some(count / f64::from(COUNTED_CALLS))
}

/// The function whose instructions valgrind counts.
#[inline(never)]
fn count_calls(setup: &mut Setup, side: Side, wr: Option<&SendWr>) {
    for _ in 0..COUNTED_CALLS {
        null_nic::advance(100);
        match side {
            Side::Nic => setup.run_on_nic(wr),
            Side::Vqp => setup.run_on_vqp(wr),
        }
    }
}

/// Runs calls for [`instructions`].
fn run_only(code: &[String]) -> Result<()> {
    let numbers: Vec<u32> =
        code.iter().map(|number| number.parse()).collect::<std::result::Result<_, _>>()?;
    let [side, call, has_log] = numbers[..] else { return Err("give three numbers".into()) };
    let (side, call) = (Side::ALL.get(side as usize), Call::ALL.get(call as usize));
    let (side, call) = side.zip(call).ok_or("no such side or call")?;
    let mut setup = Setup::new(has_log != 0)?;
    let wr = setup.work_request(*call);
    count_calls(&mut setup, *side, (*call != Call::EmptyPoll).then_some(&wr));
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == "--run") {
        return run_only(&args[1..]);
    }
    let is_json = args.iter().any(|arg| arg == "--json");
    let mut other = vec![0; (64 << 20) / size_of::<u64>()];
    let mut rows = Vec::new();
    for has_log in [false, true] {
        for call in Call::ALL {
            let mut setup = Setup::new(has_log)?;
            let name = format!("{}{}", call.name(), if has_log { " with log" } else { "" });
            rows.push((name.clone(), "ns warm", Some(Side::ALL.map(|side| setup.warm(side, call)))));
            let cold = Side::ALL.map(|side| setup.cold(side, call, &mut other));
            rows.push((name.clone(), "ns cold", Some(cold)));
            let [nic, vqp] = Side::ALL.map(|side| instructions(side, call, has_log));
            rows.push((name, "instructions", nic.zip(vqp).map(|(nic, vqp)| [nic, vqp])));
        }
    }
    if is_json {
        let row = |(name, unit, values): &(String, &str, Option<[f64; 2]>)| {
            let [nic, vqp] = (*values)?;
            let added = vqp - nic;
            Some(format!(
                r#"{{"name":"{name}","unit":"{unit}","nic":{nic:.1},"vqp":{vqp:.1},"added":{added:.1}}}"#
            ))
        };
        println!("[{}]", rows.iter().filter_map(row).collect::<Vec<_>>().join(","));
        return Ok(());
    }
    println!("{:<34}{:<14}{:>8}{:>8}{:>11}", "", "", "NIC", "vQP", "vQP - NIC");
    for (name, unit, values) in &rows {
        match values {
            Some([nic, vqp]) => println!("{name:<34}{unit:<14}{nic:>8.1}{vqp:>8.1}{:>11.1}", vqp - nic),
            None => println!("{name:<34}{unit:<14} valgrind is not installed"),
        }
    }
    Ok(())
}

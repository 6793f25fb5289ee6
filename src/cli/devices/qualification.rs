//! `mitra devices --qualify`: tests what failover may trust on each NIC.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_nics::NicKind;
use mitra_qualify::{FenceCounts, ProbeReport, Qualification, QualifyConfig, Verdict, probe, qualify};
use mitra_verbs::fault::Noise;
use mitra_verbs::{Nic, NicOpenError};
use serde::Serialize;

use crate::cli::{text_table, write_json};

/// A software NIC executes a posted message at once. Only if it loses packets, a message is under
/// way for long enough to be fenced in its middle.
const LOSS: Noise = Noise {
    drop_ppm: 50_000,
    duplicate_ppm: 0,
    reorder_ppm: 0,
    corrupt_ppm: 0,
    max_delay: std::time::Duration::ZERO,
};

/// A NIC that can be tested, by the name of `--device`.
struct Device {
    name: String,
    open: Box<dyn Fn() -> Result<Arc<dyn Nic>, NicOpenError>>,
}

fn devices() -> Vec<Device> {
    let software =
        |kind: NicKind| Device { name: kind.to_string(), open: Box::new(move || kind.open_free()) };
    [NicKind::Soft, NicKind::Minimal].map(software).into()
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    nics: Vec<NicReport>,
}

#[derive(Serialize)]
struct NicReport {
    name: String,
    verdict: &'static str,
    /// Whether failover may decide by the responder's PSN.
    psn_is_evidence: bool,
    probe: Probe,
    writes: FenceCounts,
    atomics: FenceCounts,
    #[serde(skip)]
    description: String,
}

#[derive(Serialize)]
struct Probe {
    passed: bool,
    states_are_true: bool,
    findings: Vec<String>,
}

impl NicReport {
    fn new(name: &str, probe: &ProbeReport, qualification: &Qualification) -> NicReport {
        let verdict = qualification.verdict();
        NicReport {
            name: name.to_owned(),
            verdict: verdict.name(),
            psn_is_evidence: probe.passed() && verdict.permits_psn(),
            description: verdict.to_string(),
            probe: Probe {
                passed: probe.passed(),
                states_are_true: probe.states_are_true(),
                findings: probe.findings.iter().map(ToString::to_string).collect(),
            },
            writes: qualification.writes,
            atomics: qualification.atomics,
        }
    }
}

/// Tests the NIC `only`, or all of them.
pub(super) fn run(only: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let known = devices();
    let chosen: Vec<_> = known.iter().filter(|device| only.is_none_or(|name| device.name == name)).collect();
    if let (true, Some(name)) = (chosen.is_empty(), only) {
        let names: Vec<_> = known.iter().map(|device| device.name.as_str()).collect();
        bail!("there is no NIC {name:?} to test; --device takes {}", names.join(" or "));
    }
    let report = Report { nics: chosen.into_iter().map(test).collect::<anyhow::Result<_>>()? };
    let mut out = io::stdout().lock();
    if json {
        write_json(&mut out, &report)?;
    } else {
        text(&mut out, &report)?;
    }
    out.flush()?;
    let has_no_fence = report.nics.iter().any(|nic| nic.verdict == Verdict::NoFence.name());
    Ok(ExitCode::from(u8::from(has_no_fence)))
}

fn test(device: &Device) -> anyhow::Result<NicReport> {
    let name = &device.name;
    let open = || (device.open)().map_err(anyhow::Error::from_boxed);
    let nic = open().with_context(|| format!("cannot open the NIC {name}"))?;
    let report = probe(&*nic).with_context(|| format!("cannot probe the NIC {name}"))?;
    if let Some(faults) = nic.fault_switch() {
        faults.set_noise(LOSS, Noise::default());
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template("{msg}: fence {pos} of {len}").context("a progress bar")?);
    bar.set_message(name.clone());
    let mut progress = |done: u32, wanted: u32| {
        bar.set_length(wanted.into());
        bar.set_position(done.into());
    };
    let qualification = qualify(&*nic, &*nic, QualifyConfig::default(), &mut progress);
    bar.finish_and_clear();
    let qualification = qualification.with_context(|| format!("cannot qualify the NIC {name}"))?;
    Ok(NicReport::new(name, &report, &qualification))
}

fn text(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let header =
        ["NIC", "under", "fences", "cut off", "equal", "ahead", "behind", "late", "late after marker"];
    let rows = report.nics.iter().flat_map(|nic| {
        [("WRITEs", nic.writes), ("atomics", nic.atomics)].map(|(stream, counts)| {
            [
                nic.name.clone(),
                stream.to_owned(),
                counts.fences.to_string(),
                counts.cut_off.to_string(),
                counts.equal.to_string(),
                counts.ahead.to_string(),
                counts.behind.to_string(),
                counts.late_before_marker.to_string(),
                counts.late_after_marker.to_string(),
            ]
        })
    });
    let rows = std::iter::once(header.map(str::to_owned)).chain(rows);
    for line in text_table::layout(0, &[2, 3, 4, 5, 6, 7, 8], rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    for nic in &report.nics {
        writeln!(out, "{}: {} ({})", nic.name, nic.description, nic.verdict)?;
        for finding in &nic.probe.findings {
            writeln!(out, "  probe: {finding}")?;
        }
    }
    Ok(())
}

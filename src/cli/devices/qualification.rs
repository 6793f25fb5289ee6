//! `mitra devices --qualify`: tests what failover may trust on each NIC.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_hardnic::{HardNic, qualifications_file};
use mitra_nics::{NicKind, NicName};
use mitra_qualify::{
    FenceCounts, Hardware, ProbeReport, Qualification, QualificationStore, QualifyConfig, Verdict, probe,
    qualify,
};
use mitra_verbs::Nic;
use mitra_verbs::fault::Noise;
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

/// A NIC that can be tested, as `--device` names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Device {
    /// `soft` or `minimal`: a software NIC of this kind.
    Software(NicKind),
    /// An RDMA device of the kernel.
    Kernel(String),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(name: &str) -> Result<Device, String> {
        match (name.parse(), name.parse()) {
            (Ok(kind), _) => Ok(Device::Software(kind)),
            (_, Ok(NicName::Device(name))) => Ok(Device::Kernel(name)),
            _ => Err("expected soft, minimal or the name of an RDMA device".to_owned()),
        }
    }
}

impl Device {
    fn name(&self) -> String {
        match self {
            Device::Software(kind) => kind.to_string(),
            Device::Kernel(name) => name.clone(),
        }
    }

    /// Opens the NIC, and says to what hardware its result belongs. An earlier result has no
    /// effect.
    fn open(&self) -> anyhow::Result<(Arc<dyn Nic>, Option<Hardware>)> {
        match self {
            Device::Software(kind) => Ok((kind.open_free().map_err(anyhow::Error::from_boxed)?, None)),
            Device::Kernel(name) => {
                let nic = HardNic::open_qualified(name, &QualificationStore::default())?;
                let hardware = nic.hardware().clone();
                Ok((nic, Some(hardware)))
            }
        }
    }
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    nics: Vec<NicReport>,
    /// Where the results of devices of the kernel were saved.
    file: Option<PathBuf>,
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

/// Tests these NICs, or software NICs of each kind. Saves the results of devices of the kernel.
pub(super) fn run(devices: &[Device], fences: u32, json: bool) -> anyhow::Result<ExitCode> {
    let software = [NicKind::Soft, NicKind::Minimal].map(Device::Software);
    let (mut nics, mut results) = (Vec::new(), BTreeMap::new());
    for device in if devices.is_empty() { &software } else { devices } {
        let (report, qualification, hardware) = test(device, fences)?;
        nics.push(report);
        if let Some(hardware) = hardware {
            // Of two devices of one kind, the worse result holds.
            let worst: &mut Qualification = results.entry(hardware).or_insert(qualification);
            if qualification.verdict() < worst.verdict() {
                *worst = qualification;
            }
        }
    }
    let file = (!results.is_empty()).then(qualifications_file);
    if let Some(file) = &file {
        let mut store = QualificationStore::load(file)?;
        results.into_iter().for_each(|(hardware, result)| store.insert(hardware, result));
        store.save()?;
    }
    let report = Report { nics, file };
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

fn test(device: &Device, fences: u32) -> anyhow::Result<(NicReport, Qualification, Option<Hardware>)> {
    let name = &device.name();
    let (nic, hardware) = device.open().with_context(|| format!("cannot open the NIC {name}"))?;
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
    let config =
        QualifyConfig { write_fences: fences, atomic_fences: fences / 3, ..QualifyConfig::default() };
    let qualification = qualify(&*nic, &*nic, config, &mut progress);
    bar.finish_and_clear();
    let qualification = qualification.with_context(|| format!("cannot qualify the NIC {name}"))?;
    Ok((NicReport::new(name, &report, &qualification), qualification, hardware))
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
    if let Some(file) = &report.file {
        writeln!(out, "saved in {}, which every program reads when it opens such a device", file.display())?;
    }
    Ok(())
}

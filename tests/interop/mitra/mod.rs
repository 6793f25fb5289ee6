//! Mitra's software NIC (10.77.0.2) against the kernel's rxe0 (10.77.0.1).
//!
//! A scenario that runs in both directions is named after the requester: `mitra` or `kernel`.

mod atomics;
mod connection_manager;
mod error_state_fence;
mod gather_and_inline;
mod lengths;
mod memory_windows;
mod mitra_endpoint;
mod mixed_traffic;
mod ordering;
mod packet_loss;
mod receiver_not_ready;
mod refusals;
mod uc_and_ud;
mod unanswerable_reads;

use std::process::Command;

use anyhow::{Result, bail, ensure};
use mitra_verbs::{Access, QpType};

use self::mitra_endpoint::MitraEndpoint;
use super::Scenario;
use super::kernel_endpoint::KernelEndpoint;

/// All scenarios, in the order in which they run.
pub(crate) fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    [
        lengths::SCENARIOS,
        gather_and_inline::SCENARIOS,
        atomics::SCENARIOS,
        ordering::SCENARIOS,
        receiver_not_ready::SCENARIOS,
        refusals::SCENARIOS,
        unanswerable_reads::SCENARIOS,
        memory_windows::SCENARIOS,
        packet_loss::SCENARIOS,
        mixed_traffic::SCENARIOS,
        error_state_fence::SCENARIOS,
        uc_and_ud::SCENARIOS,
        connection_manager::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

const MITRA_IP: &str = "10.77.0.2";
const KERNEL_IP: &str = "10.77.0.1";
/// The Q_Key of `rxe_peer`'s UD queue pairs.
const QKEY: u32 = 0x1111_1111;
/// The capture file of the last NIC's packets.
const CAPTURE: &str = "/tmp/mitra.pcap";

/// Parameters of a connection.
#[derive(Clone, Copy)]
struct Setup {
    service: QpType,
    mtu: u64,
    /// The length of the region at either end, in bytes.
    size: u64,
    /// Access flags of Mitra's region and queue pair.
    region: Access,
    rights: Access,
    /// Access flags of the kernel's region and queue pair, in `rxe_peer`'s letters.
    kernel_region: &'static str,
    kernel_rights: &'static str,
    /// The first PSN in both directions.
    psn: u64,
    timeout: u8,
    retry: u8,
    rnr: u8,
    min_rnr: u8,
    rd: u8,
    dest_rd: u8,
}

impl Setup {
    /// All access allowed, and a local ACK timeout that does not expire without packet loss.
    const DEFAULT: Self = Self {
        service: QpType::Rc,
        mtu: 1024,
        size: 192 << 10,
        region: Access::all(),
        rights: Access::REMOTE.union(Access::LOCAL_WRITE),
        kernel_region: "lwrab",
        kernel_rights: "lwra",
        psn: 0x00_5a5a,
        timeout: 18,
        retry: 7,
        rnr: 7,
        min_rnr: 1,
        rd: 16,
        dest_rd: 16,
    };

    /// Formats the parameters as arguments of `rxe_peer`.
    fn attributes(&self) -> String {
        let Self { mtu, timeout, retry, rnr, min_rnr, rd, dest_rd, .. } = self;
        format!(
            "mtu={mtu} timeout={timeout} retry={retry} rnr={rnr} min_rnr={min_rnr} rd={rd} dest_rd={dest_rd}"
        )
    }
}

/// Two connected queue pairs.
struct Wire {
    mitra: MitraEndpoint,
    kernel: KernelEndpoint,
}

impl Wire {
    fn new(setup: Setup) -> Result<Self> {
        let mitra = MitraEndpoint::open(&setup)?;
        let kind = match setup.service {
            QpType::Rc => "rc",
            QpType::Uc => "uc",
            QpType::Ud => "ud",
            QpType::Gsi => bail!("the kernel has its queue pair 1 for itself"),
            QpType::XrcSend | QpType::XrcRecv(_) => bail!("the kernel's soft-RoCE has no XRC"),
        };
        let qp = format!("type={kind} access={}", setup.kernel_rights);
        let mut kernel =
            KernelEndpoint::new("rxe0", &qp, &format!("len={} access={}", setup.size, setup.kernel_region))?;
        kernel.psn = setup.psn;
        kernel.connect(MITRA_IP, mitra.qpn.value().into(), setup.psn, &setup.attributes())?;
        mitra.connect(&setup, kernel.qpn, setup.psn, setup.psn)?;
        Ok(Self { mitra, kernel })
    }

    /// Checks that each side's next PSN is the PSN that the other side expects.
    fn check_psns(&mut self) -> Result<()> {
        let kernel = self.kernel.peer.ask("query qp=0")?;
        let mitra = self.mitra.status()?;
        let (sq, rq) = (kernel.number("sq_psn")? as u32, kernel.number("rq_psn")? as u32);
        ensure!(
            (mitra.sq_psn.value(), mitra.rq_psn.value()) == (rq, sq),
            "Mitra sends {} next and expects {}; the kernel expects {rq:#x} and sends {sq:#x}",
            mitra.sq_psn,
            mitra.rq_psn
        );
        Ok(())
    }
}

/// Prints the last packets of Mitra's last NIC.
pub(crate) fn print_wire() {
    let decoded = Command::new(env!("CARGO_BIN_EXE_mitra")).args(["decode", CAPTURE]).output();
    let Ok(decoded) = decoded else { return };
    let text = String::from_utf8_lossy(&decoded.stdout);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(60)..] {
        println!("    {line}");
    }
}

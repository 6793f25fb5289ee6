//! The explanation of `IBV_WC_RETRY_EXC_ERR` on a device with one rail. With several rails, the
//! virtual queue pairs say why they end.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mitra_verbs::{Nic, Wc, WcStatus};

/// Whether this process, or its parent before the fork, has explained such a completion.
static EXPLAINED: AtomicBool = AtomicBool::new(false);

/// Says why the first of these completions ended in [`WcStatus::RetryExceeded`], if one did: on
/// standard error the first time in this process, later at debug level.
pub(super) fn explain(nic: &dyn Nic, completions: &[Wc]) {
    let Some(wc) = completions.iter().find(|wc| wc.status == WcStatus::RetryExceeded) else { return };
    let Ok(qp) = nic.query_qp(wc.qpn) else { return };
    let (Some(peer), timeout, retries) = (qp.attr.dest_gid, qp.attr.timeout, qp.attr.retry_cnt) else {
        return;
    };
    let timeout = Duration::from_nanos(4096 << timeout.unwrap_or(0));
    let reason = match nic.device_name() {
        Some(device) => reason_over_device(device),
        None => reason(nic.address(), peer.into(), nic.port_refusals(peer) != 0),
    };
    let line = format_args!(
        "queue pair {}: {} answered none of {} transmissions, {timeout:.1?} each, so a request fails \
         (IBV_WC_RETRY_EXC_ERR): {reason}",
        wc.qpn,
        IpAddr::from(peer),
        retries.unwrap_or(0) + 1,
    );
    if EXPLAINED.swap(true, Ordering::Relaxed) {
        tracing::debug!("{line}");
    } else {
        tracing::warn!("{line}");
    }
}

/// The NIC of the peer answers by itself, even for a program that is stopped.
fn reason_over_device(device: &str) -> String {
    format!(
        "the peer's queue pair has ended, is in error, or is connected to another one; or packets of {device} do not reach \
         it: check the links, addresses and MTU of both ends (mitra devices), and priority flow control"
    )
}

/// `is_refused` says whether the peer's machine reports that no process has the port open.
fn reason(own: IpAddr, peer: IpAddr, is_refused: bool) -> String {
    let program = match is_refused {
        true => "no program has that address, so the peer has ended",
        false => "the peer's program is stopped (a debugger, SIGSTOP), gets no processor, or is gone",
    };
    let way = match own.is_loopback() || peer.is_loopback() {
        true => {
            "is on another machine, which loopback addresses do not reach: give both ends the addresses of their NICs \
             (mitra run --rails ADDRESS)"
        }
        false => "cannot be reached: check the link, and that the network lets UDP port 4791 pass",
    };
    format!("{program}; or it {way}")
}

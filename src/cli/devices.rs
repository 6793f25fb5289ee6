//! `mitra devices`: shows what this machine offers for RDMA, and how to improve it.

mod machine;
mod qualification;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use mitra_softnic::SoftNic;
use mitra_verbs::{AtomicScope, Capabilities, Limits, Mtu, Provider};
use serde::Serialize;

use super::{text_table, write_json};

use machine::{Address, Buffers, Offload, PortUse, RdmaDevice};
use qualification::Device;

/// Show what this machine offers for RDMA: software NICs, interfaces, offloads, socket buffers and
/// RDMA devices
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra devices
  mitra devices --json
  mitra devices --qualify --device mlx5_0,mlx5_1
--json: `soft` (the software NIC, or null if none can be opened: `address`, `mtu`, `send_window`, `limits`, `capabilities`), `addresses` (of the
interfaces), `offload`, `buffers` (of sockets), `port_4791` (who uses RoCE's port), `hardware` (RDMA devices of the kernel, with
`address`, and `refused` if Mitra does not use the device) and `hints` (what limits this machine, and the remedies).
The command briefly opens a software NIC on a free loopback address to query it. It opens and changes nothing else.
--qualify: fences each NIC in the middle of messages and compares the responder PSN with memory, which takes seconds.
`psn-exact`: failover may decide by the PSN. `records-only`, `inconclusive`: by the completion log and the received
messages only. `no-fence`: memory changed behind the fence, so failover cannot use the NIC. The result of a device of the kernel is saved for
its driver, part and firmware (docs/hardware.md), and holds for all programs of this user. Each device is connected to itself,
and is loaded meanwhile. With --json: `file` (where it is saved), `nics`, each
with `name`, `verdict`, `psn_is_evidence`, `probe` (`passed`, `states_are_true`, `findings`), `writes` and `atomics` (the
numbers of `fences`, of those that `cut_off` a message, and of those after which the PSN was `equal`, `ahead`, `behind`).
Exit codes: 0 success, 1 a NIC has no fence, 2 bad arguments, or a NIC cannot be opened or tested (with the reason).")]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Test what failover may trust on each NIC, instead of listing this machine
    #[arg(long)]
    qualify: bool,
    /// NICs to test, separated by commas: RDMA devices of the kernel by name, soft or minimal
    /// [default: soft,minimal]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "qualify")]
    device: Vec<Device>,
    /// Fences under WRITEs, and a third of them under atomics; for tests
    #[arg(long, default_value_t = 60, hide = true, requires = "qualify", value_parser = clap::value_parser!(u32).range(10..=1000))]
    fences: u32,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    /// `None` if software NICs cannot be used, as where soft-RoCE has RoCE's port.
    soft: Option<SoftNicInfo>,
    addresses: Vec<Address>,
    offload: Offload,
    buffers: Option<Buffers>,
    /// The processes that use UDP port 4791, by address.
    port_4791: Vec<PortUse>,
    /// The RDMA devices that the kernel knows.
    hardware: Vec<RdmaDevice>,
    /// The limitations of this machine, with remedies.
    hints: Vec<String>,
}

/// A software NIC with the default configuration.
#[derive(Serialize)]
struct SoftNicInfo {
    address: String,
    mtu: usize,
    /// An upper bound on the unacknowledged payload of a queue pair, in bytes.
    send_window: u32,
    limits: Vec<Item<u64>>,
    capabilities: Vec<Item<String>>,
}

impl SoftNicInfo {
    fn of(nic: &SoftNic) -> anyhow::Result<SoftNicInfo> {
        let (port, attr) = (nic.query_port()?, nic.attr());
        Ok(SoftNicInfo {
            address: std::net::IpAddr::from(port.gid).to_string(),
            mtu: port.max_mtu.bytes(),
            send_window: nic.send_window(),
            limits: limits(&attr.limits),
            capabilities: capabilities(&attr.capabilities),
        })
    }
}

/// A limit or a capability.
#[derive(Serialize)]
struct Item<T> {
    /// A name for scripts, similar to the field's name in `mitra_verbs::Limits` or `Capabilities`.
    name: &'static str,
    /// A description for the text output.
    #[serde(rename = "what")]
    description: &'static str,
    value: T,
}

fn item<T>(name: &'static str, description: &'static str, value: T) -> Item<T> {
    Item { name, description, value }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.qualify {
        return qualification::run(&args.device, args.fences, args.json);
    }
    let hardware = machine::hardware();
    let (soft, buffers, failure) = match SoftNic::open(mitra_softnic::Config::loopback()) {
        Ok(nic) => {
            let buffers = Buffers::query(nic.receive_buffer_size());
            (Some(SoftNicInfo::of(&nic)?), Some(buffers), None)
        }
        // The devices of the kernel can be used nevertheless.
        Err(error) if !hardware.is_empty() => (None, None, Some(format!("software NICs: {error}"))),
        Err(error) => return Err(error).context("cannot open a software NIC"),
    };
    let mut report = Report {
        soft,
        addresses: machine::addresses().context("cannot list the interfaces")?,
        offload: Offload::query(),
        buffers,
        port_4791: machine::port_users(),
        hardware,
        hints: Vec::new(),
    };
    report.hints = failure.into_iter().chain(hints(&report)).collect();
    let mut out = io::stdout().lock();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        text(&mut out, &report)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn limits(limits: &Limits) -> Vec<Item<u64>> {
    let Limits {
        pds,
        mrs,
        mws,
        cqs,
        cqe,
        qps,
        wrs,
        sges,
        inline,
        srqs,
        ahs,
        mcast_groups,
        mcast_qps,
        mcast_attached,
        rd_atomic,
        message_bytes,
    } = *limits;
    vec![
        item("pds", "protection domains", pds.into()),
        item("mrs", "memory regions", mrs.into()),
        item("mws", "memory windows", mws.into()),
        item("cqs", "completion queues", cqs.into()),
        item("cqe", "entries of a completion queue", cqe.into()),
        item("qps", "queue pairs", qps.into()),
        item("wrs", "requests of a queue", wrs.into()),
        item("sges", "entries of a request", sges.into()),
        item("inline", "inline bytes of a request", inline.into()),
        item("srqs", "shared receive queues", srqs.into()),
        item("ahs", "address handles", ahs.into()),
        item("mcast_groups", "multicast groups", mcast_groups.into()),
        item("mcast_qps", "queue pairs of a multicast group", mcast_qps.into()),
        item("mcast_attached", "attachments to multicast groups", mcast_attached.into()),
        item("rd_atomic", "READs and atomics outstanding", rd_atomic.into()),
        item("message", "bytes of a message", message_bytes.into()),
    ]
}

fn capabilities(capabilities: &Capabilities) -> Vec<Item<String>> {
    let Capabilities {
        atomic_scope,
        psn_query,
        saved_results,
        ack_after_placement,
        write_order,
        reset,
        windows,
        on_demand,
    } = *capabilities;
    let scope = match atomic_scope {
        AtomicScope::None => "none",
        AtomicScope::Nic => "nic",
        AtomicScope::Global => "global",
    };
    let yes = |has: bool| if has { "yes" } else { "no" }.to_owned();
    vec![
        item("atomic_scope", "atomics are atomic within", scope.to_owned()),
        item("psn_query", "responder's PSN can be asked for", yes(psn_query)),
        item("saved_results", "saved atomic results can be read", yes(saved_results)),
        item("ack_after_placement", "acknowledges after placement", yes(ack_after_placement)),
        item("write_order", "keeps the order of writes", yes(write_order)),
        item("reset", "can be reset", yes(reset)),
        item("windows", "memory windows of type 2B", yes(windows)),
        item("on_demand", "reaches memory that is mapped later", yes(on_demand)),
    ]
}

/// Returns one hint for each limitation of this machine, with a remedy if there is one.
fn hints(report: &Report) -> Vec<String> {
    let mut hints = Vec::new();
    let limits = report.buffers.iter().flat_map(|Buffers { asked, rmem_max, wmem_max, .. }| {
        [("rmem_max", *rmem_max, *asked), ("wmem_max", *wmem_max, *asked)]
    });
    for (name, max, asked) in limits {
        if let Some(max) = max.filter(|&max| max < asked) {
            hints.push(format!(
                "net.core.{name} is {max}: bursts from many queue pairs overrun a socket buffer and must be retransmitted; as root: sysctl -w net.core.{name}={asked}"
            ));
        }
    }
    if !report.offload.gso || !report.offload.gro {
        hints.push(
            "this kernel lacks UDP segmentation offload (UDP_SEGMENT since Linux 4.18, UDP_GRO since 5.0): large messages run at about a third of the speed; use a newer kernel"
                .to_owned(),
        );
    }
    for address in &report.addresses {
        let Some(mtu) = address.roce_mtu.filter(|&mtu| mtu < Mtu::M4096.bytes()) else { continue };
        hints.push(format!(
            "{} has an MTU of {}, so packets carry {mtu} bytes; 4096 bytes need an MTU of 4200 on both sides: ip link set {} mtu 4200",
            address.interface, address.mtu, address.interface
        ));
    }
    hints.dedup();
    if report.addresses.iter().all(|address| address.loopback || address.refused.is_some()) {
        hints.push(
            "no other interface has an address that a NIC can use, so software NICs reach this machine only: ip addr add ADDRESS/PREFIX dev INTERFACE"
                .to_owned(),
        );
    }
    let usable = report.hardware.iter().find(|device| device.refused.is_none());
    match (report.hardware.is_empty(), usable) {
        (true, _) => hints.push(
            "the kernel knows no RDMA device (/sys/class/infiniband), so programs use software NICs, which need none"
                .to_owned(),
        ),
        (false, Some(device)) => hints.push(format!(
            "programs use software NICs unless --device names RDMA devices; test one first: mitra devices --qualify --device {}",
            device.name
        )),
        // Each device says why it is not used.
        (false, None) => {}
    }
    hints
}

fn text(out: &mut impl Write, report: &Report) -> io::Result<()> {
    match &report.soft {
        Some(soft) => {
            writeln!(out, "Software NICs: yes, without root or kernel module")?;
            writeln!(
                out,
                "  default: a free address in 127.0.0.0/8 (now {}), MTU {}, send window {} bytes",
                soft.address, soft.mtu, soft.send_window
            )?;
        }
        None => writeln!(out, "Software NICs: no (see the limitations)")?,
    }
    writeln!(out, "\nAddresses that a software NIC can use")?;
    let addresses = report.addresses.iter().map(|address| {
        let description = match (&address.refused, address.roce_mtu) {
            (Some(reason), _) => format!("no: {reason}"),
            (None, Some(mtu)) => format!("RoCE MTU {mtu}"),
            (None, None) => "no: its MTU is below what RoCEv2 needs".to_owned(),
        };
        let Address { address, interface, mtu, .. } = address;
        [address.clone(), interface.clone(), format!("MTU {mtu}"), description]
    });
    section(out, addresses)?;
    writeln!(out, "\nUDP port 4791")?;
    if report.port_4791.is_empty() {
        writeln!(out, "  free on every address")?;
    }
    let users = report.port_4791.iter();
    section(out, users.map(|user| [user.address.clone(), format!("used by {}", user.holder)]))?;
    let yes = |has: bool| if has { "yes" } else { "no" };
    let format_size = |max: &Option<u64>| max.map_or("unknown".to_owned(), |max| max.to_string());
    writeln!(out, "\nSockets")?;
    let mut sockets = vec![
        ["segmentation offload (GSO)", yes(report.offload.gso)].map(str::to_owned),
        ["receive offload (GRO)", yes(report.offload.gro)].map(str::to_owned),
    ];
    if let Some(Buffers { rmem_max, wmem_max, receive_buffer, .. }) = &report.buffers {
        sockets.extend([
            ["net.core.rmem_max".to_owned(), format_size(rmem_max)],
            ["net.core.wmem_max".to_owned(), format_size(wmem_max)],
            [
                "granted receive buffer".to_owned(),
                format!("{receive_buffer}; each sender's window is a quarter of it, at most 1 MiB"),
            ],
        ]);
    }
    section(out, sockets)?;
    writeln!(out, "\nRDMA devices")?;
    if report.hardware.is_empty() {
        writeln!(out, "  none")?;
    }
    let devices = report.hardware.iter();
    section(
        out,
        devices.map(|device| {
            let address = device.address.clone().unwrap_or_default();
            let refused = device.refused.as_ref().map(|why| format!("; not used: {why}")).unwrap_or_default();
            [device.name.clone(), address, format!("{}, port 1 {}{refused}", device.kind, device.state)]
        }),
    )?;
    if let Some(soft) = &report.soft {
        writeln!(out, "\nLimits of a software NIC")?;
        let limits = soft.limits.iter();
        section(
            out,
            limits.map(|Item { description, value, .. }| [(*description).to_owned(), value.to_string()]),
        )?;
        writeln!(out, "\nCapabilities of a software NIC")?;
        let capabilities = soft.capabilities.iter();
        section(
            out,
            capabilities.map(|Item { description, value, .. }| [(*description).to_owned(), value.clone()]),
        )?;
    }
    writeln!(out, "\nLimitations")?;
    for hint in &report.hints {
        writeln!(out, "  {hint}")?;
    }
    Ok(())
}

/// Prints the rows of a section, indented.
fn section<const N: usize>(
    out: &mut impl Write,
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    text_table::layout(2, &[], rows).iter().try_for_each(|line| writeln!(out, "{line}"))
}

//! The endpoint of a comparison in one process: two NICs, a UDP socket, two RC and two virtual
//! queue pairs, all connected to one peer.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use mitra_failover::{CompletionLogConfig, DetectorConfig, Domain, Policy};
use mitra_nics::{NicKind, NicName};
use mitra_softnic::{Links, SoftNic};
use mitra_verbs::fault::FaultSwitch;
use mitra_verbs::{Mtu, Nic, Provider, RecvWr};
use serde::{Deserialize, Serialize};

use super::bench_qp::{
    BenchQp, Op, QUEUE_DEPTH, RD_ATOMIC, RcBenchQp, RcQpInfo, VirtualBenchQp, VqpInfo, request,
};
use super::stopwatch::Deadline;
use super::udp_baseline::UdpBaseline;
use mitra_peer_process::PeerConnection;

/// The number of receives that each queue pair keeps posted.
const RECVS: u32 = 32;
/// The length of the control words after the two halves of a queue pair's memory, in bytes.
const WORDS: usize = 64;

/// The NIC of each rail.
pub(crate) type RailPair = [Arc<dyn Nic>; 2];

/// The NICs of a process, and the MTU limit of software NICs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NicPlacement {
    /// The NIC of each rail. `None` takes software NICs at free loopback addresses.
    pub(crate) nics: Option<[NicName; 2]>,
    /// The largest MTU, in bytes. `None` takes the MTU of the interface.
    pub(crate) mtu: Option<usize>,
    /// How datagrams reach the peer: `auto`, `shm` or `udp`.
    #[serde(with = "links_as_text")]
    pub(crate) links: Links,
}

mod links_as_text {
    use mitra_softnic::Links;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(links: &Links, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(links)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Links, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl NicPlacement {
    pub(crate) fn open(&self) -> anyhow::Result<RailPair> {
        let open = |rail| self.open_rail(rail).with_context(|| format!("cannot open the NIC of rail {rail}"));
        Ok([open(0)?, open(1)?])
    }

    fn open_rail(&self, rail: usize) -> anyhow::Result<Arc<dyn Nic>> {
        let mut config = mitra_softnic::Config::loopback();
        match self.nics.as_ref().map(|nics| &nics[rail]) {
            None => {}
            Some(NicName::Address(address)) => config.address = Some(*address),
            Some(name) => {
                ensure!(
                    self.mtu.is_none() && self.links == Links::Auto,
                    "--mtu and --links are of software NICs, and {name} is a device of the kernel"
                );
                return Ok(name.open(NicKind::Soft, self.links).map_err(anyhow::Error::from_boxed)?.nic);
            }
        }
        config.links = self.links;
        config.max_mtu = self.mtu.and_then(Mtu::from_bytes);
        Ok(SoftNic::open(config)?)
    }
}

/// Returns the switch of a software NIC, which fails on demand.
pub(crate) fn faults(nic: &dyn Nic) -> anyhow::Result<&dyn FaultSwitch> {
    nic.fault_switch().with_context(|| format!("{} does not fail on demand", nic.attr().name))
}

/// The layout of a queue pair's memory: a half that the peer writes, a half that the local process
/// fills, and control words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The length of each half in bytes.
    pub(crate) half: usize,
}

impl Layout {
    pub(crate) fn new(half: usize) -> Layout {
        Layout { half: half.next_multiple_of(64) }
    }

    /// Returns the offset of the half that the peer writes.
    pub(crate) fn inbox(self) -> usize {
        0
    }

    /// Returns the offset of the half from which this process sends.
    pub(crate) fn outbox(self) -> usize {
        self.half
    }

    /// Returns the offset of the word that the peer writes at the end of a block.
    pub(crate) fn stop(self) -> usize {
        2 * self.half
    }

    /// Returns the offset of the word that FAA increments.
    pub(crate) fn counter(self) -> usize {
        2 * self.half + 8
    }

    /// Returns the offset of the word that is the source of the WRITE to the peer's stop word.
    pub(crate) fn word(self) -> usize {
        2 * self.half + 16
    }

    pub(crate) fn len(self) -> usize {
        2 * self.half + WORDS
    }
}

/// The queue pairs and the UDP socket of all variants in one process.
pub(crate) struct Endpoint {
    /// The NIC of each rail. The NIC of rail 0 also carries the RC queue pairs.
    pub(crate) nics: RailPair,
    pub(crate) layout: Layout,
    pub(crate) udp: UdpBaseline,
    pub(crate) qp: RcBenchQp,
    /// A second RC queue pair. Its ratio to `qp` is the noise of the measurement.
    pub(crate) aa: RcBenchQp,
    pub(crate) vqp: VirtualBenchQp,
    pub(crate) vqp_none: VirtualBenchQp,
    pub(crate) vqp_log: VirtualBenchQp,
    pub(crate) vqp_log4: VirtualBenchQp,
}

#[derive(Serialize, Deserialize)]
struct EndpointInfo {
    udp: SocketAddr,
    qp: RcQpInfo,
    aa: RcQpInfo,
    vqp: VqpInfo,
    vqp_none: VqpInfo,
    vqp_log: VqpInfo,
    vqp_log4: VqpInfo,
}

impl Endpoint {
    /// Opens this side and connects it to the peer, which calls this function too. `half` is the
    /// length of each half in bytes.
    pub(crate) fn open(
        placement: &NicPlacement,
        half: usize,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<Endpoint> {
        let layout = Layout::new(half);
        let nics = placement.open()?;
        let providers: [Arc<dyn Provider>; 2] =
            nics.each_ref().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
        let domain = Domain::new(providers.to_vec())?;
        let config = mitra_failover::Config {
            send_wrs: QUEUE_DEPTH,
            recv_wrs: QUEUE_DEPTH,
            rd_atomic: RD_ATOMIC,
            detector: detector(),
            ..mitra_failover::Config::default()
        };
        let virtual_qp = |policy: Policy, log: Option<u32>| -> anyhow::Result<VirtualBenchQp> {
            let config = mitra_failover::Config {
                policy,
                completion_log: log
                    .map(|interval| CompletionLogConfig { interval, ..CompletionLogConfig::default() }),
                ..config
            };
            VirtualBenchQp::new(&domain, config, layout.len())
        };
        let mut endpoint = Endpoint {
            udp: UdpBaseline::open()?,
            qp: RcBenchQp::new(&providers[0], layout.len(), random()? as u32)?,
            aa: RcBenchQp::new(&providers[0], layout.len(), random()? as u32)?,
            vqp: virtual_qp(Policy::Exact, None)?,
            vqp_none: virtual_qp(Policy::None, None)?,
            vqp_log: virtual_qp(Policy::Exact, Some(1))?,
            vqp_log4: virtual_qp(Policy::Exact, Some(4))?,
            layout,
            nics,
        };
        connection.send(&endpoint.info()?)?;
        let peer: EndpointInfo = connection.receive()?;
        endpoint.udp.connect(peer.udp);
        endpoint.qp.connect(&peer.qp)?;
        endpoint.aa.connect(&peer.aa)?;
        endpoint.vqp.connect(&peer.vqp)?;
        endpoint.vqp_none.connect(&peer.vqp_none)?;
        endpoint.vqp_log.connect(&peer.vqp_log)?;
        endpoint.vqp_log4.connect(&peer.vqp_log4)?;
        for _ in 0..RECVS {
            post_recv(&mut endpoint.qp, layout)?;
            post_recv(&mut endpoint.aa, layout)?;
            post_recv(&mut endpoint.vqp, layout)?;
            post_recv(&mut endpoint.vqp_none, layout)?;
            post_recv(&mut endpoint.vqp_log, layout)?;
            post_recv(&mut endpoint.vqp_log4, layout)?;
        }
        // Neither side posts before both are connected.
        connection.send(&())?;
        connection.receive::<()>()?;
        Ok(endpoint)
    }

    fn info(&self) -> anyhow::Result<EndpointInfo> {
        Ok(EndpointInfo {
            udp: self.udp.address()?,
            qp: self.qp.info()?,
            aa: self.aa.info()?,
            vqp: self.vqp.info()?,
            vqp_none: self.vqp_none.info()?,
            vqp_log: self.vqp_log.info()?,
            vqp_log4: self.vqp_log4.info()?,
        })
    }

    /// Returns the MTU of rail 0 in bytes.
    pub(crate) fn mtu(&self) -> anyhow::Result<usize> {
        Ok(self.nics[0].query_port()?.max_mtu.bytes())
    }
}

/// The work of one process in a block, over any kind of queue pair or over UDP.
pub(crate) trait BlockTask {
    /// The measured value of a block, or `()` for the process that does not measure.
    type Output;
    fn on_qp<L: BenchQp>(
        &self,
        qp: &mut L,
        layout: Layout,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<Self::Output>;
    fn on_udp(&self, udp: &mut UdpBaseline, connection: &mut PeerConnection) -> anyhow::Result<Self::Output>;
}

impl Endpoint {
    pub(crate) fn run<T: BlockTask>(
        &mut self,
        variant: Variant,
        task: &T,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<T::Output> {
        match variant {
            Variant::UdpBaseline => task.on_udp(&mut self.udp, connection),
            Variant::Qp => task.on_qp(&mut self.qp, self.layout, connection),
            Variant::Aa => task.on_qp(&mut self.aa, self.layout, connection),
            Variant::Vqp => task.on_qp(&mut self.vqp, self.layout, connection),
            Variant::VqpNone => task.on_qp(&mut self.vqp_none, self.layout, connection),
            Variant::VqpLog => task.on_qp(&mut self.vqp_log, self.layout, connection),
            Variant::VqpLog4 => task.on_qp(&mut self.vqp_log4, self.layout, connection),
        }
    }

    /// Returns the nonzero counters of this process's NICs.
    pub(crate) fn counters(&self) -> serde_json::Value {
        let of = |nic: &Arc<dyn Nic>| -> serde_json::Value {
            nic.counters().into_iter().filter(|c| c.value > 0).map(|c| (c.name, c.value)).collect()
        };
        self.nics.iter().map(of).collect()
    }
}

/// Posts a WRITE of the peer's stop word, which ends [`serve_until_stop`] at the peer.
pub(crate) fn signal_stop<L: BenchQp>(qp: &mut L, layout: Layout, word: u64) -> anyhow::Result<()> {
    qp.memory().store(layout.word(), word);
    let stop = request(qp, Op::Write, layout.word(), layout.stop(), 8);
    qp.post_when_room(stop)
}

/// Polls a queue pair until the peer writes the stop word.
pub(crate) fn serve_until_stop<L: BenchQp>(qp: &mut L, layout: Layout, word: u64) -> anyhow::Result<()> {
    let mut deadline = Deadline::for_block();
    while qp.memory().load(layout.stop()) != word {
        qp.poll()?;
        deadline.check()?;
    }
    Ok(())
}

/// Returns the detector configuration of benchmarks that inject no fault. Missed heartbeats are
/// tolerated for a long time, because on a busy machine they are no sign of a failure.
pub(crate) fn detector() -> DetectorConfig {
    DetectorConfig {
        max_missed_heartbeats: 250,
        local_ack_timeout: mitra_verbs::LocalAckTimeout::from_code(17),
        ..DetectorConfig::default()
    }
}

/// Posts a receive for any message that fits a half of the memory.
pub(crate) fn post_recv<L: BenchQp>(qp: &mut L, layout: Layout) -> anyhow::Result<()> {
    let sges = qp.local(layout.inbox(), layout.half);
    qp.post_recv(RecvWr { wr_id: 0, sges })
}

/// The variants that a benchmark compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Variant {
    /// A plain UDP socket
    #[value(name = "udp_floor")]
    UdpBaseline,
    /// An RC queue pair
    Qp,
    /// A virtual queue pair with policy `exact` and PSN evidence
    Vqp,
    /// A second RC queue pair
    Aa,
    /// A virtual queue pair with policy `none`, which needs no evidence
    #[value(name = "vqp+none")]
    VqpNone,
    /// A virtual queue pair with a completion log
    #[value(name = "vqp+log")]
    VqpLog,
    /// A virtual queue pair with a completion log that has one entry for four WRITEs
    #[value(name = "vqp+log4")]
    VqpLog4,
}

impl Variant {
    /// Returns the name on the command line and in the rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::UdpBaseline => "udp_floor",
            Variant::Qp => "qp",
            Variant::Aa => "aa",
            Variant::Vqp => "vqp",
            Variant::VqpNone => "vqp+none",
            Variant::VqpLog => "vqp+log",
            Variant::VqpLog4 => "vqp+log4",
        }
    }
}

pub(crate) fn random() -> anyhow::Result<u64> {
    Ok(getrandom::u64()?)
}

/// Fills `len` bytes with the pattern of a block, and the last word with `last`.
pub(crate) fn fill_pattern(qp: &impl BenchQp, offset: usize, len: usize, block: u32, last: u64) {
    for at in (0..len - 8).step_by(8) {
        qp.memory().store(offset + at, pattern(block, at));
    }
    qp.memory().store(offset + len - 8, last);
}

/// Checks the pattern of a block in all words but the last.
pub(crate) fn check_pattern(qp: &impl BenchQp, offset: usize, len: usize, block: u32) -> anyhow::Result<()> {
    for at in (0..len - 8).step_by(8) {
        let (is, should) = (qp.memory().load(offset + at), pattern(block, at));
        ensure!(is == should, "wrong data at byte {at} of {len}: {is:#x} instead of {should:#x}");
    }
    Ok(())
}

fn pattern(block: u32, at: usize) -> u64 {
    (u64::from(block) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

//! Each process's end of what is compared: two NICs, a plain socket, bare and virtual queue pairs, one peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, ensure};
use mitra_failover::{DetectorConfig, Domain};
use mitra_softnic::SoftNic;
use mitra_verbs::{Mtu, Provider, RecvWr};
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, DEPTH, Op, RD_ATOMIC, RcQp, RcQpInfo, VqpInfo, VqpUnderTest, request};
use super::clock::Deadline;
use super::udp_baseline::UdpBaseline;
use mitra_peer_process::PeerConnection;

/// Receives that each qp keeps posted.
const RECVS: u32 = 32;
/// Words behind the two halves of a qp's memory.
const WORDS: usize = 64;

/// Where the NICs of a process are to be, and the bound on their MTU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NicPlacement {
    /// One for each rail; none takes free loopback addresses.
    pub(crate) addresses: Option<[IpAddr; 2]>,
    /// In bytes.
    pub(crate) mtu: Option<usize>,
}

impl NicPlacement {
    /// Opens a NIC for each rail.
    pub(crate) fn open(&self) -> anyhow::Result<[Arc<SoftNic>; 2]> {
        let open = |rail: usize| -> anyhow::Result<Arc<SoftNic>> {
            let mut config = match self.addresses {
                Some(addresses) => mitra_softnic::Config::at(addresses[rail]),
                None => mitra_softnic::Config::loopback(),
            };
            config.max_mtu = self.mtu.and_then(Mtu::from_bytes);
            SoftNic::open(config).with_context(|| format!("cannot open the NIC of rail {rail}"))
        };
        Ok([open(0)?, open(1)?])
    }
}

/// The halves and words of a qp's memory: what comes, what goes, and what is said on the side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of each half.
    pub(crate) half: usize,
}

impl Layout {
    pub(crate) fn new(half: usize) -> Layout {
        Layout { half: half.next_multiple_of(64) }
    }

    /// Where the peer's bytes come.
    pub(crate) fn inbox(self) -> usize {
        0
    }

    /// Where our bytes go from.
    pub(crate) fn outbox(self) -> usize {
        self.half
    }

    /// The peer writes here that the block is over.
    pub(crate) fn stop(self) -> usize {
        2 * self.half
    }

    /// The word that FAA counts in.
    pub(crate) fn counter(self) -> usize {
        2 * self.half + 8
    }

    /// Where the words that we write come from.
    pub(crate) fn word(self) -> usize {
        2 * self.half + 16
    }

    /// All of it.
    pub(crate) fn len(self) -> usize {
        2 * self.half + WORDS
    }
}

/// One process's end of everything.
pub(crate) struct Endpoint {
    /// Rail 0's NIC carries the bare queue pairs too.
    pub(crate) nics: [Arc<SoftNic>; 2],
    pub(crate) layout: Layout,
    pub(crate) udp: UdpBaseline,
    pub(crate) qp: RcQp,
    /// The same once more: what differs between equals.
    pub(crate) aa: RcQp,
    pub(crate) vqp: VqpUnderTest,
    pub(crate) vqp_log: VqpUnderTest,
}

#[derive(Serialize, Deserialize)]
struct Infos {
    udp: SocketAddr,
    qp: RcQpInfo,
    aa: RcQpInfo,
    vqp: VqpInfo,
    vqp_log: VqpInfo,
}

impl Endpoint {
    /// Opens this end and connects it with the other, which does the same. `half`: bytes each way.
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
            send_wrs: DEPTH,
            recv_wrs: DEPTH,
            rd_atomic: RD_ATOMIC,
            detector: detector(),
            ..mitra_failover::Config::default()
        };
        let virtual_qp = |log: bool| -> anyhow::Result<VqpUnderTest> {
            VqpUnderTest::new(
                &domain,
                mitra_failover::Config { completion_log: log, ..config },
                layout.len(),
                [random()?, random()?],
            )
        };
        let mut endpoint = Endpoint {
            udp: UdpBaseline::open()?,
            qp: RcQp::new(&providers[0], layout.len(), random()? as u32)?,
            aa: RcQp::new(&providers[0], layout.len(), random()? as u32)?,
            vqp: virtual_qp(false)?,
            vqp_log: virtual_qp(true)?,
            layout,
            nics,
        };
        connection.send(&endpoint.infos()?)?;
        let peer: Infos = connection.receive()?;
        endpoint.udp.connect(peer.udp);
        endpoint.qp.connect(&peer.qp)?;
        endpoint.aa.connect(&peer.aa)?;
        endpoint.vqp.connect(&peer.vqp)?;
        endpoint.vqp_log.connect(&peer.vqp_log)?;
        for _ in 0..RECVS {
            post_recv(&mut endpoint.qp, layout)?;
            post_recv(&mut endpoint.aa, layout)?;
            post_recv(&mut endpoint.vqp, layout)?;
            post_recv(&mut endpoint.vqp_log, layout)?;
        }
        // Neither posts before both are connected.
        connection.send(&())?;
        connection.receive::<()>()?;
        Ok(endpoint)
    }

    fn infos(&self) -> anyhow::Result<Infos> {
        Ok(Infos {
            udp: self.udp.address()?,
            qp: self.qp.info()?,
            aa: self.aa.info()?,
            vqp: self.vqp.info()?,
            vqp_log: self.vqp_log.info()?,
        })
    }

    /// The MTU of rail 0.
    pub(crate) fn mtu(&self) -> anyhow::Result<usize> {
        Ok(self.nics[0].query_port()?.max_mtu.bytes())
    }
}

/// What one process does in a block, on a qp, whichever it is, or on the plain socket.
pub(crate) trait BlockTask {
    /// What comes of it.
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
    /// Does it on what the variant names.
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
            Variant::VqpLog => task.on_qp(&mut self.vqp_log, self.layout, connection),
        }
    }

    /// What our NICs have counted, without the zeros.
    pub(crate) fn counters(&self) -> serde_json::Value {
        let of = |nic: &Arc<SoftNic>| -> serde_json::Value {
            nic.counters().into_iter().filter(|c| c.value > 0).map(|c| (c.name, c.value)).collect()
        };
        self.nics.iter().map(of).collect()
    }
}

/// Tells the peer, which lends its memory and waits in [`serve_until_stop`], that the block is over.
pub(crate) fn signal_stop<L: BenchQp>(qp: &mut L, layout: Layout, word: u64) -> anyhow::Result<()> {
    qp.memory().store(layout.word(), word);
    let stop = request(qp, Op::Write, layout.word(), layout.stop(), 8);
    qp.post_when_room(stop)
}

/// Drives a qp until the peer says that the block is over.
pub(crate) fn serve_until_stop<L: BenchQp>(qp: &mut L, layout: Layout, word: u64) -> anyhow::Result<()> {
    let mut deadline = Deadline::patient();
    while qp.memory().load(layout.stop()) != word {
        qp.poll()?;
        deadline.check()?;
    }
    Ok(())
}

/// Heartbeats as always, but nothing is to be given up because the machine is busy: nothing fails in a bench of speed.
pub(crate) fn detector() -> DetectorConfig {
    DetectorConfig {
        max_missed_heartbeats: 250,
        local_ack_timeout: mitra_verbs::LocalAckTimeout::from_code(17),
        ..DetectorConfig::default()
    }
}

/// Posts a receive for anything that fits half of the memory.
pub(crate) fn post_recv<L: BenchQp>(qp: &mut L, layout: Layout) -> anyhow::Result<()> {
    let sges = qp.local(layout.inbox(), layout.half);
    qp.post_recv(RecvWr { wr_id: 0, sges })
}

/// What is measured against what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Variant {
    /// A plain UDP socket
    #[value(name = "udp_floor")]
    UdpBaseline,
    /// A bare queue pair
    Qp,
    /// A virtual queue pair: `exact`, PSN evidence
    Vqp,
    /// Another bare queue pair
    Aa,
    /// A virtual queue pair with a completion log
    #[value(name = "vqp+log")]
    VqpLog,
}

impl Variant {
    /// As on the command line and in the rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::UdpBaseline => "udp_floor",
            Variant::Qp => "qp",
            Variant::Aa => "aa",
            Variant::Vqp => "vqp",
            Variant::VqpLog => "vqp+log",
        }
    }
}

/// 64 unpredictable bits.
pub(crate) fn random() -> anyhow::Result<u64> {
    Ok(getrandom::u64()?)
}

/// Fills `len` bytes with what only this block has, and with `last` in the last word.
pub(crate) fn fill(qp: &impl BenchQp, offset: usize, len: usize, block: u32, last: u64) {
    for at in (0..len - 8).step_by(8) {
        qp.memory().store(offset + at, pattern(block, at));
    }
    qp.memory().store(offset + len - 8, last);
}

/// Checks all but the last word.
pub(crate) fn check(qp: &impl BenchQp, offset: usize, len: usize, block: u32) -> anyhow::Result<()> {
    for at in (0..len - 8).step_by(8) {
        let (is, should) = (qp.memory().load(offset + at), pattern(block, at));
        ensure!(is == should, "wrong data at byte {at} of {len}: {is:#x} instead of {should:#x}");
    }
    Ok(())
}

fn pattern(block: u32, at: usize) -> u64 {
    (u64::from(block) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

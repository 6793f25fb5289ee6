//! A process that crashes and is started again at the same addresses. The surviving process
//! connects to the new process by a second vQP while its old vQP still posts. Packets of the old
//! vQP are held back until the new process runs.
//!
//! The outcomes on the new vQP are true, and no packet of the old vQP reaches the memory of the new
//! process. The old vQP ends with an error that names the peer. The outcomes on the old vQP are
//! true for the memory of the process that crashed.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CloseReason, CompletionLogConfig, Config as VqpConfig, Domain, VirtualMr};
use mitra_verbs::{Access, Buffer, Error, LocalAckTimeout};

use super::{Finding, SeedRun, domain, run_phases, verdict_findings};
use mitra_sim::workload::{OpKind, PeerApp, Plan, VqpEndpoint, WorkloadPeer, connect_vqp_in, verify};
use mitra_sim::{Config, HostId, PacketFate, PacketKind, Prng, SimNic, World};

/// The time for the liveness phase.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);
/// The longest time for which a packet is held back, in nanoseconds.
const LONGEST_HOLD: u64 = 80_000_000;
/// The size of memory of the new process that no request names.
const UNUSED_BYTES: usize = 1 << 14;

struct Life {
    plans: [Plan; 2],
    peers: [Rc<RefCell<WorkloadPeer>>; 2],
    endpoints: [Rc<RefCell<VqpEndpoint>>; 2],
}

impl Life {
    fn connect(
        world: &mut World,
        hosts: [HostId; 2],
        domains: [&Arc<Domain>; 2],
        vqp: VqpConfig,
        rng: &mut Prng,
    ) -> Result<Life, Error> {
        let plans = [1, 2].map(|tag| draw_plan(rng, tag));
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let endpoints = connect_vqp_in(domains.map(Arc::clone), peers.each_mut(), vqp, rng.below(1 << 32))?;
        let life = Life {
            plans,
            peers: peers.map(|peer| Rc::new(RefCell::new(peer))),
            endpoints: endpoints.map(|endpoint| Rc::new(RefCell::new(endpoint))),
        };
        for (h, host) in hosts.into_iter().enumerate() {
            let (peer, endpoint) = (Rc::clone(&life.peers[h]), Rc::clone(&life.endpoints[h]));
            world.add_app(host, PeerApp { peer, endpoint });
        }
        Ok(life)
    }

    /// Compares the outcomes that were reported to an end with the effects in the memory of the
    /// other end.
    fn findings_of(&self, end: usize) -> Vec<Finding> {
        let [own, other] = [&self.peers[end], &self.peers[1 - end]].map(|peer| peer.borrow());
        let verdict = verify(&self.plans[end], own.requester_log(), other.responder_log());
        verdict_findings::of_verdict(["a", "b"][end], &verdict)
    }
}

fn draw_plan(rng: &mut Prng, tag: u16) -> Plan {
    let mut plan = Plan::new(rng.bits(), *rng.pick(&[20, 40, 80]));
    plan.tag = tag;
    plan.ordered = true;
    plan.max_len = 64 << rng.below(8);
    plan.depth = rng.between(1, 32) as usize;
    plan.receives = rng.between(4, 32) as usize;
    if rng.below(2) == 0 {
        plan =
            plan.only(&[OpKind::Write, OpKind::Block, OpKind::Read, OpKind::CompareSwap, OpKind::FetchAdd]);
    }
    plan
}

fn draw_vqp(rng: &mut Prng) -> VqpConfig {
    let mut vqp = VqpConfig { send_wrs: 32, recv_wrs: 32, ..VqpConfig::default() };
    vqp.peer_timeout = Duration::from_millis(150 << rng.below(3));
    vqp.control_retry_interval = Duration::from_micros(500);
    vqp.completion_log = (rng.below(3) == 0).then(CompletionLogConfig::default);
    vqp.detector.local_ack_timeout = LocalAckTimeout::from_code(rng.between(9, 11) as u8);
    vqp.detector.retry_cnt = *rng.pick(&[1, 3, 7]);
    vqp.detector.heartbeat_interval = Duration::from_millis(2);
    vqp.detector.max_missed_heartbeats = *rng.pick(&[8, 40]);
    vqp
}

struct RestartWorld {
    world: World,
    hosts: [HostId; 2],
    nics: [Vec<Arc<SimNic>>; 2],
    survivor: Arc<Domain>,
    vqp: VqpConfig,
    old: Life,
    new: Option<(Life, Arc<Buffer>, VirtualMr)>,
    crash_at: Duration,
    /// From the crash to the start of the new process.
    away: Duration,
}

pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let rng = &mut Prng::stream(seed, "restart");
    let mut result = SeedRun::of(|result| {
        let mut made = RestartWorld::new(seed, rng, kept_records)?;
        made.run(rng, result)?;
        let lives = made.new.iter().map(|(life, ..)| life).chain([&made.old]);
        result.operations = lives.flat_map(|life| &life.peers).map(|p| p.borrow().posted() as u64).sum();
        result.keep_trace(&made.world, kept_records, || {
            vec![format!("crashes at {:?}, away for {:?}", made.crash_at, made.away)]
        });
        Ok(())
    });
    result.faults = 1;
    result
}

impl RestartWorld {
    fn new(seed: u64, rng: &mut Prng, kept_records: usize) -> Result<RestartWorld, Error> {
        let mut config = Config::swarm(seed);
        config.host.pause_ppm = 0;
        (config.capabilities.ack_after_placement, config.capabilities.write_order) = (true, true);
        (config.capabilities.psn_query, config.capabilities.saved_results) = (true, true);
        let mut world = World::with_trace_len(seed, config, kept_records);
        let hosts = ["a", "b"].map(|name| world.add_host(name));
        let rails = rng.between(1, 3) as u8;
        let nics = hosts.map(|host| (0..rails).map(|rail| world.add_nic(host, rail)).collect::<Vec<_>>());
        let (survivor, crashing) = (domain(&nics[0])?, domain(&nics[1])?);
        let vqp = draw_vqp(rng);
        let old = Life::connect(&mut world, hosts, [&survivor, &crashing], vqp, rng)?;
        let latest = 20_000 << rng.below(8);
        let crash_at = Duration::from_nanos(rng.between(1_000, latest));
        let longest = 10_000 << rng.below(16);
        let away = Duration::from_nanos(rng.between(0, longest));
        Ok(RestartWorld { world, hosts, nics, survivor, vqp, old, new: None, crash_at, away })
    }

    /// Holds packets of the survivor back. Many arrive only when the new process runs.
    fn hold_packets(&mut self, rng: &mut Prng) {
        for _ in 0..rng.below(6) {
            let nic = rng.pick(&self.nics[0]).id();
            let kind = *rng.pick(&PacketKind::DRAWN);
            let hold = PacketFate::Held(Duration::from_nanos(rng.between(10_000, LONGEST_HOLD)));
            let nth = 1 + (rng.below(16) >> rng.below(5)) as u32;
            self.world.fail_at_packet(nic, kind, false, nth, hold, &[]);
        }
    }

    fn run(&mut self, rng: &mut Prng, result: &mut SeedRun) -> Result<(), Error> {
        self.hold_packets(rng);
        self.world.run_for(self.crash_at);
        self.world.exit(self.hosts[1]);
        self.world.run_for(self.away);
        let own_end = self.old.endpoints[0].borrow().qp.close_reason();
        self.restart(rng)?;
        let Some((new, ..)) = &self.new else { return Ok(()) };
        let (peers, old) = (new.peers.each_ref().map(Rc::clone), Rc::clone(&self.old.endpoints[0]));
        let survivor = Rc::clone(&self.old.peers[0]);
        let is_done = move |_: &World| {
            peers.iter().all(|peer| peer.borrow().is_done())
                && survivor.borrow().is_done()
                && old.borrow().qp.close_reason().is_some()
        };
        let safety = Duration::from_millis(200);
        let ended = run_phases(&mut self.world, is_done, safety, World::heal, LIVENESS_LIMIT);
        result.must_reach("stuck", ended);
        self.world.heal();
        // Held packets arrive, and both programs take what has arrived.
        self.world.run_for(Duration::from_millis(2) + Duration::from_nanos(LONGEST_HOLD));
        self.check(own_end, result);
        Ok(())
    }

    /// Starts a process with NICs at the same addresses, and connects it to the survivor.
    fn restart(&mut self, rng: &mut Prng) -> Result<(), Error> {
        let host = self.hosts[1];
        self.nics[1] = (0..self.nics[0].len()).map(|rail| self.world.add_nic(host, rail as u8)).collect();
        self.world.resume(host);
        let started = domain(&self.nics[1])?;
        let unused = Arc::new(Buffer::new(UNUSED_BYTES));
        let mr = started.register(&unused, Access::LOCAL_WRITE | Access::REMOTE)?;
        let domains = [&self.survivor, &started];
        let life = Life::connect(&mut self.world, self.hosts, domains, self.vqp, rng)?;
        self.new = Some((life, unused, mr));
        Ok(())
    }

    fn check(&self, own_end: Option<CloseReason>, result: &mut SeedRun) {
        let Some((new, unused, _)) = &self.new else { return };
        for peer in self.old.peers.iter().chain(&new.peers) {
            peer.borrow_mut().sweep();
        }
        for end in [0, 1] {
            result.findings.extend(new.findings_of(end));
        }
        // The process that crashed had received messages that its log lacks.
        let has_messages =
            [OpKind::Send, OpKind::WriteImm].iter().any(|&kind| self.old.plans[0].mix[kind as usize] > 0);
        if !has_messages {
            result.findings.extend(self.old.findings_of(0));
        }
        result.findings.extend(self.old.findings_of(1));
        if (0..UNUSED_BYTES / 8).any(|word| unused.load(8 * word) != 0) {
            result.violation("touched", "memory that no request of the new process names has changed");
        }
        let reason = self.old.endpoints[0].borrow().qp.close_reason();
        // `FailedDuringRecovery` if the process crashes in a move that it has not confirmed.
        use CloseReason::{FailedDuringRecovery, PeerExited, PeerUnreachable};
        if !matches!(reason, Some(PeerExited | PeerUnreachable | FailedDuringRecovery)) {
            result.violation(
                "reason",
                format!("the old connection ended as {reason:?}, at the restart as {own_end:?}"),
            );
        }
        let reasons = new.endpoints.each_ref().map(|end| end.borrow().qp.close_reason());
        if reasons != [None; 2] {
            result.violation("ended-with-a-good-rail", format!("the new connection ended as {reasons:?}"));
        }
    }
}

//! Two clients, each with a shared backup, use one word of a server by atomics. The NICs' atomics
//! are atomic per NIC only, so the queue pairs of both must be on one rail at a time.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BackedQp, Completion, Domain, Outcome, Secret, SharedBackup, VirtualMr, VirtualQp};
use mitra_sim::{Prng, SimNic, World, reproduce_command, seeds};
use mitra_verbs::{Access, AtomicScope, Buffer, Data, Provider, SendOp, SendWr};

use super::run::config;

const CLIENTS: usize = 2;
const MEMBERS: usize = 2;
const INCREMENTS: u64 = 400;
const DEPTH: u64 = 8;

fn domain(nics: &[Arc<SimNic>]) -> Arc<Domain> {
    Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
        .expect("the NICs have room")
}

/// The connection of a client process to the server process.
struct Client {
    backups: [Arc<SharedBackup>; 2],
    qps: Vec<[BackedQp; 2]>,
    results: Arc<Buffer>,
    mr: VirtualMr,
    /// For each member, the number of posted atomics, and the values that they found.
    posted: [u64; MEMBERS],
    found: [Vec<u64>; MEMBERS],
}

impl Client {
    /// Connects to the server. End 0 is the client's end.
    fn new(nics: &[Arc<SimNic>], server: &Arc<Domain>, word: &VirtualMr, seed: u64) -> Client {
        let domains = [domain(nics), Arc::clone(server)];
        let backups = [0, 1].map(|h: usize| {
            let secret = Secret::fixed([seed + h as u64, seed ^ 0xabcd ^ h as u64]);
            let builder = VirtualQp::builder(&domains[h]).config(config()).secret(secret);
            SharedBackup::new(builder).expect("the NICs have room")
        });
        let infos = backups.each_ref().map(|backup| backup.local_info());
        backups[0].connect(&infos[1]).expect("the ends match");
        backups[1].connect(&infos[0]).expect("the ends match");
        let qps = (0..MEMBERS).map(|_| {
            let [mut a, mut b] =
                backups.each_ref().map(|backup| backup.queue_pair(config()).expect("the NICs have room"));
            a.connect(&b.local_info()).expect("the ends match");
            b.connect(&a.local_info()).expect("the ends match");
            a.import(&word.remote()).expect("is connected");
            [a, b]
        });
        let results = Arc::new(Buffer::new(8 * DEPTH as usize * MEMBERS));
        let mr = domains[0].register(&results, Access::LOCAL_WRITE).expect("the NICs have room");
        Client { qps: qps.collect(), backups, results, mr, posted: [0; MEMBERS], found: Default::default() }
    }

    fn step(&mut self, word: &VirtualMr) {
        for (member, [qp, server]) in self.qps.iter_mut().enumerate() {
            let mut completions: Vec<Completion> = Vec::new();
            server.poll(&mut Vec::new());
            qp.poll(&mut completions);
            for completion in completions {
                assert_eq!(completion.outcome, Outcome::Success, "links fail, and no NIC");
                self.found[member].push(self.results.load(completion.wr_id as usize));
            }
            if self.posted[member] < INCREMENTS.min(self.found[member].len() as u64 + DEPTH) {
                let slot = 8 * (member as u64 * DEPTH + self.posted[member] % DEPTH);
                let op = SendOp::FetchAdd { remote: word.remote().at(0), add: 1 };
                qp.post_send(SendWr::new(slot, op, Data::sge(self.mr.sge(slot, 8))))
                    .expect("the queue has room");
                self.posted[member] += 1;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.found.iter().all(|found| found.len() as u64 == INCREMENTS)
    }
}

/// Runs the clients while links fail. Returns the values that their atomics found, the word, and
/// the server's rails.
fn run(seed: u64, shares: bool) -> (Vec<u64>, u64, [usize; CLIENTS]) {
    let mut config = mitra_sim::Config::fault_free();
    config.link.switched = true; // the rails of the clients fail one by one
    config.memory.atomic_delay = mitra_sim::DurationRange::nanos(100, 3_000);
    assert_eq!(config.capabilities.atomic_scope, AtomicScope::Nic);
    let mut world = World::with_config(seed, config);
    let nics: Vec<Vec<_>> = (0..=CLIENTS)
        .map(|n| {
            let host = world.add_host(&format!("h{n}"));
            (0..2).map(|rail| world.add_nic(host, rail)).collect()
        })
        .collect();
    let server = domain(&nics[0]);
    let word = Arc::new(Buffer::new(8));
    let mr = server.register(&word, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have room");
    let mut rng = Prng::new(seed);
    let share = || server.share_atomics().expect("every queue pair fences the rail that it leaves");
    let shares_before = shares && rng.below(2) == 0;
    if shares_before {
        share();
    }
    let mut clients: Vec<_> =
        (1..=CLIENTS).map(|n| Client::new(&nics[n], &server, &mr, 100 * seed + 2 * n as u64)).collect();
    if shares && !shares_before {
        share();
    }
    let mut down = None;
    for step in 0..30_000 {
        if let Some((nic, until)) = down
            && step > until
        {
            world.set_link(nic, true);
            down = None;
        } else if down.is_none() && rng.below(40) == 0 {
            let nic = nics[rng.index(CLIENTS + 1)][rng.index(2)].id();
            world.set_link(nic, false);
            down = Some((nic, step + rng.below(200)));
        }
        clients.iter_mut().for_each(|client| client.step(&mr));
        world.run_for(Duration::from_nanos(rng.between(500, 20_000)));
        if clients.iter().all(Client::is_done) {
            break;
        }
    }
    assert!(
        clients.iter().all(Client::is_done),
        "seed {seed}: work is not done\n{}",
        reproduce_command(seed)
    );
    if let Some((nic, _)) = down {
        world.set_link(nic, true);
    }
    for _ in 0..4_000 {
        clients.iter_mut().for_each(|client| client.step(&mr));
        world.run_for(Duration::from_micros(25));
    }
    let mut found: Vec<_> =
        clients.iter().flat_map(|client| client.found.iter().flatten().copied()).collect();
    found.sort_unstable();
    let rails: Vec<_> = clients.iter().map(|client| client.backups[1].active_rail()).collect();
    assert!(clients.iter().flat_map(|c| &c.qps).flatten().all(BackedQp::has_rail), "seed {seed}");
    (found, word.load(0), [rails[0], rails[1]])
}

#[test]
fn clients_lose_no_update_while_links_fail() {
    const ALL: u64 = CLIENTS as u64 * MEMBERS as u64 * INCREMENTS;
    let (mut moved, mut lost) = (0, 0);
    for seed in seeds(60) {
        let (found, word, rails) = run(seed, true);
        assert!(
            found.into_iter().eq(0..ALL),
            "seed {seed}: a value was found twice\n{}",
            reproduce_command(seed)
        );
        assert_eq!((word, rails[0]), (ALL, rails[1]), "seed {seed}\n{}", reproduce_command(seed));
        moved += rails[0];
        lost += u32::from(run(seed, false).1 < ALL);
    }
    println!("home on rail 1 in the end: {moved}, lost updates without a home: {lost}");
    assert!(moved > 0 && lost > 0, "{moved} {lost}");
}

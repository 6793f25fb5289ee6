//! Tests a replicated register in the simulator: three hosts lend memory, one client writes the
//! register, two read it, and links and NICs fail. The register comes in two versions. One version
//! lacks a step, and a seed shows that a reader gets a wrong value. No seed breaks the other
//! version.
//!
//! Run with `cargo run -p mitra-sim --example register`.
//!
//! The register is the one by Attiya, Bar-Noy and Dolev, with one-sided operations. Each client
//! owns a word in the memory of each replica. An operation is done when a majority of the replicas
//! has answered. A write stores a new value in the writer's words. A read fetches all words, and
//! takes the newest value. The reader stores that value in its own words before the read returns.
//! Otherwise a later read by another client could find a majority without that value.

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_failover::{Completion, Domain, RemoteRegion, VirtualMr, VirtualQp};
use mitra_sim::{AppContext, Failure, HostId, World, seeds};
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr, Time};

const REPLICAS: usize = 3;
const CLIENTS: usize = 3;
const RAILS: u8 = 2;
/// The number of operations of each client.
const OPERATIONS: usize = 30;
/// The number of seeds. The correct version must survive all of them, and one of them must break
/// the other version.
const SEEDS: u64 = 60;

/// The version of the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    /// A reader returns what it has found, without storing it.
    WithoutStore,
    Correct,
}

// The program under test. It knows virtual queue pairs, and nothing of the simulator.

/// A client's connection to a replica.
struct Link {
    vqp: VirtualQp,
    words: RemoteRegion,
    /// The words of the replica, when a fetch has been answered.
    fetched: Arc<Buffer>,
    fetched_mr: VirtualMr,
    request: Request,
}

/// The request of the current phase to one replica.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Unposted,
    Posted,
    Answered,
}

#[derive(Clone, Copy)]
enum Phase {
    Idle,
    Fetch,
    Store(u64),
}

/// A client of the register.
struct Client {
    links: Vec<Link>,
    /// The offset of the client's word at each replica.
    own_word: u64,
    version: Version,
    phase: Phase,
    /// The `wr_id` of the requests of this phase. A late answer to an earlier phase has another
    /// `wr_id`.
    phase_number: u64,
}

impl Client {
    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_number += 1;
        self.links.iter_mut().for_each(|link| link.request = Request::Unposted);
    }

    /// Drives the operation under way. When the operation is done, returns the value that it has
    /// written or read.
    fn poll(&mut self) -> Option<u64> {
        for link in &mut self.links {
            link.poll(self.phase, self.phase_number, self.own_word);
        }
        let answered = self.links.iter().filter(|link| link.request == Request::Answered);
        if answered.clone().count() <= REPLICAS / 2 {
            return None;
        }
        match self.phase {
            Phase::Idle => None,
            Phase::Fetch => {
                let words =
                    answered.flat_map(|link| (0..CLIENTS).map(|client| link.fetched.load(client * 8)));
                let newest = words.max().unwrap_or_default();
                if self.version == Version::Correct {
                    self.begin(Phase::Store(newest));
                    return None;
                }
                self.begin(Phase::Idle);
                Some(newest)
            }
            Phase::Store(value) => {
                self.begin(Phase::Idle);
                Some(value)
            }
        }
    }
}

impl Link {
    fn poll(&mut self, phase: Phase, phase_number: u64, own_word: u64) {
        let mut completions: Vec<Completion> = Vec::new();
        self.vqp.poll(&mut completions);
        for completion in completions {
            if completion.wr_id == phase_number {
                // After an error the request is posted again. It may be executed twice, which
                // changes nothing: only this client writes the word.
                self.request = if completion.is_success() { Request::Answered } else { Request::Unposted };
            }
            if !completion.is_success() {
                self.vqp.resume();
            }
        }
        let (op, data) = match phase {
            Phase::Idle => return,
            Phase::Fetch => {
                let words = self.fetched_mr.sge(0, 8 * CLIENTS as u32);
                (SendOp::Read(self.words.at(0)), Data::sge(words))
            }
            Phase::Store(value) => {
                (SendOp::Write(self.words.at(own_word)), Data::inline(&value.to_ne_bytes()))
            }
        };
        // A replica that cannot be reached, or whose send queue is full, is asked again in a later
        // turn.
        if self.request == Request::Unposted
            && self.vqp.post_send(SendWr::new(phase_number, op, data)).is_ok()
        {
            self.request = Request::Posted;
        }
    }
}

// The test: a world, the programs in it, the faults, and what must hold.

/// An operation as its client saw it.
struct Operation {
    is_write: bool,
    value: u64,
    start: Time,
    end: Option<Time>,
}

type History = Rc<RefCell<Vec<Operation>>>;

/// Checks that the operations took effect one at a time, each between its start and its end. There
/// is one writer, and its values grow. So two rules suffice: the write of a value that a read
/// returns began before the end of the read, and no operation that ended before the start of the
/// read had written or read a newer value.
fn check(history: &[Operation]) -> Result<(), String> {
    for read in history.iter().filter(|operation| !operation.is_write) {
        let Some(end) = read.end else { continue };
        let is_before = |other: &&Operation| other.end.is_some_and(|end| end < read.start);
        let newest_before = history.iter().filter(is_before).map(|other| other.value).max().unwrap_or(0);
        if read.value < newest_before {
            return Err(format!(
                "a read from {} ns to {} ns returned {}, but {newest_before} had been written or read before",
                read.start.as_nanos(),
                end.as_nanos(),
                read.value
            ));
        }
        let is_written =
            |other: &Operation| other.is_write && other.value == read.value && other.start <= end;
        if read.value > 0 && !history.iter().any(is_written) {
            return Err(format!("a read returned {}, which nobody had written", read.value));
        }
    }
    Ok(())
}

/// Adds a host with a NIC on each rail. Returns the host, and the domain of its NICs.
fn add_host(world: &mut World, name: &str) -> Result<(HostId, Arc<Domain>), Box<dyn Error>> {
    let host = world.add_host(name);
    let nics = (0..RAILS).map(|rail| world.add_nic(host, rail) as Arc<dyn Provider>).collect();
    Ok((host, Domain::new(nics)?))
}

/// Runs the register in a world, and checks what the clients saw.
fn run(world: &mut World, version: Version) -> Result<(), Box<dyn Error>> {
    let mut replicas = Vec::new();
    for name in ["r0", "r1", "r2"] {
        let (host, domain) = add_host(world, name)?;
        let words =
            domain.register(&Arc::new(Buffer::new(8 * CLIENTS)), Access::LOCAL_WRITE | Access::REMOTE)?;
        replicas.push((host, domain, words.remote()));
    }
    let history = History::default();
    for (number, name) in ["writer", "reader1", "reader2"].into_iter().enumerate() {
        let (host, domain) = add_host(world, name)?;
        let mut links = Vec::new();
        for (replica, replica_domain, words) in &replicas {
            let mut vqp = VirtualQp::builder(&domain).build()?;
            let mut peer = VirtualQp::builder(replica_domain).build()?;
            let (info, peer_info) = (vqp.local_info(), peer.local_info());
            vqp.connect(&peer_info)?;
            peer.connect(&info)?;
            vqp.import(words)?;
            let fetched = Arc::new(Buffer::new(8 * CLIENTS));
            let fetched_mr = domain.register(&fetched, Access::LOCAL_WRITE)?;
            let request = Request::Unposted;
            links.push(Link { vqp, words: words.clone(), fetched, fetched_mr, request });
            // The replica's program takes part in failovers, and does nothing else.
            world.add_app(*replica, move |_: &mut AppContext<'_>| peer.progress());
        }
        let own_word = 8 * number as u64;
        let client = Client { links, own_word, version, phase: Phase::Idle, phase_number: 0 };
        world.add_app(host, program(client, Rc::clone(&history)));
    }

    // Every replica may lose its NIC or link of rail 0, and one replica its NIC of rail 1 too. The
    // failure of a link may take the whole rail down.
    let mut rng = world.test_rng("faults");
    for _ in 0..5 {
        let is_second_rail = rng.below(4) == 0;
        let replica = if is_second_rail { 0 } else { rng.below(REPLICAS as u64) as usize };
        let (host, rail) = (replicas[replica].0, u8::from(is_second_rail));
        let failure = if is_second_rail || rng.below(2) == 0 { Failure::NicDead } else { Failure::LinkDown };
        let at = Duration::from_micros(rng.below(400));
        world.after(at, move |world| world.fail(world.nic(host, rail), failure));
    }
    let all = CLIENTS * OPERATIONS;
    let is_done =
        |_: &World| history.borrow().iter().filter(|operation| operation.end.is_some()).count() == all;
    world.run_until(is_done, Duration::from_secs(20))?;
    Ok(check(&history.borrow())?)
}

/// Returns the program of a client: it begins one operation after another, at times that the seed
/// chooses.
fn program(mut client: Client, history: History) -> impl FnMut(&mut AppContext<'_>) {
    let is_writer = client.own_word == 0;
    let (mut begun, mut under_way) = (0, None);
    move |ctx| {
        if let Some(value) = client.poll() {
            let index: usize = under_way.take().expect("an operation that ends was begun");
            let operation = &mut history.borrow_mut()[index];
            (operation.value, operation.end) = (value, Some(ctx.now()));
            let pause = Duration::from_nanos(ctx.rng().below(10_000));
            ctx.sleep(pause);
        } else if under_way.is_none() && begun < OPERATIONS {
            begun += 1;
            let value = if is_writer { begun as u64 } else { 0 };
            client.begin(if is_writer { Phase::Store(value) } else { Phase::Fetch });
            let mut history = history.borrow_mut();
            under_way = Some(history.len());
            history.push(Operation { is_write: is_writer, value, start: ctx.now(), end: None });
            ctx.trace(format_args!("begins operation {begun} of {OPERATIONS}"));
        }
    }
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn Error>> {
    let broken = (0..SEEDS).find_map(|seed| {
        let error = run(&mut World::new(seed), Version::WithoutStore).err()?;
        Some((seed, error))
    });
    let (seed, error) = broken.ok_or("no seed has found the missing step")?;
    println!("without the store, seed {seed}: {error}");

    for seed in seeds(SEEDS) {
        let mut world = World::new(seed);
        // A panic while the world lives prints the world's state, the end of its trace, and how to
        // repeat the seed.
        run(&mut world, Version::Correct).unwrap_or_else(|error| panic!("{error}"));
    }
    println!("the correct register survives {} seeds", seeds(SEEDS).count());
    Ok(())
}

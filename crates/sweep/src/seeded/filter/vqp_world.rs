//! Clients and a server over virtual queue pairs of the policy `blanket`, while one rail fails.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Config, Domain, Policy, Secret, VirtualQp};
use mitra_filter::rpc::{ClientConfig, RpcClient, RpcServer, VqpCarrier, VqpConnection};
use mitra_filter::{BitFilter, BitSender, FilterCore, FilterTable, Sender, SenderCore};
use mitra_transport::fault::Failure;
use mitra_verbs::{Error, LocalAckTimeout, Result};

use super::Encounters;
use super::corrupting_carrier::CorruptingCarrier;
use super::programs::{Caller, Server, SharedRecord, add_app, finish, table_config};
use crate::seeded::faults::draw_time;
use crate::seeded::parts::Left;
use crate::seeded::{SeedRun, domain};
use mitra_sim::workload::virtual_qps;
use mitra_sim::{Prng, Testbed, World};

const MAX_MESSAGE: usize = 512;
const PEER_TIMEOUT: Duration = Duration::from_secs(2);
/// The places for connections at the server.
const PLACES: usize = 8;

type ClientCarrier = CorruptingCarrier<VqpCarrier>;
type SharedCaller<S> = Rc<RefCell<Caller<ClientCarrier, S>>>;
type NewClient = RpcClient<ClientCarrier, BitSender<Vec<u8>>>;

/// Runs a world. Half of the seeds have a filter of one bit for each node instead of a table.
pub(super) fn run(
    testbed: &mut Testbed,
    rng: &mut Prng,
    left: &mut Left<'_>,
    result: &mut SeedRun,
) -> Result<Encounters> {
    let domains = [domain(&testbed.nics[0])?, domain(&testbed.nics[1])?];
    left.parts.connections = rng.between(1, 3) as usize;
    let run = if rng.below(2) == 0 { run_one_bit } else { run_table };
    run(testbed, rng, left, &domains, result)
}

fn client_config(rng: &mut Prng) -> ClientConfig {
    ClientConfig { max_calls: 8, retry_interval: Duration::from_micros(rng.between(100, 20_000)) }
}

/// Returns the ends of the client and of the server.
fn connect(domains: &[Arc<Domain>; 2], rng: &mut Prng) -> Result<[VirtualQp; 2]> {
    let mut config = Config { policy: Policy::Blanket, send_wrs: 8, recv_wrs: 64, ..Config::default() };
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = PEER_TIMEOUT;
    let secrets = [0, 1].map(|_| Secret::fixed([rng.bits(), rng.bits()]));
    virtual_qps(domains.clone(), config, secrets)
}

/// Returns a carrier over one vQP, and the node of the server.
fn client_carrier(vqp: VirtualQp, rng: &mut Prng, closed: &Rc<Cell<u32>>) -> Result<(ClientCarrier, usize)> {
    let mut carrier = VqpCarrier::new(1, MAX_MESSAGE);
    let connected = carrier.connect(vqp).map_err(|_| Error::Invalid("the carrier refused a vQP"))?;
    let node = connected.node();
    let ppm = *rng.pick(&[0, 0, 20_000]);
    Ok((CorruptingCarrier::new(carrier, Prng::new(rng.bits()), ppm, closed), node))
}

fn run_one_bit(
    testbed: &mut Testbed,
    rng: &mut Prng,
    left: &mut Left<'_>,
    domains: &[Arc<Domain>; 2],
    result: &mut SeedRun,
) -> Result<Encounters> {
    let record = SharedRecord::default();
    let config = client_config(rng);
    let server = RpcServer::over_vqps(PLACES, MAX_MESSAGE);
    let server: Rc<RefCell<Server<VqpCarrier, BitFilter<Vec<u8>>>>> =
        Rc::new(RefCell::new(Server::new(server, &record)));
    let new_client = {
        let (server, domains) = (Rc::clone(&server), domains.clone());
        let closed = Rc::clone(&record.borrow().closed);
        move |rng: &mut Prng, earlier: Option<VqpConnection>| -> Result<(NewClient, VqpConnection)> {
            let [a, b] = connect(&domains, rng)?;
            let refused = Error::Invalid("the server refused a vQP");
            let mut server = server.borrow_mut();
            let server = server.server_mut().ok_or(refused.clone())?;
            let connected = match earlier {
                Some(earlier) => server.reconnect(earlier, b),
                None => server.connect(b),
            };
            let place = connected.map_err(|_| refused)?;
            let (carrier, node) = client_carrier(a, rng, &closed)?;
            Ok((RpcClient::one_bit(carrier, node, config), place))
        }
    };
    let (mut callers, mut places) = (Vec::new(), Vec::new());
    for number in 0..left.parts.connections as u8 {
        let (client, place) = new_client(rng, None)?;
        let caller = Caller::new(client, number, rng.between(1, 6) as usize, left.calls_of(number), &record);
        callers.push(Rc::new(RefCell::new(caller)));
        places.push(place);
    }
    if rng.below(2) == 0 {
        // Before the rail fails, a client restarts over a second connection.
        let index = rng.index(callers.len());
        let (caller, place) = (Rc::clone(&callers[index]), places[index]);
        let (after, mut rng) = (Duration::from_micros(rng.between(1, 300)), Prng::new(rng.bits()));
        if left.keeps_next_fault() {
            testbed.world.after(after, move |world| {
                world.trace_text("client restarts");
                // The NICs have room for one more vQP of each client.
                if let Ok((client, _)) = new_client(&mut rng, Some(place)) {
                    caller.borrow_mut().restart(|_| client);
                }
            });
        }
    }
    run_with_failure(testbed, rng, left, &record, &server, &callers, result)
}

fn run_table(
    testbed: &mut Testbed,
    rng: &mut Prng,
    left: &mut Left<'_>,
    domains: &[Arc<Domain>; 2],
    result: &mut SeedRun,
) -> Result<Encounters> {
    let record = SharedRecord::default();
    let config = client_config(rng);
    let table = table_config(rng, left.parts.connections as u64);
    let mut carrier = VqpCarrier::new(PLACES, MAX_MESSAGE);
    let mut callers: Vec<SharedCaller<Sender<Vec<u8>>>> = Vec::new();
    for number in 0..left.parts.connections as u8 {
        let [a, b] = connect(domains, rng)?;
        carrier.connect(b).map_err(|_| Error::Invalid("the server refused a vQP"))?;
        let (client, node) = client_carrier(a, rng, &record.borrow().closed)?;
        let client = RpcClient::new(client, node, 1_000, config);
        let caller = Caller::new(client, number, rng.between(1, 6) as usize, left.calls_of(number), &record);
        callers.push(Rc::new(RefCell::new(caller)));
    }
    let server: Server<VqpCarrier, FilterTable<usize, Vec<u8>>> =
        Server::new(RpcServer::new(carrier, rng.bits(), table), &record);
    run_with_failure(testbed, rng, left, &record, &Rc::new(RefCell::new(server)), &callers, result)
}

fn run_with_failure<S, F>(
    testbed: &mut Testbed,
    rng: &mut Prng,
    left: &mut Left<'_>,
    record: &SharedRecord,
    server: &Rc<RefCell<Server<VqpCarrier, F>>>,
    callers: &[SharedCaller<S>],
    result: &mut SeedRun,
) -> Result<Encounters>
where
    S: SenderCore<Vec<u8>> + 'static,
    F: FilterCore<usize, Vec<u8>> + 'static,
{
    add_app(testbed, 1, Rc::clone(server), Server::step);
    for caller in callers {
        add_app(testbed, 0, Rc::clone(caller), Caller::step);
    }
    // With the policy `blanket`, a vQP does not come back to a rail, so at most one rail fails. The
    // rail fails after the restart, which needs both rails.
    if rng.below(4) > 0 {
        let rail = rng.index(2);
        let nic = *rng.pick(&testbed.rail(rail));
        let failure = *rng.pick(&[Failure::LinkDown, Failure::LinkDown, Failure::NicDead]);
        let after = Duration::from_micros(300) + draw_time(rng, 1, 50_000, 6);
        if left.keeps_next_fault() {
            testbed.world.after(after, move |w| w.fail(nic, failure));
        }
    }
    let noisy = Duration::from_millis(200);
    let closed = Rc::clone(&record.borrow().closed);
    let world = &mut testbed.world;
    let encounters = finish(world, callers, server, record, noisy, World::stop_noise, result);
    let isolation = testbed.world.longest_isolation(testbed.hosts, PEER_TIMEOUT / 8);
    if closed.get() > 0 && isolation < PEER_TIMEOUT / 2 {
        let detail = format!("{} connections although both ends had a usable rail", closed.get());
        result.stuck("ended-with-a-good-rail", detail);
    }
    Ok(encounters)
}

//! Clients with UD queue pairs on one NIC, and a server with a filter table on another.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mitra_filter::rpc::{ClientConfig, RpcClient, RpcServer, UdCarrier};
use mitra_filter::{FilterTable, Sender, TableConfig};
use mitra_verbs::{Provider, Result};

use super::corrupting_carrier::CorruptingCarrier;
use super::programs::{Caller, Server, SharedRecord, add_app, finish, table_config};
use super::{Encounters, QKEY};
use crate::seeded::SeedRun;
use crate::seeded::faults::{draw_time, schedule_blink};
use crate::seeded::parts::Left;
use mitra_sim::{Prng, Testbed, World};

type Client = Caller<CorruptingCarrier<UdCarrier>, Sender<Vec<u8>>>;
type TableServer = Server<UdCarrier, FilterTable<mitra_filter::rpc::UdNode, Vec<u8>>>;

pub(super) fn run(
    testbed: &mut Testbed,
    rng: &mut Prng,
    left: &mut Left<'_>,
    result: &mut SeedRun,
) -> Result<Encounters> {
    let record = SharedRecord::default();
    let clients = rng.between(1, 4);
    left.parts.connections = clients as usize;
    let short_lease = rng.below(4) == 0;
    let mut table = table_config(rng, clients);
    if short_lease {
        table.lease = Duration::from_micros(rng.between(200, 20_000));
    }
    record.borrow_mut().state_was_lost = short_lease;
    let [nic_a, nic_b] = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    let carrier = UdCarrier::new(nic_b, QKEY)?;
    let address = carrier.address();
    let server: Rc<RefCell<TableServer>> =
        Rc::new(RefCell::new(Server::new(RpcServer::new(carrier, rng.bits(), table), &record)));
    add_app(testbed, 1, Rc::clone(&server), Server::step);
    let config = ClientConfig { max_calls: 8, retry_interval: Duration::from_micros(rng.between(20, 2_000)) };
    let mut callers = Vec::new();
    for number in 0..clients as u8 {
        let carrier = UdCarrier::new(Arc::clone(&nic_a), QKEY)?;
        let (own_rng, ppm) = (Prng::new(rng.bits()), *rng.pick(&[0, 0, 20_000]));
        let carrier = CorruptingCarrier::new(carrier, own_rng, ppm, &record.borrow().closed);
        let client = RpcClient::new(carrier, address.node, 1_000, config);
        let caller = Caller::new(client, number, rng.between(1, 8) as usize, left.calls_of(number), &record);
        let caller: Rc<RefCell<Client>> = Rc::new(RefCell::new(caller));
        add_app(testbed, 0, Rc::clone(&caller), Caller::step);
        callers.push(caller);
    }
    schedule_faults(testbed, rng, left, &callers, &server, (table, config));
    let (world, noisy) = (&mut testbed.world, Duration::from_millis(60));
    Ok(finish(world, &callers, &server, &record, noisy, World::heal, result))
}

fn schedule_faults(
    testbed: &mut Testbed,
    rng: &mut Prng,
    left: &mut Left<'_>,
    callers: &[Rc<RefCell<Client>>],
    server: &Rc<RefCell<TableServer>>,
    (table, config): (TableConfig, ClientConfig),
) {
    let time = |rng: &mut Prng| draw_time(rng, 1, 100_000, 8);
    for restart in 0..rng.below(4) {
        let caller = Rc::clone(rng.pick(callers));
        // The clock of some clients was set back, so that the new incarnation is lower than the old
        // one.
        let incarnation = if rng.below(3) == 0 { 900 - restart } else { 1_001 + restart };
        let after = time(rng);
        if !left.keeps_next_fault() {
            continue;
        }
        testbed.world.after(after, move |world| {
            world.trace_text(format_args!("client restarts as {incarnation}"));
            caller.borrow_mut().restart(|client| {
                let server = client.server();
                RpcClient::new(client.into_carrier(), server, incarnation, config)
            });
        });
    }
    if rng.below(3) == 0 {
        let (server, incarnation) = (Rc::clone(server), rng.bits());
        let after = time(rng);
        if left.keeps_next_fault() {
            testbed.world.after(after, move |world| {
                world.trace_text("server restarts");
                server
                    .borrow_mut()
                    .restart(|server| RpcServer::new(server.into_carrier(), incarnation, table));
            });
        }
    }
    for _ in 0..rng.below(3) {
        let nic = *rng.pick(&testbed.rail(0));
        let down = time(rng);
        let up = down + time(rng);
        if left.keeps_next_fault() {
            schedule_blink(&mut testbed.world, nic, down, up);
        }
    }
}

//! The programs of a world: clients that call, and a server that executes the calls.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mitra_filter::rpc::{Carrier, RpcClient, RpcError, RpcServer, ServerStats};
use mitra_filter::{FilterCore, SenderCore, TableConfig};

use super::Encounters;
use super::call_record::{CallRecord, body};
use crate::seeded::{SeedRun, run_phases};
use mitra_sim::{AppContext, Prng, Testbed, World};

pub(super) type SharedRecord = Rc<RefCell<CallRecord>>;

/// A client. It outlives restarts of its [`RpcClient`].
pub(super) struct Caller<C: Carrier, S> {
    /// `None` while the client restarts.
    client: Option<RpcClient<C, S>>,
    number: u8,
    depth: usize,
    /// The number of calls to make.
    calls: u32,
    made: u32,
    outstanding: BTreeMap<u64, u32>,
    /// The number of corrupted messages before the last restart.
    corrupted_before: u64,
    record: SharedRecord,
}

impl<C: Carrier, S: SenderCore<Vec<u8>>> Caller<C, S> {
    pub(super) fn new(
        client: RpcClient<C, S>,
        number: u8,
        depth: usize,
        calls: u32,
        record: &SharedRecord,
    ) -> Self {
        Caller {
            client: Some(client),
            number,
            depth,
            calls,
            made: 0,
            outstanding: BTreeMap::new(),
            corrupted_before: 0,
            record: Rc::clone(record),
        }
    }

    pub(super) fn step(&mut self, ctx: &mut AppContext<'_>) {
        let Some(client) = &mut self.client else { return };
        while self.made < self.calls && self.outstanding.len() < self.depth {
            if make_call(client, ctx.rng(), (self.number, self.made), &mut self.outstanding).is_err() {
                break;
            }
            self.made += 1;
            self.record.borrow_mut().calls += 1;
            ctx.mark_active();
            // A client that is idle between calls can give its row back.
            if ctx.rng().below(3) == 0 {
                break;
            }
        }
        let mut ended = Vec::new();
        // In these worlds, no NIC fails for good, and a link that is down is no error.
        let _ = client.poll(&mut ended);
        for (call, outcome) in ended {
            if let Some(number) = self.outstanding.remove(&call) {
                self.record.borrow_mut().end((self.number, number), &outcome);
            }
            ctx.mark_active();
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.made == self.calls && self.outstanding.is_empty()
    }

    pub(super) fn corrupted(&self) -> u64 {
        self.corrupted_before + self.client.as_ref().map_or(0, RpcClient::corrupted)
    }

    /// Restarts the client, which forgets its outstanding calls.
    pub(super) fn restart(&mut self, restart: impl FnOnce(RpcClient<C, S>) -> RpcClient<C, S>) {
        self.outstanding.clear();
        self.corrupted_before = self.corrupted();
        self.client = self.client.take().map(restart);
    }
}

fn make_call<C: Carrier, S: SenderCore<Vec<u8>>>(
    client: &mut RpcClient<C, S>,
    rng: &mut Prng,
    call: (u8, u32),
    outstanding: &mut BTreeMap<u64, u32>,
) -> Result<(), RpcError> {
    let padding = rng.index(client.max_body().min(128) - 5);
    let body = body(call, padding);
    let id = if rng.below(5) == 0 { client.call_idempotent(&body)? } else { client.call(&body)? };
    outstanding.insert(id, call.1);
    Ok(())
}

/// A server. It outlives restarts of its [`RpcServer`].
pub(super) struct Server<C: Carrier, F> {
    /// `None` while the server restarts.
    server: Option<RpcServer<C, F>>,
    before: ServerStats,
    record: SharedRecord,
}

impl<C: Carrier, F: FilterCore<C::Node, Vec<u8>>> Server<C, F> {
    pub(super) fn new(server: RpcServer<C, F>, record: &SharedRecord) -> Self {
        Server { server: Some(server), before: ServerStats::default(), record: Rc::clone(record) }
    }

    pub(super) fn step(&mut self, ctx: &mut AppContext<'_>) {
        let Some(server) = &mut self.server else { return };
        let record = &mut *self.record.borrow_mut();
        let served = server.serve(|request, reply| {
            let answer = record.execute(request.body, request.exactly_once);
            // Every carrier has room for a reply of 8 bytes.
            let _ = reply.put(&answer);
        });
        if served.is_ok_and(|executed| executed > 0) {
            ctx.mark_active();
        }
    }

    pub(super) fn server_mut(&mut self) -> Option<&mut RpcServer<C, F>> {
        self.server.as_mut()
    }

    /// The numbers of copies, refusals and corrupted messages, from the first start on.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let now = self.server.as_ref().map(RpcServer::stats).unwrap_or_default();
        let sum = |of: fn(&ServerStats) -> u64| of(&self.before) + of(&now);
        (sum(|s| s.copies), sum(|s| s.refused), sum(|s| s.corrupted))
    }

    /// Restarts the server, which loses its state.
    pub(super) fn restart(&mut self, restart: impl FnOnce(RpcServer<C, F>) -> RpcServer<C, F>) {
        let (copies, refused, corrupted) = self.counts();
        self.before = ServerStats { copies, refused, corrupted, ..self.before };
        self.record.borrow_mut().state_was_lost = true;
        self.server = self.server.take().map(restart);
    }
}

/// A lease that no run reaches.
pub(super) const LONG_LEASE: Duration = Duration::from_secs(3600);

/// Draws the limits of a table. The lease is always [`LONG_LEASE`].
pub(super) fn table_config(rng: &mut Prng, clients: u64) -> TableConfig {
    TableConfig {
        rows: rng.between(1, clients) as usize,
        window: rng.between(1, 5) as u16,
        requests_per_grant: rng.between(1, 30) as u32,
        lease: LONG_LEASE,
    }
}

pub(super) fn add_app<P: 'static>(
    testbed: &mut Testbed,
    host: usize,
    program: Rc<RefCell<P>>,
    step: fn(&mut P, &mut AppContext<'_>),
) {
    let app = move |ctx: &mut AppContext<'_>| step(&mut program.borrow_mut(), ctx);
    testbed.world.add_app(testbed.hosts[host], app);
}

/// Runs a world with faults for the time `noisy`. Then `calm` stops faults, and the world runs
/// until all calls have ended.
pub(super) fn finish<C, S, D, F>(
    world: &mut World,
    callers: &[Rc<RefCell<Caller<C, S>>>],
    server: &RefCell<Server<D, F>>,
    record: &SharedRecord,
    noisy: Duration,
    calm: fn(&mut World),
    result: &mut SeedRun,
) -> Encounters
where
    C: Carrier,
    S: SenderCore<Vec<u8>>,
    D: Carrier,
    F: FilterCore<D::Node, Vec<u8>>,
{
    let is_done = World::programs_are(|| callers.iter().all(|caller| caller.borrow().is_done()));
    let ended = run_phases(world, is_done, noisy, calm, Duration::from_secs(120));
    // Late copies arrive. They must have no effect.
    calm(world);
    world.run_for(Duration::from_millis(5));
    let (copies, refused, corrupted) = server.borrow().counts();
    let corrupted = corrupted + callers.iter().map(|caller| caller.borrow().corrupted()).sum::<u64>();
    let record = record.take();
    let encounters = Encounters { copies, refused, corrupted, unknown: record.unknown };
    result.operations = record.calls;
    result.findings = record.findings();
    result.must_reach("stuck", ended);
    encounters
}

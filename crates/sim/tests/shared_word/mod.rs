//! A server with one word, and clients that increment it by atomics, each over a vQP of its own.
#![allow(dead_code)] // each test binary uses a part of this module

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CloseReason, CompletionLogConfig, Config, Domain, VirtualMr, VirtualQp};
use mitra_sim::workload::check_liveness;
use mitra_sim::workload::shared_word::{Client, PEER_TIMEOUT, Pace, config, connect, domain};
use mitra_sim::{AppContext, HostId, SimNic, World};
use mitra_verbs::{Access, Buffer, Capabilities};

pub struct Shape {
    /// The number of hosts on which clients may run.
    pub clients: usize,
    /// The capabilities of the NICs of each rail.
    pub rails: Vec<Capabilities>,
    /// Whether the server's vQPs share atomics.
    pub shares: bool,
    pub server_pace: Pace,
}

pub struct Setup {
    pub world: World,
    pub hosts: Vec<HostId>,
    /// The NICs of the server and then of each client, by rail.
    pub nics: Vec<Vec<Arc<SimNic>>>,
    pub domain: Arc<Domain>,
    pub word: Arc<Buffer>,
    pub mr: VirtualMr,
    pub server: Rc<RefCell<Vec<VirtualQp>>>,
    pub clients: Vec<Rc<RefCell<Client>>>,
    pub config: Config,
}

impl Setup {
    /// Creates three clients, whose NICs are all alike.
    pub fn new(seed: u64, rails: u8, world: mitra_sim::Config, shares: bool) -> Setup {
        let rails = vec![world.capabilities; rails.into()];
        Setup::with_shape(seed, world, Shape { clients: 3, rails, shares, server_pace: Pace::default() })
    }

    pub fn with_shape(seed: u64, world: mitra_sim::Config, shape: Shape) -> Setup {
        let mut world = World::with_config(seed, world);
        let (mut hosts, mut nics) = (Vec::new(), Vec::new());
        for host in 0..=shape.clients {
            hosts.push(world.add_host(&format!("h{host}")));
            let rails = (0u8..).zip(&shape.rails);
            nics.push(
                rails.map(|(rail, nic)| world.add_nic_with(hosts[host], rail, *nic)).collect::<Vec<_>>(),
            );
        }
        let domain = domain(&nics[0]);
        if shape.shares {
            domain.share_atomics().expect("no vQP is connected");
        }
        let word = Arc::new(Buffer::new(8));
        let mr = domain.register(&word, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have room");
        let server = Rc::<RefCell<Vec<VirtualQp>>>::default();
        let mut config = config();
        config.completion_log = seed.is_multiple_of(2).then(CompletionLogConfig::default);
        let (vqps, mut pace) = (Rc::clone(&server), shape.server_pace);
        world.add_app(hosts[0], move |ctx: &mut AppContext<'_>| {
            if pace.is_due(ctx) {
                vqps.borrow_mut().iter_mut().for_each(|vqp| vqp.progress());
            }
        });
        Setup { world, hosts, nics, domain, word, mr, server, clients: Vec::new(), config }
    }

    pub fn add_client(&mut self, by_cas: bool, target: u64) {
        let host = self.clients.len() + 1;
        self.add_client_in(&domain(&self.nics[host]), host, by_cas, target);
    }

    pub fn add_client_in(&mut self, domain: &Arc<Domain>, host: usize, by_cas: bool, target: u64) {
        let n = self.clients.len() as u64 + 1;
        let [a, b] = connect(self.config, [&self.domain, domain], 2 * n);
        let mut client = Client::new(host, b, domain, self.mr.remote().at(0), by_cas, target);
        client.vqp.import(&self.mr.remote()).expect("is connected");
        let client = Rc::new(RefCell::new(client));
        self.server.borrow_mut().push(a);
        self.clients.push(Rc::clone(&client));
        self.world.add_app(self.hosts[host], move |ctx: &mut AppContext<'_>| client.borrow_mut().step(ctx));
    }

    pub fn run(&mut self, time: Duration) -> bool {
        let clients = self.clients.clone();
        self.world.run_until(move |_| clients.iter().all(|client| client.borrow().is_done()), time).is_ok()
    }

    /// Runs until all vQPs are on one rail, at both ends.
    pub fn run_until_together(&mut self) -> bool {
        let (server, clients) = (Rc::clone(&self.server), self.clients.clone());
        let are_together = move |_: &World| {
            let server = server.borrow();
            let home = server[0].active_rail();
            server.iter().all(|vqp| vqp.active_rail() == home)
                && clients.iter().all(|client| client.borrow().vqp.active_rail() == home)
        };
        self.world.run_until(are_together, PEER_TIMEOUT * 2).is_ok()
    }

    pub fn highest_epoch(&self) -> u16 {
        let server = self.server.borrow();
        server.iter().filter_map(|vqp| vqp.last_failover()).map(|report| report.epoch).max().unwrap_or(0)
    }

    /// Returns the active rails of the server's ends and of the clients' ends.
    pub fn rails(&self) -> [Vec<usize>; 2] {
        let server = self.server.borrow().iter().map(VirtualQp::active_rail).collect();
        [server, self.clients.iter().map(|client| client.borrow().vqp.active_rail()).collect()]
    }

    pub fn close_reasons(&self) -> Vec<Option<CloseReason>> {
        self.clients.iter().map(|client| client.borrow().vqp.close_reason()).collect()
    }

    /// Checks that no two increments found the same value, and that the word counts each increment.
    pub fn check(&mut self) -> Result<(), String> {
        self.world.stop_noise();
        self.world.run_until_quiet().map_err(|stalled| stalled.to_string())?;
        let (mut found, mut increments, mut undecided) = (BTreeSet::<u64>::new(), 0, 0);
        for client in &self.clients {
            let client = client.borrow();
            found.extend(client.found.iter().copied());
            increments += client.found.len() as u64;
            undecided += client.undecided;
        }
        let word = self.word.load(0);
        for (server, client) in self.server.borrow().iter().zip(&self.clients) {
            let client = client.borrow();
            check_liveness(&self.world, [self.hosts[0], self.hosts[client.host]], [server, &client.vqp])?;
        }
        if found.len() as u64 != increments {
            return Err(format!("{increments} increments found only {} values", found.len()));
        }
        if !(increments..=increments + undecided).contains(&word) {
            return Err(format!(
                "the word is {word} after {increments} increments and {undecided} undecided ones"
            ));
        }
        Ok(())
    }
}

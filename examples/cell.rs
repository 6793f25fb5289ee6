//! Two clients add to one recoverable cell in a server's memory, while the server's NIC of rail 0 dies. A plain fetch-and-add that was in flight
//! would end as `Indeterminate` or `ValueLost`; an addition to the cell is executed exactly once and returns the value before it.
//!
//! Run with `cargo run --example cell`.

use std::sync::Arc;

use mitra::failover::{Domain, RemoteRegion, VirtualQp};
use mitra::objects::{
    Announcements, Change, ChangeCell, Changed, Execution, OpenOwner, Owner, Publication, RecoverableCell,
    VqpSession, Word,
};
use mitra::softnic::fault::Failure;
use mitra::softnic::{Config, SoftNic};
use mitra::verbs::{Access, AtomicScope, Buffer, Provider};

/// The number of clients.
const CLIENTS: u8 = 2;
/// The number of additions of each client.
const ADDS: usize = 500;
/// The cell is behind the announcements in the server's memory.
const CELL: usize = Announcements::bytes(CLIENTS);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Opens two software NICs, the local ends of two rails. Returns their domain and the NIC of rail 0. The clients' virtual queue pairs move to the
/// other rail one by one, so the atomics of the two NICs must exclude each other.
fn domain() -> Result<(Arc<Domain>, Arc<SoftNic>)> {
    let open = || SoftNic::open(Config { atomic_scope: AtomicScope::Global, ..Config::loopback() });
    let (rail0, rail1) = (open()?, open()?);
    Ok((Domain::new(vec![Arc::clone(&rail0) as Arc<dyn Provider>, rail1])?, rail0))
}

/// A client: its virtual queue pair, and the operation that it has under way.
struct Client {
    vqp: VirtualQp,
    session: VqpSession,
    step: Step,
    old_values: Vec<u32>,
}

enum Step {
    Opening(Execution<OpenOwner>),
    Idle(Owner),
    Adding(Execution<ChangeCell>),
}

impl Client {
    /// Creates the client with this owner number, and connects it with a new end at the server.
    fn connect(number: u8, server: &Arc<Domain>, memory: &RemoteRegion) -> Result<(Client, VirtualQp)> {
        let (here, _) = domain()?;
        // Two processes exchange the two infos over a socket.
        let mut vqp = VirtualQp::builder(&here).build()?;
        let mut peer = VirtualQp::builder(server).build()?;
        let (info, peer_info) = (vqp.local_info()?, peer.local_info()?);
        vqp.connect(&peer_info)?;
        peer.connect(&info)?;
        vqp.import(memory)?;
        let announcements = Announcements::new(Word::new(memory.at(0))?, CLIENTS);
        let open = Owner::open(announcements, number, Publication::CompareSwap)?;
        let session = VqpSession::new(&here, 0)?;
        let step = Step::Opening(Execution::new(open));
        Ok((Client { vqp, session, step, old_values: Vec::new() }, peer))
    }

    /// Drives the operation under way, or begins the next addition.
    fn poll(&mut self, cell: RecoverableCell) -> Result<()> {
        let is_done = self.is_done();
        let mut path = self.session.over(&mut self.vqp);
        match &mut self.step {
            Step::Opening(open) => {
                if let Some(owner) = open.poll(&mut path)? {
                    self.step = Step::Idle(owner);
                }
            }
            Step::Idle(_) if is_done => self.vqp.progress(),
            Step::Idle(owner) => {
                self.step = Step::Adding(Execution::new(cell.change(owner.clone(), Change::FetchAdd(1))));
            }
            Step::Adding(adding) => {
                if let Some(finished) = adding.poll(&mut path)? {
                    if let Changed::From(old) = finished.result? {
                        self.old_values.push(old);
                    }
                    self.step = Step::Idle(finished.owner);
                }
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.old_values.len() == ADDS
    }
}

/// Runs the example.
pub fn main() -> Result<()> {
    let (server, rail0) = domain()?;
    let memory = Arc::new(Buffer::new(CELL + 8));
    memory.store(CELL, RecoverableCell::initial_word(0));
    let region = server.register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?.remote();
    let cell = RecoverableCell::new(Word::new(region.at(CELL as u64))?);
    let (mut clients, mut peers) = (Vec::new(), Vec::new());
    for number in 1..=CLIENTS {
        let (client, peer) = Client::connect(number, &server, &region)?;
        clients.push(client);
        peers.push(peer);
    }

    let mut has_failed = false;
    while !clients.iter().all(Client::is_done) {
        if !has_failed && clients[0].old_values.len() == ADDS / 2 {
            rail0.faults().fail(Failure::NicDead); // its saved results and PSNs are lost
            has_failed = true;
        }
        clients.iter_mut().try_for_each(|client| client.poll(cell))?;
        peers.iter_mut().for_each(VirtualQp::progress); // the server takes part in the failover
    }

    let total = usize::from(CLIENTS) * ADDS;
    assert_eq!(RecoverableCell::value_of(memory.load(CELL)) as usize, total, "each addition happened once");
    let mut old_values: Vec<u32> = clients.iter().flat_map(|client| client.old_values.clone()).collect();
    old_values.sort_unstable();
    assert!(old_values.iter().copied().eq(0..total as u32), "each addition returned another value");
    println!("{total} additions of {CLIENTS} clients, each executed exactly once, with the value before it");
    Ok(())
}

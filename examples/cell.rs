//! Two clients add to one recoverable cell in a server's memory, while the server's NIC of rail 0
//! dies. A plain fetch-and-add that was in flight would end as `Indeterminate` or `ValueLost`; an
//! addition to the cell is executed exactly once and returns the value before it.
//!
//! Run with `cargo run --example cell`.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use mitra::driver::{Connection, DrivenQp, Driver};
use mitra::failover::{Domain, RemoteRegion, VirtualQp};
use mitra::objects::{
    Announcements, Change, Changed, Owner, Path, Publication, RecoverableCell, STAGING_BYTES, Word,
};
use mitra::softnic::fault::Failure;
use mitra::softnic::{Config, SoftNic};
use mitra::verbs::{Access, AtomicScope, Buffer, Provider};

const CLIENTS: u8 = 2;
/// The number of additions of each client.
const ADDS: usize = 500;
/// The cell is behind the announcements in the server's memory.
const CELL: usize = Announcements::bytes(CLIENTS);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Opens two software NICs, the local ends of two rails. Returns their domain and the NIC of
/// rail 0. The clients' virtual queue pairs move to the other rail one by one, so the atomics of
/// the two NICs must exclude each other.
fn domain() -> Result<(Arc<Domain>, Arc<SoftNic>)> {
    let open = || SoftNic::open(Config { atomic_scope: AtomicScope::Global, ..Config::loopback() });
    let (rail0, rail1) = (open()?, open()?);
    Ok((Domain::new(vec![Arc::clone(&rail0) as Arc<dyn Provider>, rail1])?, rail0))
}

/// Runs the client with this owner number. `peer` is the client's end at the server. Returns the
/// values before the client's additions.
fn client(number: u8, peer: &DrivenQp, memory: &RemoteRegion, rail0: &SoftNic) -> Result<Vec<u32>> {
    let (here, _) = domain()?;
    let mut vqp = VirtualQp::builder(&here).build()?;
    // Two processes exchange the two infos over a socket (`mitra::failover::handshake`).
    vqp.connect(&peer.lock().local_info())?;
    peer.lock().connect(&vqp.local_info())?;
    vqp.import(memory)?;

    let mut path = Connection::over(vqp, STAGING_BYTES)?;
    let announcements = Announcements::new(Word::new(memory.at(0))?, CLIENTS);
    let cell = RecoverableCell::new(Word::new(memory.at(CELL as u64))?);
    let mut owner = path.run(Owner::open(announcements, number, Publication::CompareSwap)?)?;
    let mut old_values = Vec::new();
    while old_values.len() < ADDS {
        if number == 1 && old_values.len() == ADDS / 2 {
            rail0.faults().fail(Failure::NicDead); // its saved results and PSNs are lost
        }
        let finished = path.run(cell.change(owner, Change::FetchAdd(1)))?;
        if let Changed::From(old) = finished.result? {
            old_values.push(old);
        }
        owner = finished.owner;
    }
    Ok(old_values)
}

/// Runs the example.
pub fn main() -> std::result::Result<(), Box<dyn Error>> {
    run().map_err(|error| -> Box<dyn Error> { error })
}

fn run() -> Result<()> {
    let (server, rail0) = domain()?;
    let memory = Arc::new(Buffer::new(CELL + 8));
    memory.store(CELL, RecoverableCell::initial_word(0));
    let region = server.register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?.remote();
    // A background thread takes part in the failover at the server.
    let driver = Driver::start()?;
    let peers: Vec<DrivenQp> = (0..CLIENTS)
        .map(|_| driver.serve(VirtualQp::builder(&server)))
        .collect::<std::result::Result<_, _>>()?;

    let (region, rail0) = (&region, &*rail0);
    let mut old_values = thread::scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS)
            .zip(&peers)
            .map(|(number, peer)| scope.spawn(move || client(number, peer, region, rail0)))
            .collect();
        let results = clients.into_iter().map(|client| client.join().expect("a client panicked"));
        results.collect::<Result<Vec<Vec<u32>>>>()
    })?
    .concat();

    let total = usize::from(CLIENTS) * ADDS;
    assert_eq!(RecoverableCell::value_of(memory.load(CELL)) as usize, total, "each addition happened once");
    old_values.sort_unstable();
    assert!(old_values.iter().copied().eq(0..total as u32), "each addition returned another value");
    println!("{total} additions of {CLIENTS} clients, each executed exactly once, with the value before it");
    Ok(())
}

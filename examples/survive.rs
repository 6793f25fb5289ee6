//! A counter at the peer, stepped by fetch-and-adds, while a rail dies under them: each counts once, and returns its
//! value. Blindly sent again, some would count twice.
//!
//! Run with `cargo run --example survive`.

use std::sync::Arc;

use mitra::failover::{Config, Domain, Outcome, VirtualQp};
use mitra::softnic::SoftNic;
use mitra::softnic::fault::Failure;
use mitra::verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};

const ADDS: u64 = 2000;

/// Two software NICs: the local ends of two rails.
fn domain() -> Result<(Arc<Domain>, Arc<SoftNic>), Box<dyn std::error::Error>> {
    let rails = [
        SoftNic::open(mitra::softnic::Config::loopback())?,
        SoftNic::open(mitra::softnic::Config::loopback())?,
    ];
    let first = Arc::clone(&rails[0]);
    Ok((Domain::new(rails.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?, first))
}

/// The program.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ((here, _), (there, rail0_there)) = (domain()?, domain()?);

    // On a network, the secrets come from the system's generator, and the two infos travel over a socket.
    let mut a = VirtualQp::new(Arc::clone(&here), Config::default(), [1, 2])?;
    let mut b = VirtualQp::new(Arc::clone(&there), Config::default(), [3, 4])?;
    let (info_a, info_b) = (a.local_info()?, b.local_info()?);
    a.connect(&info_b)?;
    b.connect(&info_a)?;

    let counter = Arc::new(Buffer::new(8));
    let counter_mr = there.register(&counter, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    a.import(&counter_mr.remote())?;
    let old_values = Arc::new(Buffer::new(8 * ADDS as usize));
    let values_mr = here.register(&old_values, Access::LOCAL_WRITE)?;

    let (mut posted, mut done) = (0, Vec::new());
    while (done.len() as u64) < ADDS {
        while posted < ADDS && a.outstanding() < 16 {
            let op = SendOp::FetchAdd { remote: counter_mr.remote().at(0), add: 1 };
            a.post_send(SendWr::new(posted, op, Data::sge(values_mr.sge(posted * 8, 8))))?;
            posted += 1;
            if posted == ADDS / 2 {
                rail0_there.faults().fail(Failure::LinkDown); // with adds in flight
            }
        }
        a.poll(&mut done);
        b.progress(); // the peer only lends its memory, but must take part in the recovery
    }

    assert!(done.iter().all(|c| c.outcome == Outcome::Success));
    assert_eq!(counter.load(0), ADDS, "each add counts once");
    for (i, _) in done.iter().enumerate() {
        assert_eq!(old_values.load(i * 8), i as u64, "and returns what those before it left");
    }
    let report = a.last_failover().ok_or("no failover happened")?;
    println!(
        "{ADDS} fetch-and-adds, the counter is {}. Rail {} died with {} of them in flight: {} had been executed, {} were replayed on rail {}.",
        counter.load(0),
        report.from,
        report.stats.in_flight,
        report.stats.executed,
        report.stats.replayed,
        report.to
    );
    Ok(())
}

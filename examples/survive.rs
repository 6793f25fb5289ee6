//! Increments a counter in the peer's memory by fetch-and-add while a rail fails. Each addition is
//! executed exactly once and returns the correct old value. Without evidence, some additions would
//! be executed twice.
//!
//! Run with `cargo run --example survive`.

use std::sync::Arc;

use mitra::failover::{Domain, VirtualQp};
use mitra::softnic::SoftNic;
use mitra::softnic::fault::Failure;
use mitra::verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};

const ADDS: u64 = 2000;

/// Opens two software NICs, the local ends of two rails. Returns their domain and the NIC of
/// rail 0.
fn domain() -> Result<(Arc<Domain>, Arc<SoftNic>), Box<dyn std::error::Error>> {
    let rails = [
        SoftNic::open(mitra::softnic::Config::loopback())?,
        SoftNic::open(mitra::softnic::Config::loopback())?,
    ];
    let first = Arc::clone(&rails[0]);
    Ok((Domain::new(rails.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?, first))
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ((here, _), (there, rail0_there)) = (domain()?, domain()?);

    // Two processes exchange the two infos over a socket.
    let mut a = VirtualQp::builder(&here).build()?;
    let mut b = VirtualQp::builder(&there).build()?;
    let (info_a, info_b) = (a.local_info(), b.local_info());
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
                rail0_there.faults().fail(Failure::LinkDown); // while additions are in flight
            }
        }
        a.poll(&mut done);
        b.progress(); // the peer posts nothing, but takes part in the failover
    }

    for completion in &done {
        completion.into_result()?;
    }
    assert_eq!(counter.load(0), ADDS, "each addition is executed once");
    for (i, _) in done.iter().enumerate() {
        assert_eq!(old_values.load(i * 8), i as u64, "each addition returns the value before it");
    }
    let report = a.last_failover().ok_or("no failover happened")?;
    println!(
        "{ADDS} fetch-and-adds, the counter is {}. Rail {} failed with {} of them in flight: {} had been executed, {} were replayed on rail {}.",
        counter.load(0),
        report.from,
        report.stats.in_flight,
        report.stats.executed,
        report.stats.replayed,
        report.to
    );
    Ok(())
}

//! A virtual queue pair in tokio: `AsyncFd` waits for its descriptor. The peer's end is driven by a
//! background thread. A rail fails on the way.
//!
//! Run with `cargo run --example tokio`.

use std::error::Error;
use std::sync::Arc;

use mitra::driver::{Driver, PollableQp};
use mitra::failover::{Completion, Domain, VirtualQp};
use mitra::softnic::SoftNic;
use mitra::softnic::fault::Failure;
use mitra::verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const ADDS: u64 = 100;

/// Opens two software NICs, this end of two rails. Returns their domain and the NIC of rail 0.
fn domain() -> Result<(Arc<Domain>, Arc<SoftNic>), Box<dyn Error>> {
    let rail0 = SoftNic::open(mitra::softnic::Config::loopback())?;
    let rail1 = SoftNic::open(mitra::softnic::Config::loopback())?;
    Ok((Domain::new(vec![Arc::clone(&rail0) as Arc<dyn Provider>, rail1])?, rail0))
}

/// Waits until there are completions, and drives the queue pair meanwhile.
async fn completions(qp: &mut AsyncFd<PollableQp>) -> Result<Vec<Completion>, Box<dyn Error>> {
    let mut completions = Vec::new();
    while completions.is_empty() {
        let mut ready = qp.readable_mut().await?;
        ready.get_inner_mut().poll(&mut completions)?;
        ready.clear_ready(); // `poll` has handled everything
        if let Some(reason) = qp.get_ref().vqp().close_reason()
            && completions.is_empty()
        {
            return Err(reason.into());
        }
    }
    Ok(completions)
}

async fn add(qp: PollableQp, here: &Domain, there: &Domain, rail0: &SoftNic) -> Result<(), Box<dyn Error>> {
    let counter = Arc::new(Buffer::new(8));
    let region = there.register(&counter, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?.remote();
    let old_value = Arc::new(Buffer::new(8));
    let old_value_mr = here.register(&old_value, Access::LOCAL_WRITE)?;
    // Newer releases of tokio prefer `register_with_interest`, which is unsafe because a descriptor
    // could change while it is registered. A `PollableQp` keeps its descriptor.
    #[allow(deprecated)]
    let mut qp = AsyncFd::with_interest(qp, Interest::READABLE)?;
    qp.get_mut().vqp_mut().import(&region)?;
    for i in 0..ADDS {
        if i == ADDS / 2 {
            rail0.faults().fail(Failure::LinkDown);
        }
        let add = SendOp::FetchAdd { remote: region.at(0), add: 1 };
        qp.get_mut().vqp_mut().post_send(SendWr::new(i, add, Data::sge(old_value_mr.sge(0, 8))))?;
        for completion in completions(&mut qp).await? {
            completion.into_result()?;
        }
        assert_eq!(old_value.load(0), i, "each addition is executed once");
    }
    let moved = qp.get_ref().vqp().last_failover().ok_or("no failover happened")?;
    println!(
        "{ADDS} additions, the counter is {}; moved to rail {}: {}",
        counter.load(0),
        moved.to,
        moved.cause
    );
    Ok(())
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn Error>> {
    let ((here, rail0), (there, _)) = (domain()?, domain()?);
    let driver = Driver::start()?;
    let server = driver.serve(VirtualQp::builder(&there))?;
    let mut client = PollableQp::build(VirtualQp::builder(&here))?;
    client.vqp_mut().connect(&server.lock().local_info())?;
    server.lock().connect(&client.vqp().local_info())?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(add(client, &here, &there, &rail0))
}

//! Two processes, while a rail fails: the server provides a counter and a log, and the client adds
//! to the counter and writes the log. Meanwhile the server calls nothing; a background driver takes
//! part in the failover.
//!
//! Run `cargo run --example counter -- server`, then in another terminal
//! `cargo run --example counter -- client ADDRESS --fail-rail-0` with the address that the server
//! prints. With `--device mlx5_0,mlx5_1`, an end uses RDMA devices of its machine instead of
//! software NICs.

use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use mitra::driver::Driver;
use mitra::failover::{Domain, VirtualQp, handshake};
use mitra::hardnic::HardNic;
use mitra::softnic::SoftNic;
use mitra::softnic::fault::Failure;
use mitra::verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};

/// The number of fetch-and-adds, and the number of WRITEs.
const STEPS: u64 = 1000;
/// The maximum number of operations in flight.
const IN_FLIGHT: usize = 16;
/// The counter is the first word of the server's memory, and the log begins at the second.
const LOG: u64 = 8;

const USAGE: &str = "usage: counter server [--device NAME,NAME] | \
                     counter client ADDRESS [--device NAME,NAME | --fail-rail-0]";

/// Runs the example with the program's arguments.
pub fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs one of the two processes.
pub fn run(args: &[&str]) -> Result<(), Box<dyn Error>> {
    match args {
        ["server"] => server(software_nics()?.0),
        ["server", "--device", names] => server(devices(names)?),
        ["client", address] => client(address, software_nics()?.0, None),
        ["client", address, "--fail-rail-0"] => {
            let (domain, rail0) = software_nics()?;
            client(address, domain, Some(&rail0))
        }
        ["client", address, "--device", names] => client(address, devices(names)?, None),
        _ => Err(USAGE.into()),
    }
}

/// Opens two software NICs, this end of two rails. Returns their domain and the NIC of rail 0.
fn software_nics() -> Result<(Arc<Domain>, Arc<SoftNic>), Box<dyn Error>> {
    let nics = [(); 2].map(|()| SoftNic::open(mitra::softnic::Config::loopback()));
    let [rail0, rail1] = nics;
    let (rail0, rail1) = (rail0?, rail1?);
    Ok((Domain::new(vec![Arc::clone(&rail0) as Arc<dyn Provider>, rail1])?, rail0))
}

/// Opens RDMA devices of this machine, one for each rail.
fn devices(names: &str) -> Result<Arc<Domain>, Box<dyn Error>> {
    let nics = names.split(',').map(|name| Ok(HardNic::open(name)? as Arc<dyn Provider>));
    Ok(Domain::new(nics.collect::<Result<_, Box<dyn Error>>>()?)?)
}

fn server(domain: Arc<Domain>) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening on {}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;

    let memory = Arc::new(Buffer::new((LOG + 8 * STEPS) as usize));
    let region = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?;
    let driver = Driver::start()?;
    let vqp = driver.serve(VirtualQp::builder(&domain))?;

    // Both ends tell each other how to connect. The infos contain secrets: between machines, use a
    // confidential channel.
    let info = vqp.lock().local_info();
    let (peer, _) = handshake::exchange(&mut stream, &info, &[region.remote()])?;
    vqp.lock().connect(&peer)?;
    handshake::confirm(&mut stream)?;

    // The client's operations need no call of this process.
    let reason = vqp.wait_closed();
    let logged = (0..STEPS).filter(|&i| memory.load((LOG + 8 * i) as usize) == i + 1).count();
    println!("the counter is {}, and {logged} words were written; {reason}", memory.load(0));
    Ok(())
}

/// Fails the link of `failing` halfway.
fn client(address: &str, domain: Arc<Domain>, failing: Option<&SoftNic>) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    let mut vqp = VirtualQp::builder(&domain).build()?;

    let (peer, regions) = handshake::exchange(&mut stream, &vqp.local_info(), &[])?;
    let [region] = regions.try_into().map_err(|_| "the server lends one region")?;
    vqp.connect(&peer)?;
    handshake::confirm(&mut stream)?;
    vqp.import(&region)?;

    // Word i receives the counter's value before addition i.
    let old_values = Arc::new(Buffer::new(8 * STEPS as usize));
    let old_values_mr = domain.register(&old_values, Access::LOCAL_WRITE)?;
    let (mut posted, mut done, mut completions) = (0, 0, Vec::new());
    while done < 2 * STEPS {
        while posted < STEPS && vqp.outstanding() + 2 <= IN_FLIGHT {
            let add = SendOp::FetchAdd { remote: region.at(0), add: 1 };
            vqp.post_send(SendWr::new(posted, add, Data::sge(old_values_mr.sge(8 * posted, 8))))?;
            let write = SendOp::Write(region.at(LOG + 8 * posted));
            vqp.post_send(SendWr::new(posted, write, Data::inline(&(posted + 1).to_ne_bytes())))?;
            posted += 1;
            if let Some(nic) = failing.filter(|_| posted == STEPS / 2) {
                nic.faults().fail(Failure::LinkDown); // as `mitra fault` does, with operations in flight
            }
        }
        vqp.poll(&mut completions);
        for completion in completions.drain(..) {
            completion.into_result()?;
            done += 1;
        }
        if let Some(reason) = vqp.close_reason() {
            return Err(reason.into());
        }
    }
    for i in 0..STEPS {
        let old = old_values.load(8 * i as usize);
        if old != i {
            return Err(format!("addition {i} found {old}: an addition was lost or executed twice").into());
        }
    }
    println!("{STEPS} additions and {STEPS} WRITEs, each executed exactly once");
    if let Some(report) = vqp.last_failover() {
        println!(
            "rail {} failed ({}) with {} operations in flight: {} had been executed, {} were replayed on rail {}",
            report.from,
            report.cause,
            report.stats.in_flight,
            report.stats.executed,
            report.stats.replayed,
            report.to
        );
    }
    vqp.close()?;
    Ok(())
}

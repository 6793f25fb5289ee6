//! Remote calls that are executed exactly once, over a network that loses, repeats and reorders
//! datagrams, and over virtual queue pairs that send everything in flight again after a failover.
//!
//! Run with `cargo run --example rpc`.

use std::error::Error;
use std::sync::Arc;

use mitra::failover::{Config as VqpConfig, Domain, Policy, VirtualQp};
use mitra::filter::rpc::{
    ClientConfig, Reply, Request, RpcClient, RpcServer, UdCarrier, incarnation_by_clock,
};
use mitra::filter::{Outcome, TableConfig};
use mitra::softnic::fault::{Failure, Noise};
use mitra::softnic::{Config, SoftNic};
use mitra::verbs::Provider;

const CALLS: u64 = 500;
/// The Q_Key of the service.
const QKEY: u32 = 7;

/// Executes a request: adds its number to the account, and replies with the balance before.
fn deposit<N>(balance: &mut u64, request: Request<'_, N>, reply: &mut Reply) {
    let Some(amount) = request.body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else { return };
    // A deposit is not idempotent, so it is refused if the client did not ask for exactly once.
    if request.exactly_once && reply.put(&balance.to_le_bytes()).is_ok() {
        *balance += amount;
    }
}

fn balance_in(outcome: Outcome<Vec<u8>>) -> Result<u64, Box<dyn Error>> {
    match outcome {
        Outcome::Answered(reply) => Ok(u64::from_le_bytes(reply.as_slice().try_into()?)),
        Outcome::Unknown => {
            Err("the server lost its state, so it is unknown whether the deposit was made".into())
        }
    }
}

/// Makes deposits over unreliable datagrams.
fn over_datagrams() -> Result<(), Box<dyn Error>> {
    let (here, there) = (SoftNic::open(Config::loopback())?, SoftNic::open(Config::loopback())?);
    for nic in [&here, &there] {
        let noise =
            Noise { drop_ppm: 50_000, duplicate_ppm: 100_000, reorder_ppm: 50_000, ..Noise::default() };
        nic.faults().set_noise(noise, Noise::default());
    }
    let incarnation = there.random_u64()?;
    let mut server = RpcServer::new(UdCarrier::new(there, QKEY)?, incarnation, TableConfig::default());
    let node = server.carrier().address().node;
    let client = UdCarrier::new(here, QKEY)?;
    let mut client = RpcClient::new(client, node, incarnation_by_clock(), ClientConfig::default());

    let (mut balance, mut calls, mut ended) = (0, 0, Vec::new());
    while (ended.len() as u64) < CALLS {
        while calls < CALLS && client.outstanding() < 8 {
            calls += 1;
            client.call(&calls.to_le_bytes())?;
        }
        client.poll(&mut ended)?;
        server.serve(|request, reply| deposit(&mut balance, request, reply))?;
    }
    for (_, outcome) in ended {
        balance_in(outcome)?;
    }
    assert_eq!(balance, CALLS * (CALLS + 1) / 2, "each deposit was made once");
    println!("UD: {CALLS} deposits, each made exactly once; {:?}", server.stats());
    Ok(())
}

/// Makes deposits over a vQP with the policy `blanket`, while a rail fails.
fn over_virtual_queue_pairs() -> Result<(), Box<dyn Error>> {
    let open = || SoftNic::open(Config::loopback());
    let (here, there) = ([open()?, open()?], [open()?, open()?]);
    let rail0 = Arc::clone(&there[0]);
    let here = Domain::new(here.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?;
    let there = Domain::new(there.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?;
    let blanket = VqpConfig { policy: Policy::Blanket, ..VqpConfig::default() };
    let mut a = VirtualQp::builder(&here).config(blanket).build()?;
    let mut b = VirtualQp::builder(&there).config(blanket).build()?;
    let (info_a, info_b) = (a.local_info(), b.local_info());
    a.connect(&info_b)?;
    b.connect(&info_a)?;
    let mut server = RpcServer::over_vqps(1, 256);
    server.connect(b)?;
    let mut client = RpcClient::over_vqp(a, 256, ClientConfig::default())?;

    let (mut balance, mut expected) = (0, 0);
    for amount in 1..=CALLS {
        client.call(&amount.to_le_bytes())?;
        if amount == CALLS / 2 {
            rail0.faults().fail(Failure::LinkDown);
        }
        let mut ended = Vec::new();
        while ended.is_empty() {
            client.poll(&mut ended)?;
            server.serve(|request, reply| deposit(&mut balance, request, reply))?;
        }
        let (_, outcome) = ended.remove(0);
        assert_eq!(balance_in(outcome)?, expected, "each deposit returns the balance before it");
        expected += amount;
    }
    assert_eq!(balance, CALLS * (CALLS + 1) / 2, "each deposit was made once");
    println!("vQP: {CALLS} deposits, each made exactly once; {:?}", server.stats());
    Ok(())
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn Error>> {
    over_datagrams()?;
    over_virtual_queue_pairs()
}

//! Several threads drive queue pairs that share one backup, over software NICs, while a NIC is
//! lost.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use mitra_failover::{BackedQp, Config, Domain, SharedBackup, VirtualQp};
use mitra_softnic::SoftNic;
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};

const THREADS: u64 = 4;
const OPS: u64 = 2000;

fn nics() -> Result<Vec<Arc<dyn Provider>>, Box<dyn Error>> {
    let nic = || SoftNic::open(mitra_softnic::Config::loopback()).map(|nic| nic as Arc<dyn Provider>);
    Ok(vec![nic()?, nic()?])
}

/// Adds 1 to a counter of the peer [`OPS`] times. Each addition is followed by a WRITE of its index
/// to the word behind the counter. Returns the old values.
fn add_and_write(
    mut qp: BackedQp,
    word: mitra_verbs::RemoteAddr,
    local: &Domain,
    done: &AtomicU64,
) -> Vec<u64> {
    let memory = Arc::new(Buffer::new(8));
    let mr = local.register(&memory, Access::LOCAL_WRITE).expect("the NICs have a free region");
    let (mut old, mut completions) = (Vec::new(), Vec::new());
    for i in 0..OPS {
        let add = SendOp::FetchAdd { remote: word, add: 1 };
        let behind = mitra_verbs::RemoteAddr { addr: word.addr + 8, ..word };
        qp.post_send(SendWr::new(0, add, Data::sge(mr.sge(0, 8)))).expect("room");
        qp.post_send(SendWr::new(1, SendOp::Write(behind), Data::inline(&i.to_ne_bytes()))).expect("room");
        completions.clear();
        while completions.len() < 2 {
            qp.poll(&mut completions);
        }
        assert!(completions.iter().all(|c| c.is_success()), "{completions:?}");
        old.push(memory.load(0));
        done.fetch_add(1, Ordering::Relaxed);
    }
    old
}

#[test]
fn threads_share_a_backup_through_a_failover() -> Result<(), Box<dyn Error>> {
    let client_nics = nics()?;
    let domains = [Domain::new(client_nics.clone())?, Domain::new(nics()?)?];
    let [client, server] = domains.each_ref().map(|domain| SharedBackup::new(VirtualQp::builder(domain)));
    let (client, server) = (client?, server?);
    let (client_info, server_info) = (client.local_info(), server.local_info());
    client.connect(&server_info)?;
    server.connect(&client_info)?;
    let memory = Arc::new(Buffer::new(16 * THREADS as usize));
    let region = domains[1].register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?.remote();
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let mut requesters = Vec::new();
        for i in 0..THREADS {
            let mut requester = client.queue_pair(Config::default())?;
            let mut responder = server.queue_pair(Config::default())?;
            requester.connect(&responder.local_info())?;
            responder.connect(&requester.local_info())?;
            requester.import(&region)?;
            let (word, local, done) = (region.at(16 * i), &domains[0], &done);
            requesters.push(scope.spawn(move || add_and_write(requester, word, local, done)));
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    responder.poll(&mut Vec::new());
                    thread::yield_now();
                }
            });
        }
        while done.load(Ordering::Relaxed) < THREADS * OPS / 2 && !requesters.iter().any(|r| r.is_finished())
        {
            thread::yield_now();
        }
        client_nics[client.active_rail()].reset()?; // the NIC is lost, and its completions with it
        let old: Vec<_> = requesters.into_iter().map(|requester| requester.join()).collect();
        stop.store(true, Ordering::Relaxed);
        for old in old {
            assert_eq!(old.map_err(|_| "a thread panicked")?, (0..OPS).collect::<Vec<_>>());
        }
        Ok(())
    })?;
    assert!(client.last_failover().is_some());
    for i in 0..THREADS as usize {
        assert_eq!((memory.load(16 * i), memory.load(16 * i + 8)), (OPS, OPS - 1));
    }
    Ok(())
}

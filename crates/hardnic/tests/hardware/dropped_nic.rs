//! A NIC that is dropped while a peer writes to its memory. The close of a device fences nothing,
//! so the drop has to end all queue pairs and regions before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_hardnic::HardNic;
use mitra_verbs::{Buffer, Data, Provider, RemoteAddr, SendOp, SendWr, Wc, WcStatus};

use crate::devices::Devices;
use crate::rc_end::End;

const WRITE: u32 = 64 << 10;
/// The WRITEs in flight. Each has other bytes than the one before it.
const WINDOW: u64 = 8;
/// The WRITEs that complete before the drop.
const BEFORE: u64 = 16;
/// The drops that have to meet the middle of a WRITE, and the drops that are tried.
const CUT_OFF: u32 = 4;
const DROPS: u32 = 16;
/// For this time after the drop, memory must not change. The peer sends again meanwhile.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// A stream that has not ended after this time hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let devices = devices.cloned();
    vec![Trial::test("dropped_nic::memory_stays", move || memory_stays(&*devices.ok_or("no devices")?))]
}

fn memory_stays(devices: &Devices) -> Result<(), Failed> {
    let (mut drops, mut cut_off) = (0, 0);
    let mut statuses = Vec::new();
    while cut_off < CUT_OFF && drops < DROPS {
        let dropped = drop_in_a_stream(devices)?;
        drops += 1;
        cut_off += u32::from(dropped.is_cut_off);
        statuses.push(dropped.status.to_string());
    }
    statuses.sort_unstable();
    statuses.dedup();
    println!(
        "{cut_off} of {drops} drops in the middle of a WRITE; the peer's requests ended with {statuses:?}"
    );
    match cut_off {
        0 => Err("no drop met the middle of a WRITE, so the trials show nothing".into()),
        _ => Ok(()),
    }
}

/// The observations of one drop of a NIC.
struct Dropped {
    /// Memory has a part of a WRITE.
    is_cut_off: bool,
    /// The status of the peer's first request that failed.
    status: WcStatus,
}

/// Drops a NIC while WRITEs from another one arrive.
fn drop_in_a_stream(devices: &Devices) -> Result<Dropped, Failed> {
    let nic = HardNic::open_qualified(devices.pair()[1], devices.store())?;
    let requester = End::new(&devices.nics()[0], WINDOW as usize * WRITE as usize)?;
    let responder = End::new(&nic, WRITE as usize)?;
    requester.connect(&responder)?;
    responder.connect(&requester)?;
    for slot in 0..WINDOW as usize {
        requester.memory.write_at(slot * WRITE as usize, &[slot as u8 + 1; WRITE as usize]);
    }
    let remote = RemoteAddr { addr: responder.mr.addr, rkey: responder.mr.rkey };
    let memory = Arc::clone(&responder.memory);
    let completed = AtomicU64::new(0);
    let (at_drop, status) = thread::scope(|scope| {
        let streaming = scope.spawn(|| stream(&requester, remote, &completed));
        while completed.load(Ordering::Acquire) < BEFORE && !streaming.is_finished() {
            thread::yield_now();
        }
        // The objects of the responder are left to the drop of their NIC.
        drop(nic);
        let at_drop = bytes_of(&memory);
        let settled = Instant::now() + SETTLE_TIME;
        while Instant::now() < settled {
            if bytes_of(&memory) != at_drop {
                return Err("memory changed after the NIC was dropped".to_owned());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let status = streaming.join().map_err(|_| "the stream panicked")??;
        Ok((at_drop, status))
    })?;
    requester.destroy()?;
    if bytes_of(&memory) != at_drop {
        return Err("memory changed until the peer's requests had failed".into());
    }
    Ok(Dropped { is_cut_off: at_drop.first() != at_drop.last(), status })
}

/// Posts WRITEs until one fails, and waits for those behind it, of which none may succeed. Returns
/// the status of the first that failed.
fn stream(requester: &End<'_>, remote: RemoteAddr, completed: &AtomicU64) -> Result<WcStatus, String> {
    let deadline = Instant::now() + TIMEOUT;
    let (mut posted, mut ended, mut failed) = (0, 0, None);
    let mut polled: Vec<Wc> = Vec::new();
    while failed.is_none() || ended < posted {
        if Instant::now() > deadline {
            return Err(format!("{ended} of {posted} WRITEs have ended after {TIMEOUT:?}"));
        }
        while failed.is_none() && posted - ended < WINDOW {
            let data = Data::sge(requester.mr.sge(posted % WINDOW * u64::from(WRITE), WRITE));
            let wr = SendWr::new(posted, SendOp::Write(remote), data);
            requester.nic.post_send(requester.qp, &[wr]).map_err(|refused| refused.error.to_string())?;
            posted += 1;
        }
        polled.clear();
        requester.nic.poll_cq(requester.cq, 16, &mut polled).map_err(|error| error.to_string())?;
        for wc in &polled {
            match (wc.status, failed) {
                (WcStatus::Success, None) => _ = completed.fetch_add(1, Ordering::Release),
                (WcStatus::Success, Some(_)) => return Err("a WRITE behind a failed one succeeded".into()),
                (status, _) => _ = failed.get_or_insert(status),
            }
            ended += 1;
        }
        thread::yield_now();
    }
    failed.ok_or_else(|| "no WRITE failed".to_owned())
}

fn bytes_of(memory: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes);
    bytes
}

//! A NIC that is dropped while a peer writes to its memory. The close of a device fences nothing,
//! so the drop has to end all queue pairs and regions before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_hardnic::HardNic;
use mitra_verbs::WcStatus;

use crate::devices::Devices;
use crate::ends::{End, WINDOW, WRITE, bytes_of, fill, stream};

/// The WRITEs that complete before the drop.
const BEFORE: u64 = 16;
/// The drops that have to meet the middle of a WRITE, and the drops that are tried.
const CUT_OFF: u32 = 4;
const DROPS: u32 = 16;
/// For this time after the drop, memory must not change. The peer sends again meanwhile.
const SETTLE_TIME: Duration = Duration::from_millis(20);

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
    fill(&requester);
    let remote = responder.remote();
    let memory = Arc::clone(&responder.memory);
    let completed = AtomicU64::new(0);
    let (at_drop, status) = thread::scope(|scope| {
        let streaming = scope.spawn(|| stream(&requester, remote, &completed, &AtomicBool::new(false)));
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
        let failed = streaming.join().map_err(|_| "the stream panicked")??;
        let status = failed.first().copied().ok_or("no WRITE failed")?;
        Ok((at_drop, status))
    })?;
    requester.destroy()?;
    if bytes_of(&memory) != at_drop {
        return Err("memory changed until the peer's requests had failed".into());
    }
    Ok(Dropped { is_cut_off: at_drop.first() != at_drop.last(), status })
}

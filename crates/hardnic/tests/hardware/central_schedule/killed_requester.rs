//! The requester in a process of its own, which is killed while its operations are in flight. What
//! the responder's NIC has executed then is a prefix of what was posted, and nothing twice.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{CloseReason, ConnectInfo, RemoteRegion, VirtualQp};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_qualify::QualificationStore;
use mitra_verbs::{Buffer, Provider};

use super::exchange::{Receiver, WINDOW, last_write, messages, work_request};
use super::peer::{Answer, REQUESTER};
use super::{Evidence, FAR_BYTES, KILLED_PEER_TIMEOUT, Memory, OPERATIONS, WRITE, config};
use crate::devices::Devices;
use crate::rails::Ends;

/// The messages that arrive before the kill.
const BEFORE: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Kills a requester, and compares the responder's memory with what was posted.
pub(super) fn trial(ends: &Ends, evidence: Evidence) -> Result<(), String> {
    let mut config = config(evidence);
    config.peer_timeout = KILLED_PEER_TIMEOUT;
    let mut process = PeerProcess::start(REQUESTER).map_err(|error| error.to_string())?;
    let connection = &mut process.connection;
    connection.send(&config.completion_log.is_some()).map_err(|error| error.to_string())?;
    let client: Vec<u8> = connection.receive().map_err(|error| error.to_string())?;
    let client = ConnectInfo::decode(&client).map_err(|error| error.to_string())?;
    let mut server = Receiver::new(&ends.server, config, Arc::new(Buffer::new(FAR_BYTES)))?;
    let (info, region) = server.connect(&client)?;
    connection.send(&(info.encode(), region.encode())).map_err(|error| error.to_string())?;

    poll_until("messages", &mut server, |server| server.received().len() >= BEFORE)?;
    drop(process); // by SIGKILL
    // An end that waits for nothing notices much later that its peer is gone.
    server.send()?;
    poll_until("the end", &mut server, |server| server.close_reason().is_some())?;
    if server.close_reason() != Some(CloseReason::PeerUnreachable) {
        return Err(format!("the responder's vQP is closed: {:?}", server.close_reason()));
    }
    let executed = check(&server.memory(), &server)?;
    println!("{evidence:?}, requester killed: {executed:?} of each kind were executed");
    server.end(&ends.server)
}

fn poll_until(
    what: &str,
    server: &mut Receiver,
    mut holds: impl FnMut(&Receiver) -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + TIMEOUT;
    while !holds(server) {
        if Instant::now() > deadline {
            return Err(format!("timed out: {what}"));
        }
        server.poll();
        thread::yield_now();
    }
    Ok(())
}

/// Returns the number of executed operations of each kind, in the order in which the kinds are
/// posted. A WRITE counts as soon as it has begun.
fn check(far: &Buffer, server: &Receiver) -> Result<[u64; 4], String> {
    let messages = messages(None, far);
    if !messages.iter().enumerate().all(|(k, &message)| message == 4 * k as u64 + 3) {
        return Err(format!("messages were lost, doubled or out of order: {messages:?}"));
    }
    if !server.received().iter().copied().eq(0..server.received().len() as u64) {
        return Err(format!("receives ended out of order: {:?}", server.received()));
    }
    let writes = match last_write(far) {
        0 => 0,
        last if last % 4 == 2 => last / 4 + 1,
        other => return Err(format!("memory has a WRITE {other}, which was not posted")),
    };
    let executed = [far.load(0), far.load(8), writes, messages.len() as u64];
    if !executed.is_sorted_by(|a, b| a >= b) || executed[0] > executed[3] + 1 {
        return Err(format!("what was executed is no prefix: {executed:?} of each kind"));
    }
    if executed[0] == OPERATIONS / 4 {
        return Err("all operations had ended before the kill".to_owned());
    }
    Ok(executed)
}

/// Runs the requester, until it is killed.
pub(super) fn request(connection: &mut PeerConnection) -> Result<(), String> {
    let has_log: bool = connection.receive().map_err(|error| error.to_string())?;
    let devices = Devices::named().ok_or("no devices")?;
    // The requester does not live to decide anything.
    let store = QualificationStore::load(Path::new("/nonexistent")).map_err(|error| error.to_string())?;
    let domain = Ends::open_one(0, devices.rails(), &store, |nic| nic as Arc<dyn Provider>);
    let config = config(if has_log { Evidence::Log } else { Evidence::Psn });
    let client = VirtualQp::builder(&domain).config(config).build();
    let mut client = client.map_err(|error| error.to_string())?;
    let near = Memory::new(&domain, Arc::new(Buffer::new(8 * OPERATIONS as usize + WRITE as usize)))?;
    connection.send(&client.local_info().encode()).map_err(|error| error.to_string())?;
    let (info, region): Answer = connection.receive().map_err(|error| error.to_string())?;
    let info = ConnectInfo::decode(&info).map_err(|error| error.to_string())?;
    let region = RemoteRegion::decode(&region).map_err(|error| error.to_string())?;
    client.connect(&info).map_err(|error| error.to_string())?;
    client.import(&region).map_err(|error| error.to_string())?;
    let (mut posted, mut ended, mut done) = (0, 0, Vec::new());
    loop {
        // After an error the vQP halts, and nothing behind it is executed.
        while posted < OPERATIONS && posted - ended < WINDOW && !client.is_halted() {
            if client.post_send(work_request(posted, &near, &region)).is_err() {
                break;
            }
            posted += 1;
        }
        client.poll(&mut done);
        ended += done.drain(..).len() as u64;
        thread::yield_now();
    }
}

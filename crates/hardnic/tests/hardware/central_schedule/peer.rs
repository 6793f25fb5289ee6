//! The responder in a process of its own, which is killed. Its memory is a file that both processes
//! have, so what its NIC executed can be read after its end.

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use memmap2::{MmapOptions, MmapRaw};
use mitra_failover::{ConnectInfo, RemoteRegion};
use mitra_peer_process::{PeerConnection, PeerProcess, connect_to_parent};
use mitra_qualify::QualificationStore;
use mitra_verbs::{Buffer, ForeignMemory, Provider, Unmapped};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::{Evidence, FAR_BYTES, Receiver, config, killed_requester};
use crate::devices::Devices;
use crate::rails::Ends;

/// What the peer is told.
#[derive(Serialize, Deserialize)]
struct Setup {
    has_log: bool,
    is_blanket: bool,
    /// The path of the file with the peer's memory.
    memory: String,
    client: Vec<u8>,
}

/// The memory of the peer, as the peer maps it, or as the test reads it.
struct SharedFile {
    file: File,
    map: Option<MmapRaw>,
}

impl SharedFile {
    fn into_buffer(self) -> Arc<Buffer> {
        let addr = self.process_addr().unwrap_or(0) as u64;
        Arc::new(Buffer::from_foreign(Box::new(self), addr, FAR_BYTES))
    }
}

impl ForeignMemory for SharedFile {
    fn process_addr(&self) -> Option<usize> {
        self.map.as_ref().map(|map| map.as_mut_ptr().expose_provenance())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        self.file.read_exact_at(out, offset as u64).map_err(|_| Unmapped)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        self.file.write_all_at(data, offset as u64).map_err(|_| Unmapped)
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<Result<u64, u64>, Unmapped> {
        Err(Unmapped)
    }
}

/// A peer in another process. The drop kills it.
pub(super) struct OtherProcess {
    process: PeerProcess,
    file: File,
}

impl OtherProcess {
    pub(super) fn start() -> Result<OtherProcess, String> {
        let file = memfd_create("peer", MFdFlags::MFD_CLOEXEC).map_err(|error| error.to_string())?;
        let file = File::from(file);
        file.set_len(FAR_BYTES as u64).map_err(|error| error.to_string())?;
        let process = PeerProcess::start(RESPONDER).map_err(|error| error.to_string())?;
        Ok(OtherProcess { process, file })
    }

    pub(super) fn connect(
        &mut self,
        evidence: Evidence,
        client: &ConnectInfo,
    ) -> Result<(ConnectInfo, RemoteRegion), String> {
        let setup = Setup {
            has_log: config(evidence).completion_log.is_some(),
            is_blanket: evidence == Evidence::Blanket,
            memory: format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()),
            client: client.encode(),
        };
        let connection = &mut self.process.connection;
        connection.send(&setup).map_err(|error| error.to_string())?;
        let (info, region): (Vec<u8>, Vec<u8>) = connection.receive().map_err(|error| error.to_string())?;
        let info = ConnectInfo::decode(&info).map_err(|error| error.to_string())?;
        Ok((info, RemoteRegion::decode(&region).map_err(|error| error.to_string())?))
    }

    pub(super) fn memory(&self) -> Arc<Buffer> {
        let file = self.file.try_clone().expect("the file is open");
        SharedFile { file, map: None }.into_buffer()
    }
}

/// The roles of processes of [`PeerProcess::start`].
const RESPONDER: &str = "responder";
pub(super) const REQUESTER: &str = "requester";

/// Runs the peer if the command line is that of [`PeerProcess::start`]. It ends when it is killed.
pub fn run() {
    let args: Vec<String> = env::args().skip(1).collect();
    let [peer, role, parent] = &args[..] else { return };
    let run: fn(&mut PeerConnection) -> Result<(), String> = match (&**peer, &**role) {
        ("peer", RESPONDER) => respond,
        ("peer", REQUESTER) => killed_requester::request,
        _ => return,
    };
    let parent = parent.parse().expect("the last argument is the id of the parent");
    let mut connection = connect_to_parent(parent).expect("the parent has made the connection");
    if let Err(error) = run(&mut connection) {
        let _ = connection.send_error(&error); // the parent may have ended
    }
    std::process::exit(1);
}

/// The connection data and the memory of the responder.
pub(super) type Answer = (Vec<u8>, Vec<u8>);

fn respond(connection: &mut PeerConnection) -> Result<(), String> {
    let setup = connection.receive().map_err(|error| error.to_string())?;
    let (mut server, answer) = serve(setup)?;
    connection.send(&answer).map_err(|error| error.to_string())?;
    loop {
        server.poll();
        thread::yield_now();
    }
}

fn serve(setup: Setup) -> Result<(Receiver, Answer), String> {
    let devices = Devices::named().ok_or("no devices")?;
    // The peer does not live to report a number.
    let store = QualificationStore::load(Path::new("/nonexistent")).map_err(|error| error.to_string())?;
    let domain = Ends::open_one(1, devices.rails(), &store, |nic| nic as Arc<dyn Provider>);
    let file = File::options().read(true).write(true).open(&setup.memory);
    let file = file.map_err(|error| format!("{}: {error}", setup.memory))?;
    let map = MmapOptions::new().len(FAR_BYTES).map_raw(&file).map_err(|error| error.to_string())?;
    let evidence = match (setup.is_blanket, setup.has_log) {
        (true, _) => Evidence::Blanket,
        (_, true) => Evidence::Log,
        (_, false) => Evidence::Psn,
    };
    let buffer = SharedFile { file, map: Some(map) }.into_buffer();
    let mut server = Receiver::new(&domain, config(evidence), buffer)?;
    let client = ConnectInfo::decode(&setup.client).map_err(|error| error.to_string())?;
    let (info, region) = server.connect(&client)?;
    Ok((server, (info.encode(), region.encode())))
}

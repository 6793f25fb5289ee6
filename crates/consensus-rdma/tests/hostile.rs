//! Who speaks the wire formats by himself: the NIC refuses what he has no key for, and what he writes and says that makes no sense stops nobody.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Cluster, ROOM, Served, keys, nics, tokens};
use mitra_consensus::broadcast::Broadcast;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::{AllRules, ProcessId, ProcessSet};
use mitra_failover::{ConnectInfo, Domain, Outcome, RemoteRegion, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Buffer, Data, Key, RemoteAddr, SendOp, SendWr, WcStatus};
use serde::{Deserialize, Serialize};

/// What is said at doors.
#[derive(Serialize)]
struct Hello {
    version: u32,
    from: ProcessId,
    token: [u8; 16],
    life: u64,
    info: Vec<u8>,
}

#[derive(Deserialize)]
struct Welcome {
    info: Vec<u8>,
    _life: u64,
    _room: u32,
    regions: Vec<Place>,
}

#[derive(Deserialize)]
struct Place {
    read: Option<Vec<u8>>,
    write: Option<Vec<u8>>,
}

/// The liar, of three processes.
const ME: ProcessId = ProcessId(2);
/// Bytes of each of a register's two places.
const PLACE: usize = (16 + ROOM).next_multiple_of(8);

/// A connection of his.
struct Raw {
    vqp: VirtualQp,
    regions: Vec<Place>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
}

impl Raw {
    /// Goes to somebody's door, in good form.
    fn connect(domain: &Arc<Domain>, at: SocketAddr) -> Raw {
        Raw::connect_as(ME, domain, at)
    }

    /// The same for another.
    fn connect_as(p: ProcessId, domain: &Arc<Domain>, at: SocketAddr) -> Raw {
        let mut vqp =
            VirtualQp::new(Arc::clone(domain), mitra_failover::Config::default(), [7, 7]).expect("a vQP");
        let info = vqp.local_info().expect("unconnected").encode();
        let token = tokens(3)[usize::from(p.0)];
        let hello = Hello { version: 2, from: p, token, life: 1, info };
        let body = postcard::to_stdvec(&hello).expect("plain data");
        let mut stream = TcpStream::connect(at).expect("a door");
        stream.write_all(&(body.len() as u32).to_le_bytes()).expect("sent");
        stream.write_all(&body).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let welcome: Welcome = postcard::from_bytes(&answer[4..]).expect("a welcome");
        vqp.connect(&ConnectInfo::decode(&welcome.info).expect("an end")).expect("connected");
        let memory = Arc::new(Buffer::new(PLACE));
        let mr = domain.register(&memory, Access::LOCAL_WRITE).expect("memory");
        Raw { vqp, regions: welcome.regions, memory, mr }
    }

    /// Posts something, and awaits how it ends.
    fn post(&mut self, op: SendOp, bytes: &[u8]) -> Outcome {
        self.memory.write_at(0, bytes);
        let data = Data::sge(self.mr.sge(0, bytes.len() as u32));
        self.vqp.post_send(SendWr::new(1, op, data)).expect("posted");
        let (mut done, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while done.is_empty() {
            assert!(Instant::now() < end, "it does not end");
            self.vqp.poll(&mut done);
        }
        done[0].outcome
    }

    /// Writes where nobody has said that he may.
    fn write_at(&mut self, to: RemoteAddr, bytes: &[u8]) -> Outcome {
        self.vqp.import(&RemoteRegion::with_unknown_key(to, 1)).expect("connected");
        self.post(SendOp::Write(to), bytes)
    }

    fn write_key(&self, region: usize) -> Option<RemoteRegion> {
        Some(RemoteRegion::decode(self.regions[region].write.as_deref()?).expect("a region"))
    }

    fn read_key(&self, region: usize) -> RemoteRegion {
        let place = self.regions[region].read.as_deref().expect("all may read");
        RemoteRegion::decode(place).expect("a region")
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.vqp.close();
    }
}

const REFUSED: Outcome = Outcome::Failed(WcStatus::RemoteAccess);

#[test]
fn the_nic_refuses_who_has_no_key() {
    let memory = Served::start(3, 1, Broadcast::<u8, Ed25519, AllRules>::regions(3, 1));
    let (domain, _nics) = nics(1);
    let raw = || Raw::connect(&domain, memory.address);
    let mut first = raw();
    for region in 0..2 {
        assert_eq!(first.write_key(region), None, "it is another's");
    }
    let mine = first.write_key(2).expect("it is mine");
    first.vqp.import(&mine).expect("connected");
    assert_eq!(first.post(SendOp::Write(mine.at(0)), b"mine"), Outcome::Success);
    drop(first);
    // A refusal ends a connection, and each has keys of its own.
    let refused = |to: &dyn Fn(&Raw) -> RemoteAddr| {
        let mut raw = raw();
        let to = to(&raw);
        assert_eq!(raw.write_at(to, b"not mine"), REFUSED, "{to:?}");
    };
    // By a key to read; beyond the end of what is mine; by the key of a connection that is over; by guesses.
    refused(&|raw| raw.read_key(0).at(0));
    refused(&|raw| raw.write_key(2).expect("mine").at(mine.len()));
    refused(&|_| mine.at(0));
    for guess in 0..8 {
        refused(&|raw| {
            let mine = raw.write_key(2).expect("mine").at(0);
            RemoteAddr { rkey: Key(mine.rkey.0 ^ 1 << (4 * guess)), ..mine }
        });
    }
    // By a key that another has at that time.
    let other = Raw::connect_as(ProcessId(0), &domain, memory.address);
    let stolen = other.write_key(0).expect("it is his");
    refused(&|_| stolen.at(0));
    drop(other);
    // Nothing of that is there.
    let mut raw = raw();
    for region in 0..2 {
        let key = raw.read_key(region);
        raw.vqp.import(&key).expect("connected");
        assert_eq!(raw.post(SendOp::Read(key.at(0)), &[0xEE; 64]), Outcome::Success);
        let mut found = [0xEE; 64];
        raw.memory.read_at(0, &mut found);
        assert_eq!(found, [0; 64]);
    }
}

/// What a place is to hold: this, of which the length and the checksum may be wrong.
fn place(seq: u64, len: u32, contents: &[u8], sound: bool) -> Vec<u8> {
    let mut crc = crc32fast::Hasher::new();
    for part in [&seq.to_le_bytes()[..], &len.to_le_bytes(), contents] {
        crc.update(part);
    }
    let crc = crc.finalize() ^ u32::from(!sound);
    [&seq.to_le_bytes()[..], &len.to_le_bytes(), &crc.to_le_bytes(), contents].concat()
}

/// Turns for which the memories have room.
const TURNS: u16 = 8;

#[test]
fn garbage_stops_nobody() {
    type Backup = RobustBackup<Paxos<u8>, Ed25519>;
    let keys = keys();
    let process = |p: u8| Backup::new(ProcessId(p), (3, 3), TURNS, keys[usize::from(p)].clone(), 10 + p);
    let regions = Backup::regions(3, TURNS);
    let liar = ProcessSet::only(ME);
    let mut cluster = Cluster::start_but(liar, (0..3).map(process).collect(), &vec![regions; 3], 1);
    let (memories, doors): (Vec<_>, _) =
        (cluster.memories.iter().map(|memory| memory.address).collect(), cluster.doors.clone());
    let lies = std::thread::spawn(move || {
        let (domain, _nics) = nics(1);
        for &at in &memories {
            let mut raw = Raw::connect(&domain, at);
            let mine = raw.write_key(2).expect("it is mine");
            raw.vqp.import(&mine).expect("connected");
            for register in 0..3 * usize::from(TURNS) {
                let contents = [register as u8 | 0x80; 40];
                let garbage = match register % 4 {
                    0 => place(2, 40, &contents, true),
                    1 => place(2, 40, &contents, false),
                    2 => place(2, u32::MAX, &contents, true),
                    _ => vec![0xFF; 56],
                };
                for half in 0..2 {
                    let to = mine.at(((2 * register + half) * PLACE) as u64);
                    assert_eq!(raw.post(SendOp::Write(to), &garbage), Outcome::Success);
                }
            }
            // To the memory's processor, which ends the connection.
            raw.post(SendOp::Send, &[0xFF; 40]);
        }
        for &at in &doors[..2] {
            let mut raw = Raw::connect(&domain, at);
            for len in [1, 40, 4000] {
                assert_eq!(raw.post(SendOp::Send, &vec![0xFF; len]), Outcome::Success);
            }
        }
        for at in memories.iter().chain(&doors[..2]) {
            for garbage in [&[0xFF; 64][..], &[4, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF], &[0; 4]] {
                let _ = TcpStream::connect(at).expect("a door").write_all(garbage);
            }
        }
    });
    // He is let in by who turns.
    while !lies.is_finished() {
        cluster.turn();
        std::thread::yield_now();
    }
    lies.join().expect("he says all of it");
    cluster.lead(1);
    assert_eq!(cluster.decided_but(liar), 11);
    assert!(cluster.living().all(|node| node.connected_memories() == 3), "it is as it was for the others");
}

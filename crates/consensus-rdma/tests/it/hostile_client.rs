//! A hostile client with its own implementation of the wire formats. The NIC refuses every access
//! for which the client has no key. Neither garbage in the client's registers nor garbage messages
//! stop the correct processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use crate::common::{Cluster, REGISTER_CAPACITY, ServedMemory, TIMEOUT, keys, nics, tokens};
use mitra_consensus::broadcast::Broadcast;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::{AllRules, ProcessId, ProcessSet};
use mitra_failover::{ConnectInfo, Domain, Outcome, RemoteRegion, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Buffer, Data, Key, RemoteAddr, SendOp, SendWr, WcStatus};
use serde::{Deserialize, Serialize};

/// The first frame of the handshake. The test defines the frames again to check their format.
#[derive(Serialize)]
struct Hello {
    version: u32,
    from: ProcessId,
    token: [u8; 16],
    incarnation: u64,
    info: Vec<u8>,
}

#[derive(Deserialize)]
struct Welcome {
    info: Vec<u8>,
    _incarnation: u64,
    _register_capacity: u32,
    regions: Vec<RegionGrant>,
}

#[derive(Deserialize)]
struct RegionGrant {
    read: Option<Vec<u8>>,
    write: Option<Vec<u8>>,
}

/// The hostile process, one of three.
const HOSTILE: ProcessId = ProcessId(2);
/// The size of a slot of a register, in bytes.
const SLOT_BYTES: usize = (16 + REGISTER_CAPACITY).next_multiple_of(8);

struct RawClient {
    vqp: VirtualQp,
    regions: Vec<RegionGrant>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
}

impl RawClient {
    /// Connects as the hostile process, by a correct handshake.
    fn connect(domain: &Arc<Domain>, address: SocketAddr) -> RawClient {
        RawClient::connect_as(HOSTILE, domain, address)
    }

    fn connect_as(p: ProcessId, domain: &Arc<Domain>, address: SocketAddr) -> RawClient {
        let mut vqp = VirtualQp::builder(domain).build().expect("a free queue pair");
        let info = vqp.local_info().encode();
        let token = tokens(3)[usize::from(p.0)];
        let hello = Hello { version: 2, from: p, token, incarnation: 1, info };
        let body = postcard::to_stdvec(&hello).expect("postcard encodes any Hello");
        let mut stream = TcpStream::connect(address).expect("the acceptor listens");
        stream.write_all(&(body.len() as u32).to_le_bytes()).expect("the peer reads");
        stream.write_all(&body).expect("the peer reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the acceptor answers");
        let welcome: Welcome = postcard::from_bytes(&answer[4..]).expect("the answer is a Welcome");
        vqp.connect(&ConnectInfo::decode(&welcome.info).expect("the answer holds a ConnectInfo"))
            .expect("the queue pair is connected");
        let memory = Arc::new(Buffer::new(SLOT_BYTES));
        let mr = domain.register(&memory, Access::LOCAL_WRITE).expect("a free memory region");
        RawClient { vqp, regions: welcome.regions, memory, mr }
    }

    fn post(&mut self, op: SendOp, bytes: &[u8]) -> Outcome {
        self.memory.write_at(0, bytes);
        let data = Data::sge(self.mr.sge(0, bytes.len() as u32));
        self.vqp.post_send(SendWr::new(1, op, data)).expect("the send queue has room");
        let (mut done, end) = (Vec::new(), Instant::now() + TIMEOUT);
        while done.is_empty() {
            assert!(Instant::now() < end, "the request did not complete within {TIMEOUT:?}");
            self.vqp.poll(&mut done);
        }
        done[0].outcome
    }

    /// Writes to an address for which the client has no key.
    fn write_at(&mut self, to: RemoteAddr, bytes: &[u8]) -> Outcome {
        self.vqp.import(&RemoteRegion::with_unknown_key(to.rkey, 1)).expect("the queue pair is connected");
        self.post(SendOp::Write(to), bytes)
    }

    fn write_key(&self, region: usize) -> Option<RemoteRegion> {
        Some(RemoteRegion::decode(self.regions[region].write.as_deref()?).expect("the key is a RemoteRegion"))
    }

    fn read_key(&self, region: usize) -> RemoteRegion {
        let encoded_key = self.regions[region].read.as_deref().expect("all processes may read all regions");
        RemoteRegion::decode(encoded_key).expect("the key is a RemoteRegion")
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        let _ = self.vqp.close();
    }
}

const REFUSED: Outcome = Outcome::Failed(WcStatus::RemoteAccess);

#[test]
fn nic_refuses_accesses_without_key() {
    let memory = ServedMemory::start(3, 1, Broadcast::<u8, Ed25519, AllRules>::regions(3, 1));
    let (domain, _nics) = nics(1);
    let connect = || RawClient::connect(&domain, memory.address);
    let mut first = connect();
    for region in 0..2 {
        assert_eq!(first.write_key(region), None, "only its owner has a write key");
    }
    let own_region = first.write_key(2).expect("the hostile process may write its own region");
    first.vqp.import(&own_region).expect("the queue pair is connected");
    assert_eq!(first.post(SendOp::Write(own_region.at(0)), b"mine"), Outcome::Success);
    drop(first);
    // A refused request breaks its connection, and each connection has keys of its own.
    let refused = |to: &dyn Fn(&RawClient) -> RemoteAddr| {
        let mut client = connect();
        let to = to(&client);
        assert_eq!(client.write_at(to, b"not mine"), REFUSED, "{to:?}");
    };
    // The hostile client writes with a read key, beyond the end of its own region, with a key of a
    // closed connection, and with guessed keys.
    refused(&|client| client.read_key(0).at(0));
    refused(&|client| {
        client.write_key(2).expect("the hostile process may write its own region").at(own_region.len())
    });
    refused(&|_| own_region.at(0));
    for guess in 0..8 {
        refused(&|client| {
            let own_region = client.write_key(2).expect("the hostile process may write its own region").at(0);
            RemoteAddr { rkey: Key(own_region.rkey.0 ^ 1 << (4 * guess)), ..own_region }
        });
    }
    // The hostile client writes with the current key of another process.
    let other = RawClient::connect_as(ProcessId(0), &domain, memory.address);
    let stolen = other.write_key(0).expect("process 0 may write its own region");
    refused(&|_| stolen.at(0));
    drop(other);
    // None of these writes had an effect.
    let mut client = connect();
    for region in 0..2 {
        let key = client.read_key(region);
        client.vqp.import(&key).expect("the queue pair is connected");
        assert_eq!(client.post(SendOp::Read(key.at(0)), &[0xEE; 64]), Outcome::Success);
        let mut found = [0xEE; 64];
        client.memory.read_at(0, &mut found);
        assert_eq!(found, [0; 64]);
    }
}

/// Encodes a slot whose length or checksum may be wrong.
fn encode_slot(seq: u64, len: u32, contents: &[u8], valid_checksum: bool) -> Vec<u8> {
    let mut crc = crc32fast::Hasher::new();
    for part in [&seq.to_le_bytes()[..], &len.to_le_bytes(), contents] {
        crc.update(part);
    }
    let crc = crc.finalize() ^ u32::from(!valid_checksum);
    [&seq.to_le_bytes()[..], &len.to_le_bytes(), &crc.to_le_bytes(), contents].concat()
}

/// The number of broadcasts per process for which the memories have registers.
const ROUNDS: u16 = 8;

#[test]
fn garbage_does_not_stop_correct_processes() {
    type Backup = RobustBackup<Paxos<u8>, Ed25519>;
    let keys = keys();
    let process = |p: u8| Backup::new(ProcessId(p), (3, 3), ROUNDS, keys[usize::from(p)].clone(), 10 + p);
    let regions = Backup::regions(3, ROUNDS);
    let hostile = ProcessSet::only(HOSTILE);
    let mut cluster = Cluster::start_without(hostile, (0..3).map(process).collect(), &vec![regions; 3], 1);
    let (memories, process_addresses): (Vec<_>, _) =
        (cluster.memories.iter().map(|memory| memory.address).collect(), cluster.process_addresses.clone());
    let attack = std::thread::spawn(move || {
        let (domain, _nics) = nics(1);
        for &address in &memories {
            let mut client = RawClient::connect(&domain, address);
            let own_region = client.write_key(2).expect("the hostile process may write its own region");
            client.vqp.import(&own_region).expect("the queue pair is connected");
            for register in 0..3 * usize::from(ROUNDS) {
                let contents = [register as u8 | 0x80; 40];
                let garbage = match register % 4 {
                    0 => encode_slot(2, 40, &contents, true),
                    1 => encode_slot(2, 40, &contents, false),
                    2 => encode_slot(2, u32::MAX, &contents, true),
                    _ => vec![0xFF; 56],
                };
                for half in 0..2 {
                    let to = own_region.at(((2 * register + half) * SLOT_BYTES) as u64);
                    assert_eq!(client.post(SendOp::Write(to), &garbage), Outcome::Success);
                }
            }
            // The CPU of the memory node answers a malformed request by closing the connection.
            client.post(SendOp::Send, &[0xFF; 40]);
        }
        for &address in &process_addresses[..2] {
            let mut client = RawClient::connect(&domain, address);
            for len in [1, 40, 4000] {
                assert_eq!(client.post(SendOp::Send, &vec![0xFF; len]), Outcome::Success);
            }
        }
        for address in memories.iter().chain(&process_addresses[..2]) {
            for garbage in [&[0xFF; 64][..], &[4, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF], &[0; 4]] {
                let _ = TcpStream::connect(address).expect("the acceptor listens").write_all(garbage);
            }
        }
    });
    // The processes accept the hostile client only while they are polled.
    while !attack.is_finished() {
        cluster.poll_all();
        std::thread::yield_now();
    }
    attack.join().expect("the attack completes");
    cluster.announce_leader(1);
    assert_eq!(cluster.decided_without(hostile), 11);
    assert!(
        cluster.running().all(|node| node.connected_memories() == 3),
        "the correct processes are still connected to all memories"
    );
}

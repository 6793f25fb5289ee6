//! The key-value store as its users have it: processes that are killed, memories that are killed, and clients who must not notice more
//! than that it takes a moment.

mod cluster;
mod history;
mod hosts;
#[path = "../network/mod.rs"]
mod network;
mod partitions;
mod program;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cluster::Cluster;
use mitra_kv::resp::{Reply, encode_request};

/// Runs clients of three processes over three memories while `faults` happen, and judges what they were told.
fn under(faults: impl FnOnce(&mut Cluster)) {
    history::under(&mut Cluster::start(3, 3), faults);
}

fn moment() {
    std::thread::sleep(Duration::from_millis(150));
}

#[test]
fn two_of_three_processes_and_one_of_three_memories_are_killed() {
    under(|cluster| {
        moment();
        let leader = cluster.leader();
        cluster.kill_process(leader);
        moment();
        cluster.kill_memory(1);
        moment();
        let leader = cluster.leader();
        cluster.kill_process(leader);
    });
}

/// What one client asks for in one go is done in that order, whether or not the process has a session for it yet; and one request that is too
/// long is its own affair.
#[test]
fn what_is_asked_for_in_one_go_is_done_in_order() {
    let cluster = Cluster::start(3, 3);
    let long = "x".repeat(5000);
    let asked: [&[&str]; 9] = [
        &["SET", "k", "1"],
        &["GET", "k"],
        &["SET", "k", "2"],
        &["GET", "k"],
        &["EXISTS", "k"],
        &["DEL", "k"],
        &["GET", "k"],
        &["SET", "k", &long],
        &["GET", "k"],
    ];
    let mut request = Vec::new();
    for words in asked {
        encode_request(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>(), &mut request);
    }
    let mut stream = TcpStream::connect(cluster.clients_of(cluster.leader())).expect("it serves");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    for _ in 0..3 {
        stream.write_all(&request).expect("sent");
        let (mut bytes, mut replies) = (Vec::new(), Vec::new());
        while replies.len() < asked.len() {
            let mut chunk = [0; 4096];
            let len = stream.read(&mut chunk).expect("replies");
            assert!(len > 0, "it hung up after {replies:?}");
            bytes.extend_from_slice(&chunk[..len]);
            while let Some((reply, used)) = Reply::parse(&bytes).expect("RESP") {
                bytes.drain(..used);
                replies.push(reply);
            }
        }
        let ok = Reply::Simple("OK");
        let value = |value: &str| Reply::Bulk(Some(value.as_bytes().to_vec()));
        let none = Reply::Bulk(None);
        let (too_long, rest) = (replies.remove(7), replies);
        assert!(matches!(&too_long, Reply::Error(why) if why.starts_with("ERR a key")), "{too_long:?}");
        let one = Reply::Integer(1);
        assert_eq!(rest, [ok.clone(), value("1"), ok, value("2"), one.clone(), one, none.clone(), none]);
    }
}

/// What was acknowledged outlives every program. Clients go on asking, and notice only that it takes a while.
#[test]
fn everything_is_killed_and_started_again_from_its_files() {
    history::under(&mut Cluster::on_disk(3, 3, false), |cluster| {
        for _ in 0..2 {
            moment();
            cluster.kill_all();
            cluster.start_all();
        }
    });
}

/// The same where what is acknowledged is on the disk first.
#[test]
fn what_is_on_the_disk_is_there_again() {
    let mut cluster = Cluster::on_disk(3, 3, true);
    let mut client = cluster.client();
    let all = || (0..40).map(|nth: u32| (format!("key{}", nth % 30), format!("value{nth}")));
    all().for_each(|(key, value)| client.put(key.as_bytes(), value.as_bytes()).expect("put"));
    cluster.kill_all();
    cluster.start_all();
    let mut client = cluster.client();
    for (key, value) in all().skip(10) {
        let found = client.get(key.as_bytes()).expect("an answer").map(|(value, _)| value);
        assert_eq!(found, Some(value.into_bytes()), "{key}");
    }
}

/// Each in turn, so that in the end none has run all the time, and the others would not be a majority without those that came back.
#[test]
fn memories_that_lie_in_files_come_back() {
    history::under(&mut Cluster::on_disk(3, 3, false), |cluster| {
        for m in [0, 1, 2, 0] {
            moment();
            cluster.kill_memory(m);
            moment();
            cluster.start_memory(m);
            // Until it takes part: only then may the next one go.
            std::thread::sleep(Duration::from_millis(500));
        }
        (0..3).for_each(|m| cluster.kill_memory(m));
        moment();
        cluster.start_all();
    });
}

/// It goes on where it was: nothing that was asked of it while it was stopped counts for those that took over.
#[test]
fn a_leader_that_was_asleep_does_not_lead_when_it_wakes() {
    under(|cluster| {
        moment();
        let leader = cluster.leader();
        cluster.pause_process(leader);
        std::thread::sleep(Duration::from_millis(400));
        cluster.resume_process(leader);
    });
}

/// Each process in turn is killed and comes back, having forgotten everything.
#[test]
fn processes_are_killed_and_come_back() {
    under(|cluster| {
        for p in [0, 1, 2, 0, 1] {
            moment();
            cluster.kill_process(p);
            moment();
            cluster.start_process(p);
        }
        // Only the last life of the last process is left.
        cluster.leader();
        for p in [0, 2] {
            cluster.kill_process(p);
        }
    });
}

/// A cable of the leader's is pulled, and a NIC of a memory dies: what runs over the other rails does not notice. Then the leader's last
/// cable goes, and it is as good as dead.
#[test]
fn rails_die_under_the_leader_and_under_a_memory() {
    under(|cluster| {
        moment();
        let leader = cluster.leader();
        cluster.fault_process(leader, "rail0 down");
        cluster.fault_memory(1, "rail1 nic-dead");
        moment();
        cluster.fault_process(leader, "rail1 down");
        moment();
        // It comes back, and finds another in its place.
        cluster.fault_process(leader, "rail0 up; rail1 up");
    });
}

#[test]
fn nothing_breaks_it_when_nothing_fails() {
    under(|_| {});
}

/// Who has only the last process and a majority of the memories has everything.
#[test]
fn what_was_acknowledged_is_there_for_the_last_process() {
    let mut cluster = Cluster::start(3, 3);
    let mut client = cluster.client();
    for nth in 0..300 {
        client.put(format!("key{nth}").as_bytes(), format!("value{nth}").as_bytes()).expect("put");
    }
    for _ in 0..2 {
        let leader = cluster.leader();
        cluster.kill_process(leader);
    }
    cluster.kill_memory(2);
    for nth in 0..300 {
        let found = client.get(format!("key{nth}").as_bytes()).expect("get").map(|(value, _)| value);
        assert_eq!(found, Some(format!("value{nth}").into_bytes()));
    }
}

/// More is written than the ring of entries holds, many times over: memories stay as large as they are, and a follower that slept
/// meanwhile has it all.
#[test]
fn the_ring_is_used_again_and_who_slept_gets_the_snapshot() {
    let mut cluster = Cluster::start(2, 3);
    let leader = cluster.leader();
    let follower = 1 - leader;
    cluster.pause_process(follower);
    let mut client = cluster.client();
    for nth in 0..3000 {
        client.put(format!("key{}", nth % 100).as_bytes(), format!("value{nth}").as_bytes()).expect("put");
    }
    cluster.resume_process(follower);
    cluster.kill_process(leader);
    for nth in 2900..3000 {
        let found = client.get(format!("key{}", nth % 100).as_bytes()).expect("get").map(|(value, _)| value);
        assert_eq!(found, Some(format!("value{nth}").into_bytes()));
    }
}

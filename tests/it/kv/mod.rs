//! `mitra kv` as its users run it: processes and memory nodes are killed, and clients must notice
//! nothing but a delay.

mod child_process;
mod client_histories;
mod cluster;
mod network_hosts;
mod partitions;
mod redis_protocol;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cluster::Cluster;
use mitra_kv::resp::{Reply, encode_request};
use serde_json::{Value, json};

/// Runs clients of three processes over three memories while `faults` happen, and checks their
/// histories.
fn check_under_faults(faults: impl FnOnce(&mut Cluster)) {
    client_histories::check_under_faults(&mut Cluster::start(3, 3), faults);
}

fn pause() {
    std::thread::sleep(Duration::from_millis(150));
}

#[test]
fn store_survives_two_of_three_processes_and_one_of_three_memories() {
    check_under_faults(|cluster| {
        pause();
        let leader = cluster.leader();
        cluster.kill_process(leader);
        pause();
        cluster.kill_memory(1);
        pause();
        let leader = cluster.leader();
        cluster.kill_process(leader);
    });
}

#[test]
fn client_commands_print_json() {
    let cluster = Cluster::start(3, 3);
    assert_eq!(cluster.kv_json(&["put", "k", "one"]), (Some(0), json!({"key": "k", "stored": true})));
    let (code, found) = cluster.kv_json(&["get", "k"]);
    assert_eq!((code, &found["value"]), (Some(0), &"one".into()));
    assert!(found["index"].as_u64().is_some_and(|index| index > 0), "{found}");
    let swap = ["cas", "k", "one", "two"];
    assert_eq!(cluster.kv_json(&swap), (Some(0), json!({"key": "k", "swapped": true})));
    assert_eq!(cluster.kv_json(&swap), (Some(1), json!({"key": "k", "swapped": false})));
    assert_eq!(cluster.kv_json(&["delete", "k"]), (Some(0), json!({"key": "k", "deleted": true})));
    assert_eq!(cluster.kv_json(&["delete", "k"]), (Some(1), json!({"key": "k", "deleted": false})));
    assert_eq!(cluster.kv_json(&["get", "k"]), (Some(1), json!({"key": "k", "value": null, "index": null})));
}

#[test]
fn fault_list_counts_queue_pairs_and_failovers() {
    let cluster = Cluster::start(3, 3);
    let deadline = Instant::now() + cluster::TIMEOUT;
    let until = |what: &str, holds: &dyn Fn(&[Value]) -> bool| {
        loop {
            let listed = cluster.listed();
            if holds(&listed) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {listed:#?}");
            pause();
        }
    };
    // Each memory node has a queue pair to each process. Each process has a queue pair to each
    // memory and to each other process.
    until("all are connected", &|listed| {
        let of = |command: &str| {
            let has =
                |process: &&Value| process["program"].as_str().is_some_and(|line| line.contains(command));
            listed.iter().filter(has).map(|process| process["queue_pairs"].as_u64()).collect::<Vec<_>>()
        };
        of(" memory ") == [Some(3); 3] && of(" kv serve ") == [Some(5); 3]
    });
    cluster.fault_memory(0, "rail0 down");
    until("the queue pairs of memory 0 have moved", &|listed| {
        let failovers: u64 = listed.iter().filter_map(|process| process["failovers"].as_u64()).sum();
        failovers >= 6
    });
}

/// The server executes pipelined requests in order, whether or not it has a session for the client
/// yet. A request that is too long is refused without effect on the other requests. On a busy host
/// the leader may change while the cluster starts. Some requests of a round are then refused or
/// undecided, which says nothing about the order, so the round does not count.
#[test]
fn pipelined_requests_are_executed_in_order() {
    let cluster = Cluster::start(3, 3);
    let deadline = Instant::now() + cluster::TIMEOUT;
    let connect = || {
        let leader = cluster.client_address(cluster.leader());
        let stream = TcpStream::connect(leader).expect("the server accepts");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        stream
    };
    let (mut stream, mut rounds, mut in_order) = (connect(), 0, 0);
    while in_order < 3 {
        rounds += 1;
        let mut replies = pipelined_replies(&mut stream, &format!("k{rounds}"));
        if let Some(refusal) = replies.iter().find(|reply| is_no_answer(reply)) {
            assert!(Instant::now() < deadline, "{in_order} of {rounds} rounds were answered: {refusal:?}");
            pause();
            stream = connect();
            continue;
        }
        let ok = Reply::Simple("OK");
        let value = |value: &str| Reply::Bulk(Some(value.as_bytes().to_vec()));
        let none = Reply::Bulk(None);
        let too_long = replies.remove(7);
        assert!(matches!(&too_long, Reply::Error(why) if why.starts_with("ERR a key")), "{too_long:?}");
        let one = Reply::Integer(1);
        assert_eq!(replies, [ok.clone(), value("1"), ok, value("2"), one.clone(), one, none.clone(), none]);
        in_order += 1;
    }
}

/// Sends nine requests for one key at once, and returns their replies.
fn pipelined_replies(stream: &mut TcpStream, key: &str) -> Vec<Reply> {
    let long = "x".repeat(5000);
    let requests: [&[&str]; 9] = [
        &["SET", key, "1"],
        &["GET", key],
        &["SET", key, "2"],
        &["GET", key],
        &["EXISTS", key],
        &["DEL", key],
        &["GET", key],
        &["SET", key, &long],
        &["GET", key],
    ];
    let mut request = Vec::new();
    for words in requests {
        encode_request(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>(), &mut request);
    }
    stream.write_all(&request).expect("sent");
    let (mut bytes, mut replies) = (Vec::new(), Vec::new());
    while replies.len() < requests.len() {
        let mut chunk = [0; 4096];
        let len = stream.read(&mut chunk).expect("replies");
        assert!(len > 0, "the server closed the connection after {replies:?}");
        bytes.extend_from_slice(&chunk[..len]);
        while let Some((reply, used)) = Reply::parse(&bytes).expect("RESP") {
            bytes.drain(..used);
            replies.push(reply);
        }
    }
    replies
}

/// Whether a server that does not lead, or lost the lead, has sent the reply.
fn is_no_answer(reply: &Reply) -> bool {
    let is_one = |text: &String| ["TRYAGAIN", "MOVED", "UNKNOWN"].iter().any(|word| text.starts_with(word));
    matches!(reply, Reply::Error(text) if is_one(text))
}

/// Acknowledged writes outlive every program when memories are files. Clients see a delay only.
#[test]
fn store_survives_kill_of_everything_with_memories_in_files() {
    client_histories::check_under_faults(&mut Cluster::on_disk(3, 3, false), |cluster| {
        for _ in 0..2 {
            pause();
            cluster.kill_all();
            cluster.start_all();
        }
    });
}

#[test]
fn synced_writes_survive_kill_of_everything() {
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

/// Each memory is killed and started again in turn. In the end no memory has run all the time, so
/// every majority contains a restarted memory.
#[test]
fn memories_in_files_rejoin_after_restart() {
    client_histories::check_under_faults(&mut Cluster::on_disk(3, 3, false), |cluster| {
        for m in [0, 1, 2, 0] {
            pause();
            cluster.kill_memory(m);
            pause();
            cluster.start_memory(m);
            // The next memory may fail only when this one takes part again.
            std::thread::sleep(Duration::from_millis(500));
        }
        (0..3).for_each(|m| cluster.kill_memory(m));
        pause();
        cluster.start_all();
    });
}

/// A stopped leader continues where it was. Requests that it received before must not take effect
/// after another leader took over.
#[test]
fn stopped_leader_does_not_lead_when_it_continues() {
    check_under_faults(|cluster| {
        pause();
        let leader = cluster.leader();
        cluster.pause_process(leader);
        std::thread::sleep(Duration::from_millis(400));
        cluster.resume_process(leader);
    });
}

/// Each process in turn is killed and started again without its state.
#[test]
fn processes_rejoin_after_restart() {
    check_under_faults(|cluster| {
        for p in [0, 1, 2, 0, 1] {
            pause();
            cluster.kill_process(p);
            pause();
            cluster.start_process(p);
        }
        // Process 1, which was restarted last, has to lead alone.
        cluster.leader();
        for p in [0, 2] {
            cluster.kill_process(p);
        }
    });
}

/// A link of the leader goes down and a NIC of a memory dies; the connections move to the other
/// rails. Then the leader's last link goes down, and another process leads.
#[test]
fn store_survives_rail_failures_of_leader_and_memory() {
    check_under_faults(|cluster| {
        pause();
        let leader = cluster.leader();
        cluster.fault_process(leader, "rail0 down");
        cluster.fault_memory(1, "rail1 nic-dead");
        pause();
        cluster.fault_process(leader, "rail1 down");
        pause();
        // The old leader is reachable again and must follow.
        cluster.fault_process(leader, "rail0 up; rail1 up");
    });
}

#[test]
fn store_is_linearizable_without_faults() {
    check_under_faults(|_| {});
}

/// One process and a majority of the memories have all acknowledged writes.
#[test]
fn last_process_has_all_acknowledged_writes() {
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

/// The clients write many times the capacity of the ring of entries. The memories do not grow, and
/// a follower that was stopped meanwhile catches up from the snapshot. Some keys are only written
/// at the beginning, so that the follower has them from the snapshot alone.
#[test]
fn stopped_follower_catches_up_from_snapshot_after_ring_wraps() {
    let mut cluster = Cluster::start(2, 3);
    let leader = cluster.leader();
    let follower = 1 - leader;
    cluster.pause_process(follower);
    let mut client = cluster.client();
    let early = |nth: usize| (format!("early{nth}"), format!("first{nth}"));
    for (key, value) in (0..50).map(early) {
        client.put(key.as_bytes(), value.as_bytes()).expect("put");
    }
    for nth in 0..3000 {
        client.put(format!("key{}", nth % 100).as_bytes(), format!("value{nth}").as_bytes()).expect("put");
    }
    cluster.resume_process(follower);
    cluster.kill_process(leader);
    for nth in 2900..3000 {
        let found = client.get(format!("key{}", nth % 100).as_bytes()).expect("get").map(|(value, _)| value);
        assert_eq!(found, Some(format!("value{nth}").into_bytes()));
    }
    for (key, value) in (0..50).map(early) {
        let found = client.get(key.as_bytes()).expect("get").map(|(value, _)| value);
        assert_eq!(found, Some(value.into_bytes()));
    }
}

//! `mitra kv` under network partitions. Each process and each memory runs on a host of its own, and
//! the router drops packets between hosts. Clients reach all hosts and keep sending requests.

use std::thread::JoinHandle;
use std::time::Duration;

use mitra_kv::resp::Reply;

use super::child_process::{cpu_time, request};
use super::client_histories;
use super::cluster::{Cluster, TIMEOUT, wait_until};
use super::network_hosts::run_at_router;

/// The shortest duration of a partition. After less time without an answer, clients try another
/// server.
const CUT_DURATION: Duration = Duration::from_secs(2);
/// A key that no client uses.
const KEY: &str = "written before the cut";

/// Checks the histories of clients while a partition hits three processes over three memories.
/// Afterwards all programs must run and be idle.
fn check_under_partition(test: &str, partition: impl FnOnce(&mut Cluster)) {
    run_at_router(test, || {
        let mut cluster = Cluster::on_hosts(3, 3);
        client_histories::check_under_faults(&mut cluster, partition);
        assert_idle(&mut cluster);
    });
}

/// Ends the partition and waits until all processes are connected and name the same leader.
fn heal(cluster: &mut Cluster) {
    cluster.hosts().heal();
    wait_until("all processes are connected and name one leader", || {
        let infos: Vec<_> = cluster.infos().into_iter().collect::<Option<_>>()?;
        let field = |info: &String, name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
        };
        let is_healed = infos.iter().all(|info| {
            field(info, "memories:").as_deref() == Some("3")
                && field(info, "lost_memories:").as_deref() == Some("0")
                && field(info, "processes:").as_deref() == Some("3")
                && field(info, "leader:") == field(&infos[0], "leader:")
        });
        is_healed.then_some(())
    });
    cluster.leader();
}

/// Asserts that all programs run, and that none uses more than half a processor without requests.
fn assert_idle(cluster: &mut Cluster) {
    let interval = Duration::from_secs(2);
    let before: Vec<_> = cluster.programs().map(|(_, program)| cpu_time(program)).collect();
    std::thread::sleep(interval);
    for ((name, program), before) in cluster.programs().zip(before) {
        assert!(program.try_wait().is_none(), "{name} has ended");
        let used = cpu_time(program) - before;
        assert!(used < interval / 2, "{name} used the processor for {used:?} of {interval:?} while idle");
    }
}

fn others_of_three(one: usize) -> [usize; 2] {
    [(one + 1) % 3, (one + 2) % 3]
}

/// Drops all packets from one set of hosts to another.
fn cut_one_way(cluster: &mut Cluster, from: &[usize], to: &[usize]) {
    for &from in from {
        for &to in to {
            cluster.hosts().cut(from, to);
        }
    }
}

fn cut_both_ways(cluster: &mut Cluster, some: &[usize], others: &[usize]) {
    cut_one_way(cluster, some, others);
    cut_one_way(cluster, others, some);
}

fn hosts_of_memories<const N: usize>(cluster: &Cluster, which: [usize; N]) -> [usize; N] {
    which.map(|m| cluster.host_of_memory(m))
}

/// Waits for a leader that has executed a write, and returns it.
fn serving_leader(cluster: &Cluster) -> usize {
    wait_until("a leader answers", || {
        let leader = cluster.leader();
        let reply = request(cluster.client_address(leader), &["SET", KEY, "first"], Duration::from_secs(1));
        (reply == Some(Reply::Simple("OK"))).then_some(leader)
    })
}

/// Sends a write to a process that cannot commit it, in a thread of its own.
fn send_uncommittable_write(cluster: &Cluster, p: usize) -> JoinHandle<Option<Reply>> {
    let at = cluster.client_address(p);
    std::thread::spawn(move || request(at, &["SET", KEY, "uncommittable"], 2 * TIMEOUT))
}

/// Checks that another process leads, that its write survives, and that the old leader's write was
/// not acknowledged.
fn check_replaced(cluster: &mut Cluster, leader: usize, write: JoinHandle<Option<Reply>>) {
    cluster.leader_among(others_of_three(leader).into_iter());
    std::thread::sleep(CUT_DURATION);
    cluster.client().put(KEY.as_bytes(), b"by the next leader").expect("put");
    heal(cluster);
    let reply = write.join().expect("the client does not panic");
    // The outcome is unknown, or the process no longer led, or had no majority, when the request
    // arrived.
    let Some(Reply::Error(text)) = &reply else { panic!("the write ended as {reply:?}") };
    assert!(
        ["UNKNOWN ", "MOVED ", "TRYAGAIN ", "CLUSTERDOWN "].iter().any(|kind| text.starts_with(kind)),
        "{text}"
    );
    let found = cluster.client().get(KEY.as_bytes()).expect("get").map(|(value, _)| value);
    assert_eq!(found.as_deref(), Some(&b"by the next leader"[..]));
}

#[test]
fn leader_cut_off_from_memories_is_replaced() {
    check_under_partition("kv::partitions::leader_cut_off_from_memories_is_replaced", |cluster| {
        let leader = serving_leader(cluster);
        let all = hosts_of_memories(cluster, [0, 1, 2]);
        cut_both_ways(cluster, &[leader], &all);
        let write = send_uncommittable_write(cluster, leader);
        check_replaced(cluster, leader, write);
    });
}

/// The leader reaches one memory of three. Its writes there must not take effect.
#[test]
fn leader_with_minority_of_memories_is_replaced() {
    check_under_partition("kv::partitions::leader_with_minority_of_memories_is_replaced", |cluster| {
        let leader = serving_leader(cluster);
        let [own, second, third] = hosts_of_memories(cluster, [0, 1, 2]);
        let [next, last] = others_of_three(leader);
        cut_both_ways(cluster, &[leader, own], &[next, last, second, third]);
        let write = send_uncommittable_write(cluster, leader);
        check_replaced(cluster, leader, write);
    });
}

/// The leader's writes arrive and their acknowledgements do not. Such unacknowledged writes may
/// take effect, like writes of a crashed leader.
#[test]
fn leader_that_receives_nothing_from_memories_is_replaced() {
    check_under_partition(
        "kv::partitions::leader_that_receives_nothing_from_memories_is_replaced",
        |cluster| {
            let leader = serving_leader(cluster);
            let all = hosts_of_memories(cluster, [0, 1, 2]);
            cut_one_way(cluster, &all, &[leader]);
            let write = send_uncommittable_write(cluster, leader);
            check_replaced(cluster, leader, write);
        },
    );
}

#[test]
fn leader_that_cannot_send_to_memories_is_replaced() {
    check_under_partition("kv::partitions::leader_that_cannot_send_to_memories_is_replaced", |cluster| {
        let leader = serving_leader(cluster);
        let all = hosts_of_memories(cluster, [0, 1, 2]);
        cut_one_way(cluster, &[leader], &all);
        let write = send_uncommittable_write(cluster, leader);
        check_replaced(cluster, leader, write);
    });
}

/// Processes detect each other's crashes through the memories, so they keep one leader without
/// messages among themselves.
#[test]
fn one_leader_remains_when_processes_cannot_talk() {
    check_under_partition("kv::partitions::one_leader_remains_when_processes_cannot_talk", |cluster| {
        for p in 0..3 {
            cut_one_way(cluster, &[p], &others_of_three(p));
        }
        wait_until("no process reaches another", || {
            cluster
                .infos()
                .iter()
                .all(|info| info.as_ref().is_some_and(|i| i.contains("\nprocesses:1")))
                .then_some(())
        });
        let leader = serving_leader(cluster);
        let mut client = cluster.client();
        for nth in 0..100 {
            client.put(KEY.as_bytes(), format!("{nth}").as_bytes()).expect("put");
        }
        for info in cluster.infos() {
            let info = info.expect("the process replies");
            assert!(info.contains(&format!("leader:p{leader}")), "{info}");
        }
        heal(cluster);
    });
}

/// A memory is cut off from all hosts and comes back. Then another memory and the leader are
/// killed, so the majority needs the memory that came back.
#[test]
fn cut_off_memory_rejoins() {
    check_under_partition("kv::partitions::cut_off_memory_rejoins", |cluster| {
        serving_leader(cluster);
        let [lost, second, third] = hosts_of_memories(cluster, [0, 1, 2]);
        cut_both_ways(cluster, &[lost], &[0, 1, 2, second, third]);
        wait_until("no process reaches the memory", || {
            cluster
                .infos()
                .iter()
                .all(|info| info.as_ref().is_some_and(|i| i.contains("\nmemories:2")))
                .then_some(())
        });
        cluster.client().put(KEY.as_bytes(), b"without it").expect("put");
        heal(cluster);
        cluster.kill_memory(1);
        let leader = cluster.leader();
        cluster.kill_process(leader);
        let found = cluster.client().get(KEY.as_bytes()).expect("get").map(|(value, _)| value);
        assert_eq!(found.as_deref(), Some(&b"without it"[..]));
    });
}

#[test]
fn isolated_programs_stay_idle() {
    run_at_router("kv::partitions::isolated_programs_stay_idle", || {
        let mut cluster = Cluster::on_hosts(3, 3);
        for host in 0..6 {
            let others: Vec<_> = (0..6).filter(|&other| other != host).collect();
            cut_one_way(&mut cluster, &[host], &others);
        }
        wait_until("no process reaches a memory", || {
            cluster
                .infos()
                .iter()
                .all(|info| info.as_ref().is_some_and(|i| i.contains("\nmemories:0")))
                .then_some(())
        });
        assert_idle(&mut cluster);
        heal(&mut cluster);
        cluster.client().put(KEY.as_bytes(), b"again").expect("put");
    });
}

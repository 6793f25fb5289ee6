//! Partitions: each process and each memory is a host of its own, and what one sends to another is lost, while clients, whom everybody
//! reaches, go on asking.

use std::thread::JoinHandle;
use std::time::Duration;

use mitra_kv::resp::Reply;

use crate::cluster::{Cluster, PATIENCE, until};
use crate::history;
use crate::hosts::at_a_router;
use crate::program::ask;

/// How long the next leader leads, at least: longer than clients wait for a server that is silent before they go on with another.
const CUT: Duration = Duration::from_secs(2);
/// A key that no client uses.
const KEY: &str = "asked for before the cut";

/// Lets a partition befall three processes over three memories while clients ask; nobody dies of it, or runs wild.
fn under(test: &str, partition: impl FnOnce(&mut Cluster)) {
    at_a_router(test, || {
        let mut cluster = Cluster::on_hosts(3, 3);
        history::under(&mut cluster, partition);
        calm(&mut cluster);
    });
}

/// Everybody reaches everybody again, and all come to name the same leader.
fn heal(cluster: &mut Cluster) {
    cluster.hosts().heal();
    until("all are connected and of one mind", || {
        let infos: Vec<_> = cluster.infos().into_iter().collect::<Option<_>>()?;
        let says = |info: &String, what: &str| {
            info.lines().find_map(|line| line.strip_prefix(what).map(str::to_owned))
        };
        let whole = infos.iter().all(|info| {
            says(info, "memories:").as_deref() == Some("3")
                && says(info, "lost_memories:").as_deref() == Some("0")
                && says(info, "processes:").as_deref() == Some("3")
                && says(info, "leader:") == says(&infos[0], "leader:")
        });
        whole.then_some(())
    });
    cluster.leader();
}

/// Nobody has died, and nobody is busy when there is nothing to do.
fn calm(cluster: &mut Cluster) {
    let lasts = Duration::from_secs(2);
    let before: Vec<_> = cluster.programs().map(|(_, program)| program.busy()).collect();
    std::thread::sleep(lasts);
    for ((name, program), before) in cluster.programs().zip(before) {
        assert!(program.lives(), "{name} has ended");
        let busy = program.busy() - before;
        assert!(busy < lasts / 2, "{name} was busy for {busy:?} of {lasts:?} with nothing");
    }
}

/// All that are not these, of three.
fn but(one: usize) -> [usize; 2] {
    [(one + 1) % 3, (one + 2) % 3]
}

/// What these send to those is lost.
fn lose(cluster: &mut Cluster, from: &[usize], to: &[usize]) {
    for &from in from {
        for &to in to {
            cluster.hosts().cut(from, to);
        }
    }
}

/// Neither hears the other.
fn part(cluster: &mut Cluster, some: &[usize], others: &[usize]) {
    lose(cluster, some, others);
    lose(cluster, others, some);
}

/// The hosts of these memories.
fn memories<const N: usize>(cluster: &Cluster, which: [usize; N]) -> [usize; N] {
    which.map(|m| cluster.host_of_memory(m))
}

/// Somebody who leads and has made a change for a client without a session.
fn leader_that_serves(cluster: &Cluster) -> usize {
    until("somebody leads who answers", || {
        let leader = cluster.leader();
        let reply = ask(cluster.clients_of(leader), &["SET", KEY, "at first"], Duration::from_secs(1));
        (reply == Some(Reply::Simple("OK"))).then_some(leader)
    })
}

/// A change that is asked of this process, who cannot make it.
fn ask_in_vain(cluster: &Cluster, p: usize) -> JoinHandle<Option<Reply>> {
    let at = cluster.clients_of(p);
    std::thread::spawn(move || ask(at, &["SET", KEY, "in vain"], 2 * PATIENCE))
}

/// Another leads, and what it is asked for then outlives what the one before was asked for, which is not said to be done.
fn replaced(cluster: &mut Cluster, leader: usize, in_vain: JoinHandle<Option<Reply>>) {
    cluster.leader_among(but(leader).into_iter());
    std::thread::sleep(CUT);
    cluster.client().put(KEY.as_bytes(), b"by the next").expect("put");
    heal(cluster);
    let reply = in_vain.join().expect("it asks");
    assert!(matches!(reply, Some(Reply::Error(_))), "{reply:?}");
    let found = cluster.client().get(KEY.as_bytes()).expect("get").map(|(value, _)| value);
    assert_eq!(found.as_deref(), Some(&b"by the next"[..]));
}

#[test]
fn a_leader_is_cut_off_from_the_memories() {
    under("partitions::a_leader_is_cut_off_from_the_memories", |cluster| {
        let leader = leader_that_serves(cluster);
        let all = memories(cluster, [0, 1, 2]);
        part(cluster, &[leader], &all);
        let in_vain = ask_in_vain(cluster, leader);
        replaced(cluster, leader, in_vain);
    });
}

/// With one memory: what is written there is not lost at once, but is not to count.
#[test]
fn a_leader_is_left_with_a_minority_of_the_memories() {
    under("partitions::a_leader_is_left_with_a_minority_of_the_memories", |cluster| {
        let leader = leader_that_serves(cluster);
        let [mine, other, third] = memories(cluster, [0, 1, 2]);
        let [next, last] = but(leader);
        part(cluster, &[leader, mine], &[next, last, other, third]);
        let in_vain = ask_in_vain(cluster, leader);
        replaced(cluster, leader, in_vain);
    });
}

/// It writes, and never hears that it has written: what it has not promised to anybody may count, as all that a dead leader left.
#[test]
fn memories_hear_the_leader_who_does_not_hear_them() {
    under("partitions::memories_hear_the_leader_who_does_not_hear_them", |cluster| {
        let leader = leader_that_serves(cluster);
        let all = memories(cluster, [0, 1, 2]);
        lose(cluster, &all, &[leader]);
        let in_vain = ask_in_vain(cluster, leader);
        replaced(cluster, leader, in_vain);
    });
}

#[test]
fn memories_do_not_hear_the_leader_who_hears_them() {
    under("partitions::memories_do_not_hear_the_leader_who_hears_them", |cluster| {
        let leader = leader_that_serves(cluster);
        let all = memories(cluster, [0, 1, 2]);
        lose(cluster, &[leader], &all);
        let in_vain = ask_in_vain(cluster, leader);
        replaced(cluster, leader, in_vain);
    });
}

/// Who lives is seen in the memories: processes that do not hear each other go on with one leader.
#[test]
fn processes_do_not_hear_each_other() {
    under("partitions::processes_do_not_hear_each_other", |cluster| {
        for p in 0..3 {
            lose(cluster, &[p], &but(p));
        }
        until("nobody reaches a process", || {
            cluster
                .infos()
                .iter()
                .all(|info| info.as_ref().is_some_and(|i| i.contains("\nprocesses:1")))
                .then_some(())
        });
        let leader = leader_that_serves(cluster);
        let mut client = cluster.client();
        for nth in 0..100 {
            client.put(KEY.as_bytes(), format!("{nth}").as_bytes()).expect("put");
        }
        for info in cluster.infos() {
            let info = info.expect("it says something");
            assert!(info.contains(&format!("leader:p{leader}")), "{info}");
        }
        heal(cluster);
    });
}

/// A memory is cut off from everybody. It counts again when it is back: another dies then, and the leader with it.
#[test]
fn a_memory_is_cut_off_and_comes_back() {
    under("partitions::a_memory_is_cut_off_and_comes_back", |cluster| {
        leader_that_serves(cluster);
        let [gone, other, third] = memories(cluster, [0, 1, 2]);
        part(cluster, &[gone], &[0, 1, 2, other, third]);
        until("nobody reaches it", || {
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

/// Who reaches nobody waits, and does not spin.
#[test]
fn everybody_is_cut_off() {
    at_a_router("partitions::everybody_is_cut_off", || {
        let mut cluster = Cluster::on_hosts(3, 3);
        for host in 0..6 {
            let others: Vec<_> = (0..6).filter(|&other| other != host).collect();
            lose(&mut cluster, &[host], &others);
        }
        until("nobody reaches anybody", || {
            cluster
                .infos()
                .iter()
                .all(|info| info.as_ref().is_some_and(|i| i.contains("\nmemories:0")))
                .then_some(())
        });
        calm(&mut cluster);
        heal(&mut cluster);
        cluster.client().put(KEY.as_bytes(), b"again").expect("put");
    });
}

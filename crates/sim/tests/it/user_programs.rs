//! Features besides faults that a user's test relies on: the report of a run, restarts of a host,
//! and the repetition of a run from its seed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_sim::{AppContext, Config, SimNic, Testbed, World};
use mitra_verbs::{
    Access, Buffer, CqId, Data, Mr, Provider, QpBuilder, Qpn, RcConnection, SendOp, SendWr, WcStatus,
};

const MS: Duration = Duration::from_millis(1);

#[test]
fn report_of_stalled_run_says_what_each_program_does() {
    let mut testbed = Testbed::with_config(9, Config::fault_free(), 1);
    let [a, b] = testbed.hosts;
    let world = &mut testbed.world;
    world.add_app(a, |ctx: &mut AppContext<'_>| {
        ctx.trace("waits for the reply");
        ctx.sleep(MS);
    });
    world.add_app(b, |ctx: &mut AppContext<'_>| ctx.exit());
    let stalled = world.run_until(|_| false, 5 * MS).unwrap_err();
    world.pause(a, None);
    let paused = world.run_until(|_| false, 5 * MS).unwrap_err();
    let text = stalled.to_string();
    for part in [
        "seed 9: not done within 5ms\nat 5000000 ns after ",
        "\nhost a: 0 calls\n  application 0 has its next turn at 5",
        " ns; its last line: waits for the reply\nhost b: 0 calls\n  application 1 has ended\nNIC 0 a0: alive, link up",
        "\nREPRODUCE WITH: MITRA_SEED=9 cargo test -p mitra-sim --test it -- --exact user_programs::report_of_stalled_run_says_what_each_program_does",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(format!("{stalled:?}"), text, "`unwrap` prints the same text");
    let part =
        "host a: 0 calls, paused\n  application 0 has its next turn when the host wakes; its last line";
    assert!(paused.to_string().contains(part), "{paused}");
}

struct End {
    nic: Arc<SimNic>,
    cq: CqId,
    qp: Qpn,
    memory: Arc<Buffer>,
    mr: Mr,
}

impl End {
    fn new(nic: Arc<SimNic>) -> End {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(16, None).unwrap();
        let qp = QpBuilder::rc(pd, cq).build(&*nic).unwrap();
        let memory = Arc::new(Buffer::new(64));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        End { nic, cq, qp, memory, mr }
    }

    fn connect(&self, peer: &End) {
        let gid = peer.nic.query_port().unwrap().gid;
        RcConnection::to(gid, peer.qp).connect(&*self.nic, self.qp).unwrap();
    }
}

#[test]
fn process_starts_again_after_it_has_ended() {
    let mut testbed = Testbed::with_config(1, Config::fault_free(), 1);
    let b = testbed.hosts[1];
    let old_turns = Rc::new(Cell::new(0));
    let turns = Rc::clone(&old_turns);
    testbed.world.add_app(b, move |_: &mut AppContext<'_>| turns.set(turns.get() + 1));
    testbed.world.run_for(MS);
    testbed.world.exit(b);
    let turns_before = old_turns.get();
    assert!(turns_before > 0);
    assert!(testbed.nics[1][0].alloc_pd().is_err(), "its NIC is reset");

    testbed.world.resume(b);
    let nic = testbed.world.add_nic(b, 0);
    assert_eq!(testbed.world.nic(b, 0), nic.id());
    assert_ne!(nic.id(), testbed.nics[1][0].id());
    let (client, server) = (End::new(Arc::clone(&testbed.nics[0][0])), End::new(nic));
    client.connect(&server);
    server.connect(&client);
    let (memory, region) = (Arc::clone(&server.memory), server.mr);
    let new_turns = Rc::new(Cell::new(0));
    let turns = Rc::clone(&new_turns);
    testbed.world.add_app(b, move |_: &mut AppContext<'_>| {
        turns.set(turns.get() + 1);
        server.memory.store(8, server.memory.load(0));
    });
    let write = SendWr::new(1, SendOp::Write(region.remote(0)), Data::inline(&7u64.to_ne_bytes()));
    client.nic.post_send(client.qp, &[write]).unwrap();
    testbed.world.run_until(|_| memory.load(8) == 7, 5 * MS).unwrap();
    testbed.world.run_for(MS);
    let mut completions = Vec::new();
    client.nic.poll_cq(client.cq, 1, &mut completions).unwrap();
    assert_eq!(completions[0].status, WcStatus::Success);
    assert!(new_turns.get() > 0);
    assert_eq!(old_turns.get(), turns_before, "the program that has ended gets no more turns");
}

#[test]
#[should_panic(expected = "c has no NIC on rail 3")]
fn nic_of_another_rail_is_refused() {
    let mut world = World::with_config(1, Config::fault_free());
    let host = world.add_host("c");
    world.add_nic(host, 0);
    world.nic(host, 3);
}

#[test]
fn programs_of_one_seed_repeat() {
    let run = |seed| {
        let mut testbed = Testbed::new(seed, 2);
        for host in testbed.hosts {
            testbed.world.add_app(host, |ctx: &mut AppContext<'_>| {
                let drawn = ctx.rng().below(1_000_000);
                ctx.trace(drawn);
                ctx.sleep(Duration::from_nanos(drawn));
            });
        }
        testbed.world.run_for(10 * MS);
        testbed.world.trace_hash()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

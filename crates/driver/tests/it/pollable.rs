//! vQPs whose descriptor an event loop waits for.

use std::os::fd::AsFd;

use mitra_driver::PollableQp;
use mitra_failover::{Completion, Config, VirtualQp};
use mitra_softnic::SoftNic;
use mitra_softnic::fault::Failure;
use mitra_verbs::{Access, Data, SendOp, SendWr, WindowBind, WindowType};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::common::Host;

fn is_readable(qp: &PollableQp) -> bool {
    poll(&mut [PollFd::new(qp.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).expect("a valid descriptor")
        == 1
}

fn connect([a, b]: [&Host; 2], config: Config) -> [PollableQp; 2] {
    let mut ends = [a, b]
        .map(|host| PollableQp::build(VirtualQp::builder(&host.domain).config(config)).expect("a free vQP"));
    let infos = ends.each_ref().map(|end| end.vqp().local_info());
    ends[0].vqp_mut().connect(&infos[1]).expect("the ends match");
    ends[1].vqp_mut().connect(&infos[0]).expect("the ends match");
    ends[0].vqp_mut().import(&b.region()).expect("the vQP is connected");
    ends
}

/// Heartbeats are off, so nothing happens until a request completes.
fn quiet() -> Config {
    let mut config = Config::default();
    config.detector.max_missed_heartbeats = 0;
    config
}

#[test]
fn descriptor_is_readable_only_while_something_is_to_do() {
    let (a, b) = (Host::open(), Host::open());
    let [mut active, mut passive] = connect([&a, &b], quiet());
    let mut completions: Vec<Completion> = Vec::new();
    // The ends take the events of connecting.
    for end in [&mut active, &mut passive] {
        while is_readable(end) {
            end.poll(&mut completions).expect("the NICs are alive");
        }
    }
    assert!(completions.is_empty());
    let write = SendWr::new(5, SendOp::Write(b.region().at(0)), Data::inline(&9_u64.to_ne_bytes()));
    active.vqp_mut().post_send(write).expect("the vQP is open");
    poll(&mut [PollFd::new(active.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
        .expect("a valid descriptor");
    assert_eq!(active.poll(&mut completions).expect("the NICs are alive"), 1);
    completions[0].into_result().expect("the WRITE is executed");
    assert!(!is_readable(&active) && !is_readable(&passive), "a WRITE is no work for the passive end");
    assert_eq!(b.memory.load(0), 9);
}

/// Polls until the descriptor is not readable.
fn calm_down(end: &mut PollableQp) {
    for _ in 0..100_000 {
        if !is_readable(end) {
            return;
        }
        end.poll(&mut Vec::new()).expect("the NICs are alive");
    }
    panic!("the descriptor stays readable");
}

#[test]
fn timers_and_events_of_nics_leave_descriptor_unreadable() {
    let (a, b) = (Host::open(), Host::open());
    // Heartbeats set timers.
    let [mut active, _passive] = connect([&a, &b], Config::default());
    for round in 0..20 {
        poll(&mut [PollFd::new(active.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
            .expect("a valid descriptor");
        if round == 10 {
            a.nics[1].faults().fail(Failure::LinkDown);
        }
        calm_down(&mut active);
    }
}

/// An unconnected vQP does not take the events of its NICs, because other vQPs wait for them.
#[test]
fn events_of_nics_leave_unconnected_vqp_unreadable() {
    let host = Host::open();
    let mut qp = PollableQp::build(VirtualQp::builder(&host.domain)).expect("a free vQP");
    calm_down(&mut qp);
    host.nics[0].faults().fail(Failure::LinkDown);
    poll(&mut [PollFd::new(qp.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).expect("a valid descriptor");
    calm_down(&mut qp);
}

/// Nobody answers for the peer. An owner that compares the time with its clock must find that the
/// time has come.
#[test]
fn next_round_of_failover_is_not_postponed_by_questions_for_its_time() {
    let (a, b) = (Host::open(), Host::open());
    let [mut active, _passive] = connect([&a, &b], quiet());
    calm_down(&mut active);
    a.nics[0].faults().fail(Failure::LinkDown);
    active.poll(&mut Vec::new()).expect("the system has descriptors");
    let due = active.vqp().event_timeout().expect("a failover is in progress");
    while a.domain.nics()[0].provider.now() <= due {}
    assert_eq!(active.vqp().event_timeout(), Some(due));
}

/// The vQP closes while the peer has not confirmed an address. A timer that nothing handles would
/// keep the owner busy.
#[test]
fn closed_vqp_has_no_timer() {
    let (a, b) = (Host::open(), Host::open());
    let [mut active, _passive] = connect([&a, &b], quiet());
    let free = SoftNic::open(mitra_softnic::Config::loopback()).expect("a free address").address();
    a.nics[1].change_address(free).expect("the address is free");
    active.poll(&mut Vec::new()).expect("the system has descriptors");
    assert!(active.vqp().poll_timeout().is_some(), "the peer does not know the address");
    active.vqp_mut().shutdown();
    assert_eq!(active.vqp().poll_timeout(), None);
}

/// A call through the guard may close the vQP. No NIC announces the completions of the close.
#[test]
fn completions_of_local_shutdown_make_descriptor_readable() {
    let (a, b) = (Host::open(), Host::open());
    let [mut active, _passive] = connect([&a, &b], quiet());
    let recv = mitra_verbs::RecvWr::new(3, a.mr.sge(0, 8));
    active.vqp_mut().post_recv(recv).expect("the queue has room");
    active.vqp_mut().shutdown();
    let mut completions = Vec::new();
    while completions.is_empty() {
        poll(&mut [PollFd::new(active.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
            .expect("a valid descriptor");
        active.poll(&mut completions).expect("the NICs are alive");
    }
    assert_eq!((completions.len(), completions[0].wr_id), (1, 3));
}

/// A bind completes when the NICs of both rails have executed it. The test hangs if nothing then
/// wakes the end.
#[test]
fn binds_make_descriptor_readable() {
    let (a, b) = (Host::open(), Host::open());
    let [mut active, _passive] = connect([&a, &b], quiet());
    let rights = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let mr = a.domain.register(&a.memory, rights).expect("a free region").primary();
    let mut completions = Vec::new();
    for window_type in [WindowType::Type1, WindowType::Type2] {
        let mw = a.domain.alloc_mw(window_type).expect("a free window").primary();
        let access = Access::REMOTE_READ;
        let bind = WindowBind {
            mw: mw.id,
            rkey: mw.rkey,
            mr: mr.id,
            addr: mr.addr,
            len: 8,
            access,
            zero_based: false,
        };
        let wr = SendWr::new(1, SendOp::BindWindow(bind), Data::empty());
        active.vqp_mut().post_send(wr).expect("the vQP is open");
        while completions.is_empty() {
            poll(&mut [PollFd::new(active.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
                .expect("a valid descriptor");
            active.poll(&mut completions).expect("the NICs are alive");
        }
        for completion in completions.drain(..) {
            completion.into_result().expect("the window is bound");
        }
    }
}

/// The test waits for both descriptors in one thread without a timeout, so it hangs if an event is
/// missed.
#[test]
fn event_loop_drives_both_ends_through_failovers() {
    for heartbeats in [false, true] {
        let (a, b) = (Host::open(), Host::open());
        let config = if heartbeats { Config::default() } else { quiet() };
        let [mut active, mut passive] = connect([&a, &b], config);
        let (mut posted, mut done, mut completions) = (0, 0, Vec::new());
        while done < 2000 {
            while posted < 2000 && posted - done < 16 {
                active.vqp_mut().post_send(a.add(posted, &b.region())).expect("the vQP is open");
                posted += 1;
                match posted {
                    500 => b.nics[0].faults().fail(Failure::LinkDown),
                    1000 => b.nics[0].faults().heal(),
                    _ => {}
                }
            }
            let mut fds = [&active, &passive].map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
            poll(&mut fds, PollTimeout::NONE).expect("valid descriptors");
            let ready = fds.map(|fd| fd.any() == Some(true));
            if ready[0] {
                active.poll(&mut completions).expect("the NICs are alive");
            }
            if ready[1] {
                passive.poll(&mut completions).expect("the NICs are alive");
            }
            for completion in completions.drain(..) {
                completion.into_result().expect("each addition is executed");
                done += 1;
            }
        }
        assert_eq!(b.memory.load(0), 2000);
        assert!(active.vqp().last_failover().is_some());
    }
}

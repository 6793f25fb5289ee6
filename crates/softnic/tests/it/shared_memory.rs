//! Links through shared memory between the NICs of this host.

use std::env;
use std::io::{ErrorKind, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use mitra_softnic::{Config, Links, SoftNic, random_loopback_address};
use mitra_test_process::{command, run_test_under};
use mitra_transport::fault::Failure;
use mitra_verbs::*;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen,
    recv, sendmsg, socket,
};

use crate::common::{Endpoint, LinkAttr, connect, connected_pair_with, open, poll_until, sleep_until};

fn with(links: Links) -> Config {
    Config { links, ..Config::loopback() }
}

fn pair(a: Links, b: Links) -> (Endpoint, Endpoint) {
    connected_pair_with(with(a), with(b), LinkAttr::default())
}

/// Writes, reads and adds, with payloads of one packet and of many, and checks the memories.
fn exchange(a: &Endpoint, b: &Endpoint) {
    for len in [8, 4096, 300_000] {
        a.fill(0, len, 1);
        b.fill(0, len, 2);
        let remote = RemoteAddr { addr: b.memory.addr() + 400_000, rkey: b.mr.rkey };
        a.post(1, SendOp::Write(remote), 0, len as u32);
        a.wait_success();
        assert_eq!(b.bytes(400_000, len), a.bytes(0, len));
        let remote = RemoteAddr { addr: b.memory.addr(), rkey: b.mr.rkey };
        a.post(2, SendOp::Read(remote), 400_000, len as u32);
        a.wait_success();
        assert_eq!(a.bytes(400_000, len), b.bytes(0, len));
    }
    b.memory.store(0, 40);
    let remote = RemoteAddr { addr: b.memory.addr(), rkey: b.mr.rkey };
    a.post(3, SendOp::FetchAdd { remote, add: 2 }, 8, 8);
    a.wait_success();
    assert_eq!((a.memory.load(8), b.memory.load(0)), (40, 42));
}

/// Exchanges until both ends send through shared memory.
fn exchange_until_linked(a: &Endpoint, b: &Endpoint) {
    poll_until("links", || {
        exchange(a, b);
        a.counter("tx_shared_memory") > 0 && b.counter("tx_shared_memory") > 0
    });
}

fn datagrams_over_udp(end: &Endpoint) -> [u64; 2] {
    ["tx", "rx"]
        .map(|way| end.counter(&format!("{way}_datagrams")) - end.counter(&format!("{way}_shared_memory")))
}

#[test]
fn all_datagrams_take_shared_memory_once_it_is_there() {
    for (a, b) in [(Links::Auto, Links::Auto), (Links::SharedMemory, Links::Auto)] {
        let (a, b) = pair(a, b);
        exchange_until_linked(&a, &b);
        let over_udp = [&a, &b].map(datagrams_over_udp);
        exchange(&a, &b);
        assert_eq!([&a, &b].map(datagrams_over_udp), over_udp);
        // The change from UDP to shared memory lost and reordered nothing.
        assert_eq!(a.counter("retransmitted_packets"), 0);
    }
}

#[test]
fn nic_with_links_only_sends_nothing_over_udp() {
    let (a, b) = pair(Links::SharedMemory, Links::SharedMemory);
    exchange(&a, &b);
    assert_eq!([&a, &b].map(datagrams_over_udp), [[0; 2]; 2]);
    assert_eq!(a.counter("retransmitted_packets"), 0);
}

#[test]
fn one_end_with_udp_only_is_reached_over_udp() {
    for (a, b) in [(Links::Udp, Links::Auto), (Links::Auto, Links::Udp), (Links::Udp, Links::Udp)] {
        let (a, b) = pair(a, b);
        exchange(&a, &b);
        for end in [&a, &b] {
            assert_eq!((end.counter("tx_shared_memory"), end.counter("rx_shared_memory")), (0, 0));
        }
    }
}

#[test]
fn nic_with_links_only_drops_what_has_no_link() {
    let few = LinkAttr { timeout: 10, retry_cnt: 2, ..LinkAttr::default() };
    let (a, b) = connected_pair_with(with(Links::SharedMemory), with(Links::Udp), few);
    let remote = RemoteAddr { addr: b.memory.addr(), rkey: b.mr.rkey };
    a.post(1, SendOp::Write(remote), 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RetryExceeded);
    assert!(a.counter("tx_errors") >= 3);
    assert_eq!((a.counter("tx_datagrams"), b.counter("rx_datagrams")), (0, 0));
}

/// Nobody polls: the progress threads of both ends wake for each request.
#[test]
fn sleeping_nics_are_woken() {
    let (a, b) = pair(Links::SharedMemory, Links::SharedMemory);
    let remote = RemoteAddr { addr: b.memory.addr(), rkey: b.mr.rkey };
    for round in 1..=20u64 {
        a.memory.store(0, round);
        a.post(round, SendOp::Write(remote), 0, 8);
        sleep_until("the value", || b.memory.load(0) == round);
        // The threads sleep without a bound once they were idle for 100 ms.
        if round % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(250));
        }
    }
    assert_eq!(b.counter("rx_shared_memory"), b.counter("rx_datagrams"));
    assert_eq!(a.counter("retransmitted_packets"), 0);
}

fn unix_socket() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// The name of the links of a NIC at an address.
fn name(address: IpAddr) -> UnixAddr {
    let name = [b"mitra-softnic/".as_slice(), &Gid::from(address).0].concat();
    UnixAddr::new_abstract(&name).unwrap()
}

/// Listens under the name of the links of a NIC at an address.
fn take_name(address: IpAddr) -> OwnedFd {
    let listener = unix_socket();
    bind(listener.as_raw_fd(), &name(address)).unwrap();
    listen(&listener, Backlog::new(8).unwrap()).unwrap();
    listener
}

/// Any user may take the name of a NIC's links before the NIC opens. The NIC says so.
#[test]
fn nic_whose_name_is_taken_says_so() {
    let address = random_loopback_address().unwrap();
    let _taken = take_name(address);
    let at = |links| Config { address: Some(address), ..with(links) };
    assert_eq!(open(at(Links::Auto)).link_failure(), Some(ErrorKind::AddrInUse));
    assert_eq!(open(at(Links::Udp)).link_failure(), None);
    let error = SoftNic::open(at(Links::SharedMemory)).expect_err("no link can be made");
    assert!(error.to_string().contains("listening for links through shared memory"), "{error}");
    assert_eq!(open(with(Links::Auto)).link_failure(), None);
}

/// Tells the test program that it runs in a user namespace that maps no user.
const UNMAPPED: &str = "MITRA_TEST_UNMAPPED";

/// In such a namespace, the system shows this user and all others by one number.
#[test]
fn nic_of_an_unmapped_user_refuses_links_after_their_hello() {
    const TEST: &str = "shared_memory::nic_of_an_unmapped_user_refuses_links_after_their_hello";
    if env::var_os(UNMAPPED).is_none() {
        run_test_under(command("unshare").arg("--user").env(UNMAPPED, "yes"), TEST);
        return;
    }
    let (nic, own) = (open(with(Links::Auto)), random_loopback_address().unwrap());
    let listener = take_name(own);
    for round in 0..100 {
        let connection = unix_socket();
        nix::sys::socket::connect(connection.as_raw_fd(), &name(nic.address())).unwrap();
        if round % 10 == 0 {
            // The NIC has accepted the connection by then.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let hello = [b"MSR\x02".as_slice(), &Gid::from(own).0, &[0; 16]].concat();
        let memory = memfd_create("ring", MFdFlags::MFD_CLOEXEC).unwrap();
        let passed = [memory.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&passed)];
        let sent = sendmsg::<()>(
            connection.as_raw_fd(),
            &[IoSlice::new(&hello)],
            &control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        assert_eq!(sent, Ok(hello.len()));
        let end = recv(connection.as_raw_fd(), &mut [0], MsgFlags::empty());
        assert!(matches!(end, Ok(0) | Err(Errno::ECONNRESET)), "{end:?}");
    }
    // The NIC does not ask the process at the stated address for a proof.
    let mut asked = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut asked, PollTimeout::ZERO), Ok(0));
}

/// Somebody listens under the address of the peer and accepts nothing, as a process that is
/// stopped.
#[test]
fn link_that_nobody_accepts_is_not_used() {
    let (a, b) = (Endpoint::new(open(with(Links::Auto))), Endpoint::new(open(with(Links::Udp))));
    let listener = take_name(b.ip());
    connect(&a, &b, LinkAttr { timeout: 12, ..LinkAttr::default() });
    exchange(&a, &b);
    let connection = accept(listener.as_raw_fd()).unwrap();
    exchange(&a, &b);
    nix::unistd::close(connection).unwrap();
    exchange(&a, &b);
    assert_eq!((a.counter("retransmitted_packets"), a.counter("tx_shared_memory")), (0, 0));
    assert_eq!(a.nic.port_refusals(b.gid()), 0);
}

/// A NIC is closed, and another takes its address. The sender notices both.
#[test]
fn link_is_made_anew_for_the_next_nic_at_an_address() {
    let (a, b) = pair(Links::Auto, Links::Auto);
    exchange(&a, &b);
    let address = b.ip();
    drop(b);
    for _ in 0..3 {
        let b = Endpoint::new(open(Config { address: Some(address), ..with(Links::Auto) }));
        let a = Endpoint::new(Arc::clone(&a.nic));
        connect(&a, &b, LinkAttr::default());
        exchange(&a, &b);
        poll_until("a datagram by the new link", || {
            exchange(&a, &b);
            b.counter("rx_shared_memory") > 0
        });
        drop(b);
    }
}

/// The receiver's host is asked as soon as the link closes. Nobody sends anything.
#[test]
fn end_of_a_process_is_noticed_at_once() {
    let (a, b) = pair(Links::Auto, Links::Auto);
    exchange_until_linked(&a, &b);
    let gone = b.gid();
    assert_eq!(a.nic.port_refusals(gone), 0);
    drop(b);
    sleep_until("a refusal", || a.nic.port_refusals(gone) > 0);
}

/// The port of a NIC that was reset stays open and silent.
#[test]
fn reset_is_no_end_of_a_process() {
    let (a, b) = pair(Links::Auto, Links::Auto);
    exchange_until_linked(&a, &b);
    let [over_udp, _] = datagrams_over_udp(&a);
    b.nic.reset().unwrap();
    let remote = RemoteAddr { addr: 0, rkey: b.mr.rkey };
    a.post(1, SendOp::Write(remote), 0, 8);
    sleep_until("retransmissions over UDP", || datagrams_over_udp(&a)[0] >= over_udp + 2);
    assert_eq!(a.nic.port_refusals(b.nic.address().into()), 0);
}

#[test]
fn nic_reaches_itself() {
    let nic = open(with(Links::Auto));
    let (a, b) = (Endpoint::new(Arc::clone(&nic)), Endpoint::new(nic));
    connect(&a, &b, LinkAttr::default());
    exchange_until_linked(&a, &b);
    let over_udp = datagrams_over_udp(&a);
    exchange(&a, &b);
    assert_eq!(datagrams_over_udp(&a), over_udp);
}

#[test]
fn dead_nic_receives_nothing() {
    let few = LinkAttr { timeout: 12, retry_cnt: 2, ..LinkAttr::default() };
    let (a, b) = connected_pair_with(with(Links::Auto), with(Links::Auto), few);
    exchange_until_linked(&a, &b);
    b.memory.store(0, 7);
    b.nic.faults().fail(Failure::NicDead);
    a.memory.store(0, 8);
    let remote = RemoteAddr { addr: b.memory.addr(), rkey: b.mr.rkey };
    a.post(1, SendOp::Write(remote), 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RetryExceeded);
    assert_eq!(b.memory.load(0), 7);
}

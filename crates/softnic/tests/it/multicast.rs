//! Multicast groups over UDP sockets: every attached queue pair receives each message once.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::common::{TIMEOUT, at, loopback, open, poll_until, sleep_until};
use mitra_os_util::interfaces::interfaces;
use mitra_softnic::{Config, Links, OpenError, SoftNic, roce_port_users};
use mitra_transport::fault::{Failure, Noise};
use mitra_verbs::*;
use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::{ROCE_PORT, Verdict, icrc, pcap};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);
const QKEY: u32 = 0x11;
/// The length of a receive buffer, in bytes: the GRH and 256 bytes of payload.
const RECEIVE_LEN: u32 = 40 + 256;

/// Returns a group that no other test uses, in this process or another.
fn unique_group() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    [239, high, low, NEXT.fetch_add(1, Ordering::Relaxed)].into()
}

/// A UD queue pair with posted receives.
struct Member {
    nic: Arc<SoftNic>,
    cq: CqId,
    qp: Qpn,
    pd: PdId,
    memory: Arc<Buffer>,
}

impl Member {
    fn new(nic: &Arc<SoftNic>) -> Member {
        Member::with(nic, None)
    }

    fn with(nic: &Arc<SoftNic>, channel: Option<&Arc<dyn CompletionChannel>>) -> Member {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(64, channel).unwrap();
        let memory = Arc::new(Buffer::new(1 << 16));
        let mr = nic.reg_mr(pd, memory.clone(), Access::LOCAL_WRITE).unwrap();
        let init = QpInitAttr {
            qp_type: QpType::Ud,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap { inline: 256, ..QpCap::default() },
            sq_sig_all: false,
        };
        let qp = nic.create_qp(&init).unwrap();
        let to_init =
            QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
        for attr in [
            to_init,
            QpAttr::to(QpState::Rtr),
            QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) },
        ] {
            nic.modify_qp(qp, &attr).unwrap();
        }
        for i in 0..32 {
            nic.post_recv(qp, &[RecvWr::new(i, mr.sge(i * u64::from(RECEIVE_LEN), RECEIVE_LEN))]).unwrap();
        }
        Member { nic: nic.clone(), cq, qp, pd, memory }
    }

    fn attached(nic: &Arc<SoftNic>, group: IpAddr) -> Member {
        let member = Member::new(nic);
        nic.attach_mcast(member.qp, group.into(), true).unwrap();
        member
    }

    fn send(&self, group: IpAddr, message: &[u8]) {
        let to = UdDestination {
            ah: self.nic.create_ah(self.pd, group.into()).unwrap(),
            qpn: MULTICAST_QPN,
            qkey: QKEY,
        };
        let wr = SendWr::new(99, SendOp::Send, Data::inline(message)).with_flags(SendFlags::empty()).to(to);
        self.nic.post_send(self.qp, &[wr]).unwrap();
    }

    fn next_message(&self) -> Vec<u8> {
        let mut wcs = Vec::new();
        poll_until("a message", || self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 1);
        let wc = wcs[0];
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv), "{wc:?}");
        let mut message = vec![0; wc.byte_len as usize - 40];
        self.memory.read_at(wc.wr_id as usize * RECEIVE_LEN as usize + 40, &mut message);
        message
    }

    fn counter(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|c| c.name == name).unwrap().value
    }

    /// Checks that the NIC has received exactly this number of datagrams, and that no message
    /// waits.
    fn assert_received(&self, datagrams: u64) {
        let mut wcs = Vec::new();
        for _ in 0..100 {
            assert_eq!(self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap(), 0, "{wcs:?}");
        }
        assert_eq!(self.counter("rx_datagrams"), datagrams);
    }
}

fn nic() -> Arc<SoftNic> {
    open(loopback())
}

fn is_bound(group: IpAddr) -> bool {
    roce_port_users().iter().any(|user| user.address == group)
}

#[test]
fn each_member_receives_each_message_once() {
    let group = unique_group();
    let nics = [nic(), nic(), nic(), nic()];
    let a = Member::attached(&nics[0], group);
    let b = Member::attached(&nics[1], group);
    let c = [Member::attached(&nics[2], group), Member::attached(&nics[2], group)];
    let outside = Member::new(&nics[3]);
    for i in 0..8_u8 {
        let sender = if i % 2 == 0 { &a } else { &outside };
        sender.send(group, &[i; 100]);
        for member in [&a, &b, &c[0], &c[1]] {
            assert_eq!(member.next_message(), [i; 100]);
        }
    }
    for member in [&a, &b, &c[0]] {
        member.assert_received(8);
        assert_eq!(member.counter("rx_icrc_bad") + member.counter("rx_icrc_solved"), 0);
    }
    outside.assert_received(0);
    // Datagrams of equal length, which the NIC sends as a GSO run.
    for i in 0..8_u8 {
        a.send(group, &[i; 256]);
    }
    for i in 0..8_u8 {
        assert_eq!([b.next_message(), c[0].next_message(), c[1].next_message()], [[i; 256]; 3]);
    }
}

/// A link has one receiver, so messages to a group go over UDP, even if the NIC drops all other
/// datagrams that would go over UDP.
#[test]
fn nics_with_links_only_hear_their_groups() {
    let group = unique_group();
    let nics = [(); 2].map(|()| open(Config { links: Links::SharedMemory, ..loopback() }));
    let [one, other] = nics.each_ref().map(|nic| Member::attached(nic, group));
    for i in 0..8_u8 {
        one.send(group, &[i; 100]);
        assert_eq!([one.next_message(), other.next_message()], [[i; 100]; 2]);
    }
    assert_eq!((one.counter("tx_shared_memory"), one.counter("tx_errors")), (0, 0));
}

/// Waits until progress threads sleep without a timeout, on the sockets that exist then.
fn wait_for_idle_threads() {
    std::thread::sleep(Duration::from_millis(200));
}

#[test]
fn group_joined_while_progress_thread_sleeps_wakes_it() {
    let group = unique_group();
    let (near, far) = (nic(), nic());
    let channel = far.create_completion_channel().unwrap();
    let member = Member::with(&far, Some(&channel));
    let sender = Member::new(&near);
    wait_for_idle_threads();
    far.attach_mcast(member.qp, group.into(), true).unwrap();
    for i in 0..20_u8 {
        far.req_notify_cq(member.cq, false).unwrap();
        sender.send(group, &[i]);
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::try_from(TIMEOUT).unwrap()), Ok(1), "timed out");
        assert_eq!(channel.next_event().unwrap(), Some(member.cq));
        assert_eq!(member.next_message(), [i]);
    }
}

#[test]
fn last_detach_closes_group_socket() {
    let group = unique_group();
    let nic = nic();
    let (first, second) = (Member::attached(&nic, group), Member::attached(&nic, group));
    assert!(is_bound(group));
    nic.detach_mcast(first.qp, group.into()).unwrap();
    first.send(group, b"still there");
    assert_eq!(second.next_message(), b"still there");
    wait_for_idle_threads();
    nic.detach_mcast(second.qp, group.into()).unwrap();
    assert!(nic.detach_mcast(second.qp, group.into()).is_err());
    sleep_until("the socket to close", || !is_bound(group));
    // The NIC can join the group again.
    nic.attach_mcast(first.qp, group.into(), true).unwrap();
    second.send(group, b"back");
    assert_eq!(first.next_message(), b"back");
}

#[test]
fn reset_and_dropped_nics_leave_their_groups() {
    let group = unique_group();
    let nics = [nic(), nic()];
    let members = nics.each_ref().map(|nic| Member::attached(nic, group));
    nics[0].reset().unwrap();
    assert_eq!(nics[0].attach_mcast(members[0].qp, group.into(), true), Err(Error::DeviceFatal));
    members[1].send(group, b"alone");
    assert_eq!(members[1].next_message(), b"alone");
    members[1].nic.faults().fail(Failure::NicDead);
    assert_eq!(nics[1].detach_mcast(members[1].qp, group.into()), Err(Error::DeviceFatal));
    drop((nics, members));
    assert!(!is_bound(group));
}

#[test]
fn failed_join_leaves_queue_pair_detached() {
    let nic = nic();
    let member = Member::new(&nic);
    let group = unique_group();
    // A socket without SO_REUSEADDR has the port of the group.
    let taken = UdpSocket::bind((group, ROCE_PORT)).unwrap();
    let refused = nic.attach_mcast(member.qp, group.into(), true).unwrap_err();
    assert!(matches!(refused, Error::System { operation: "joining a multicast group", .. }), "{refused}");
    drop(taken);
    assert!(matches!(nic.detach_mcast(member.qp, group.into()), Err(Error::Invalid(_))));
    nic.attach_mcast(member.qp, group.into(), true).unwrap();
    for other in ["127.0.0.1", "ff0e::1"] {
        let other = other.parse::<IpAddr>().unwrap();
        assert!(matches!(nic.attach_mcast(member.qp, other.into(), true), Err(Error::Invalid(_))));
    }
}

#[test]
fn damaged_and_noisy_multicast_packets_are_handled_like_unicast() {
    let group = unique_group();
    let (near, far) = (nic(), nic());
    let member = Member::attached(&far, group);
    let sender_socket = UdpSocket::bind("127.200.7.1:0").unwrap();
    let to = SocketAddr::new(group, ROCE_PORT);
    sender_socket.send_to(b"short", to).unwrap();
    sender_socket.send_to(&[0x64; 60], to).unwrap();
    sleep_until("both datagrams", || member.counter("rx_datagrams") == 2);
    assert_eq!((member.counter("rx_malformed"), member.counter("rx_icrc_bad")), (1, 1));
    // A duplicated or delayed packet keeps its group.
    let sender = Member::new(&near);
    let noise = Noise { max_delay: Duration::from_micros(300), ..Noise::default() };
    far.faults().set_noise(Noise::default(), Noise { duplicate_ppm: 1_000_000, ..noise });
    sender.send(group, b"twice");
    assert_eq!([member.next_message(), member.next_message()], [b"twice"; 2]);
    far.faults().set_noise(Noise::default(), Noise { reorder_ppm: 1_000_000, ..noise });
    sender.send(group, b"late");
    assert_eq!(member.next_message(), b"late");
    assert_eq!((member.counter("fault_duplicated"), member.counter("fault_delayed")), (1, 1));
}

/// A NIC that joins on the loopback interface receives nothing from other interfaces, even if
/// another socket of this machine joins the same group there.
#[test]
fn datagrams_of_other_interfaces_are_not_received() {
    let group = unique_group();
    let nic = nic();
    let member = Member::attached(&nic, group);
    for interface in interfaces().unwrap() {
        let (IpAddr::V4(own), IpAddr::V4(to)) = (interface.address, group) else { continue };
        if !interface.up || interface.loopback {
            continue;
        }
        let other_socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        other_socket.set_reuse_address(true).unwrap();
        other_socket.bind(&SocketAddr::new(group, ROCE_PORT).into()).unwrap();
        other_socket.join_multicast_v4(&to, &own).unwrap();
        other_socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let sender_socket = UdpSocket::bind((own, 0)).unwrap();
        sender_socket.set_multicast_ttl_v4(0).unwrap(); // keeps the datagram on this machine
        sender_socket.send_to(b"from elsewhere", (to, ROCE_PORT)).unwrap();
        let other_socket = UdpSocket::from(other_socket);
        assert_eq!(other_socket.recv(&mut [0; 64]).unwrap(), 14);
    }
    member.assert_received(0);
}

#[test]
fn capture_holds_multicast_packets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rail.pcap");
    let group = unique_group();
    let nic = open(Config { capture: Some(path.clone()), ..loopback() });
    let member = Member::attached(&nic, group);
    member.send(group, b"seen twice");
    assert_eq!(member.next_message(), b"seen twice");
    drop((member, nic));
    let file = std::fs::read(&path).unwrap();
    let frames: Vec<_> = pcap::records(&file).map(|record| record.unwrap()).collect();
    assert_eq!(frames.len(), 2, "the sent and the received packet");
    for record in frames {
        let frame = Frame::parse(LinkType::Ethernet, record.bytes).unwrap();
        assert_eq!(frame.dst, SocketAddr::new(group, ROCE_PORT));
        assert!(matches!(icrc::verify_frame(&frame), Verdict::Good { .. }), "{frame:?}");
    }
}

/// Opens a NIC at an address, and waits while another NIC has the address.
fn open_when_free(address: IpAddr) -> Arc<SoftNic> {
    let mut nic = None;
    poll_until("the address", || match SoftNic::open(at(address)) {
        Err(OpenError::PortTaken { .. }) => false,
        opened => {
            nic = Some(opened.unwrap_or_else(|e| panic!("{e}")));
            true
        }
    });
    nic.unwrap()
}

/// Linux does not route IPv6 multicast over the loopback interface, so on that interface the NIC
/// only joins.
#[test]
fn ipv6_groups_work() {
    let group = "ff11::4d:1".parse().unwrap(); // interface-local scope: never leaves the machine
    for interface in interfaces().unwrap() {
        if !interface.up || !interface.address.is_ipv6() || interface.usable.is_err() {
            continue;
        }
        let nic = open_when_free(interface.address);
        let members = [Member::attached(&nic, group), Member::attached(&nic, group)];
        assert!(is_bound(group));
        if !interface.loopback {
            members[0].send(group, b"hello");
            assert_eq!([members[0].next_message(), members[1].next_message()], [b"hello"; 2]);
            members[0].assert_received(1);
            assert_eq!(members[0].counter("rx_icrc_bad"), 0);
        }
        let v4 = nic.attach_mcast(members[0].qp, IpAddr::from([239, 0, 0, 1]).into(), true);
        assert!(matches!(v4, Err(Error::Invalid(_))));
    }
}

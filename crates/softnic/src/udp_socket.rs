//! The UDP socket on the RoCE port: socket options, and receive and send calls.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use mitra_os_util::close_on_fork::CloseOnFork;
use mitra_os_util::interfaces::{check_usable, interface_index};
use mitra_wire::ROCE_PORT;
use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::sys::socket::{
    self as sys, ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, SockaddrIn6,
    SockaddrStorage, sockopt,
};
use socket2::{Domain, Protocol, Type};

use crate::error::{OpenError, WithOperation, not_local};
use crate::gro_policy::GroPolicy;
use crate::roce_port_users::describe_process_using;

/// The largest payload of a UDP datagram, or of a GSO run, in bytes.
pub(crate) const MAX_UDP_PAYLOAD: usize = 65_507;
/// The largest number of segments in a GSO run (`UDP_MAX_SEGMENTS`, which is 64 before Linux 6.9).
pub(crate) const MAX_GSO_SEGMENTS: usize = 64;
pub(crate) const MAX_SENDMMSG: usize = 32;
/// The requested size of the send buffer and of the receive buffer, in bytes. The kernel grants at
/// most `net.core.wmem_max` and `net.core.rmem_max`.
const SOCKET_BUFFER_SIZE: usize = 8 << 20;
/// The length of an ACK, in bytes: BTH, AETH and ICRC.
pub(crate) const ACK_LEN: usize = 20;
/// The space for two control messages with an integer (`cmsg(3)`), in bytes, rounded up.
const CMSG_SPACE: usize = 64;
/// The space for the control messages of a socket error: `struct sock_extended_err`, an address,
/// and the traffic class, in bytes, rounded up.
const ERROR_CMSG_SPACE: usize = 256;
/// The ICMP type and code of "port unreachable", over IPv4 (RFC 792) and IPv6 (RFC 4443).
const PORT_UNREACHABLE_V4: (u8, u8) = (3, 3);
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);
/// The number of loopback addresses to try, of 16 million.
const MAX_LOOPBACK_ATTEMPTS: usize = 64;

/// Socket options that nix does not define.
mod options {
    use super::*;

    /// Path MTU discovery over IPv4, and with it the "don't fragment" flag.
    #[derive(Clone, Copy)]
    pub(super) struct MtuDiscover;
    nix::setsockopt_impl!(
        MtuDiscover,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        c_int,
        sockopt::SetStruct<c_int>
    );

    /// Whether an IPv4 socket receives datagrams of all groups that any socket of this machine has
    /// joined.
    #[derive(Clone, Copy)]
    pub(super) struct MulticastAll;
    nix::setsockopt_impl!(
        MulticastAll,
        libc::IPPROTO_IP,
        libc::IP_MULTICAST_ALL,
        c_int,
        sockopt::SetStruct<c_int>
    );

    /// [`MulticastAll`] over IPv6.
    #[derive(Clone, Copy)]
    pub(super) struct Ipv6MulticastAll;
    nix::setsockopt_impl!(
        Ipv6MulticastAll,
        libc::IPPROTO_IPV6,
        libc::IPV6_MULTICAST_ALL,
        c_int,
        sockopt::SetStruct<c_int>
    );

    /// [`MtuDiscover`] over IPv6.
    #[derive(Clone, Copy)]
    pub(super) struct Ipv6MtuDiscover;
    nix::setsockopt_impl!(
        Ipv6MtuDiscover,
        libc::IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        c_int,
        sockopt::SetStruct<c_int>
    );
}

/// An unconnected, non-blocking UDP socket on the RoCE port.
pub(crate) struct RoceSocket {
    /// Before the socket, so that the registration ends first. `None` for a descriptor
    /// of a great number: a child of `fork` then keeps the port open.
    _close_on_fork: Option<CloseOnFork>,
    inner: socket2::Socket,
    address: SocketAddr,
    /// The granted `SO_RCVBUF`, in bytes.
    receive_buffer_size: usize,
    /// The traffic class of the datagrams that the socket sends.
    traffic_class: AtomicU8,
    receives_traffic_class: AtomicBool,
}

/// What a carrier has put into the buffer: a datagram, or a run of them.
pub(crate) struct Received {
    pub(crate) carrier: Carrier,
    pub(crate) from: SocketAddr,
    pub(crate) len: usize,
    /// The length of each datagram except the last, which may be shorter. `None` if the call
    /// returned one datagram.
    pub(crate) segment_len: Option<usize>,
    /// The traffic class, or 0 before [`RoceSocket::receive_traffic_classes`].
    pub(crate) traffic_class: u8,
}

/// What carries datagrams between two NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    Udp,
    /// A ring in shared memory. The ICRC of the datagram is left out, unless it is sealed.
    Ring {
        is_sealed: bool,
    },
}

/// A buffer for control messages, aligned as `struct cmsghdr` requires.
#[repr(align(8))]
struct CmsgBuffer<const LEN: usize>([u8; LEN]);

/// An entry of a socket's error queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketError {
    /// The host of a peer has refused a datagram, because no process there has the RoCE port open.
    PortRefused(IpAddr),
    /// Another ICMP message, or a refusal in the name of another host.
    OtherIcmp,
    /// An error of a send call, which the call has returned.
    Local,
}

impl RoceSocket {
    /// Binds a socket to the RoCE port of an address. `None` selects a free loopback address.
    pub(crate) fn open(address: Option<IpAddr>) -> Result<RoceSocket, OpenError> {
        let inner = match address {
            Some(address) => bind(address)?,
            None => bind_free_loopback()?,
        };
        let address = inner.local_addr().with_operation("reading the address of the socket")?;
        let address = address.as_socket().expect("the local address of an IP socket is an IP address");
        inner.set_nonblocking(true).with_operation("setting the socket non-blocking")?;
        // IBTA annex A17.3.2 forbids fragments. With the "don't fragment" flag, the kernel also
        // sends IPv4 identification 0, and the sender must know the identification to compute the
        // ICRC.
        if address.is_ipv6() {
            // Over IPv4 the bound address selects the interface.
            let interface =
                interface_index(address.ip()).with_operation("reading the index of the interface")?;
            inner.set_multicast_if_v6(interface).with_operation("setting the interface for multicast")?;
            sys::setsockopt(&inner, options::Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)
                .and_then(|()| sys::setsockopt(&inner, sockopt::Ipv6RecvErr, &true))
        } else {
            sys::setsockopt(&inner, options::MtuDiscover, &libc::IP_PMTUDISC_DO)
                .and_then(|()| sys::setsockopt(&inner, sockopt::Ipv4RecvErr, &true))
        }
        .with_operation("setting the don't-fragment flag and the error queue")?;
        inner
            .set_recv_buffer_size(SOCKET_BUFFER_SIZE)
            .with_operation("setting the size of the receive buffer")?;
        inner
            .set_send_buffer_size(SOCKET_BUFFER_SIZE)
            .with_operation("setting the size of the send buffer")?;
        let receive_buffer_size =
            inner.recv_buffer_size().with_operation("reading the size of the receive buffer")?;
        Ok(RoceSocket::new(inner, address, receive_buffer_size))
    }

    fn new(inner: socket2::Socket, address: SocketAddr, receive_buffer_size: usize) -> RoceSocket {
        let (traffic_class, receives_traffic_class) = (AtomicU8::new(0), AtomicBool::new(false));
        let _close_on_fork = CloseOnFork::new(inner.as_raw_fd());
        RoceSocket {
            _close_on_fork,
            inner,
            address,
            receive_buffer_size,
            traffic_class,
            receives_traffic_class,
        }
    }

    /// Creates a receive-only socket that joins a multicast group on the interface of a local
    /// address.
    ///
    /// A socket that is bound to a unicast address receives no multicast datagrams, so each group
    /// needs a socket that is bound to the group's address. All NICs of this machine bind such
    /// sockets to the same address and port (`SO_REUSEADDR`), and each receives a copy.
    pub(crate) fn join(group: IpAddr, local: IpAddr) -> io::Result<RoceSocket> {
        let interface = interface_index(local)?;
        let address = match group {
            IpAddr::V4(_) => SocketAddr::new(group, ROCE_PORT),
            IpAddr::V6(group) => SocketAddrV6::new(group, ROCE_PORT, 0, interface).into(),
        };
        let inner = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        inner.set_nonblocking(true)?;
        inner.set_recv_buffer_size(SOCKET_BUFFER_SIZE)?;
        inner.set_reuse_address(true)?;
        // Without `IP_MULTICAST_ALL` = 0 the socket would also receive datagrams that arrive on
        // other interfaces if any socket has joined the group there.
        match (group, local) {
            (IpAddr::V4(group), IpAddr::V4(local)) => {
                sys::setsockopt(&inner, options::MulticastAll, &0)?;
                inner.bind(&address.into())?;
                inner.join_multicast_v4(&group, &local)?;
            }
            (IpAddr::V6(group), IpAddr::V6(_)) => {
                sys::setsockopt(&inner, options::Ipv6MulticastAll, &0)?;
                inner.bind(&address.into())?;
                inner.join_multicast_v6(&group, interface)?;
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        let receive_buffer_size = inner.recv_buffer_size()?;
        let socket = RoceSocket::new(inner, address, receive_buffer_size);
        socket.receive_traffic_classes();
        Ok(socket)
    }

    /// Makes the kernel drop arriving datagrams, except for the few that fit into the smallest
    /// receive buffer.
    pub(crate) fn stop_receiving(&self) {
        let _ = self.inner.set_recv_buffer_size(1);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the traffic class of the datagrams that the socket sends from now on. The caller holds
    /// the NIC's lock.
    pub(crate) fn set_traffic_class(&self, class: u8) {
        if self.traffic_class.load(Ordering::Relaxed) == class {
            return;
        }
        let value = i32::from(class);
        let set = match self.address {
            SocketAddr::V4(_) => sys::setsockopt(&self.inner, sockopt::Ipv4Tos, &value),
            SocketAddr::V6(_) => sys::setsockopt(&self.inner, sockopt::Ipv6TClass, &value),
        };
        // If the kernel refuses, the datagrams are sent with the class that was set before.
        if set.is_ok() {
            self.traffic_class.store(class, Ordering::Relaxed);
        }
    }

    /// Makes receive calls return the traffic class, or 0 if the kernel refuses the option.
    pub(crate) fn receive_traffic_classes(&self) {
        let set = match self.address {
            SocketAddr::V4(_) => sys::setsockopt(&self.inner, sockopt::IpRecvTos, &true),
            SocketAddr::V6(_) => sys::setsockopt(&self.inner, sockopt::Ipv6RecvTClass, &true),
        };
        self.receives_traffic_class.store(set.is_ok(), Ordering::Relaxed);
    }

    pub(crate) fn receives_traffic_classes(&self) -> bool {
        self.receives_traffic_class.load(Ordering::Relaxed)
    }

    pub(crate) fn receive_buffer_size(&self) -> usize {
        self.receive_buffer_size
    }

    /// Receives a datagram, or with [`GroPolicy::On`] a run of datagrams of one sender.
    ///
    /// # Errors
    /// `EAGAIN` if the socket is empty; other errors of `recvmsg(2)`.
    pub(crate) fn receive(&self, buffer: &mut [u8], gro: &mut GroPolicy) -> Result<Received, Errno> {
        let fd = self.inner.as_raw_fd();
        let with_class = self.receives_traffic_class.load(Ordering::Relaxed);
        if !matches!(gro, GroPolicy::On) && !with_class {
            let (len, from) =
                sys::recvfrom::<SockaddrStorage>(fd, buffer).inspect_err(|_| gro.record_empty())?;
            self.record(gro, len, from.as_ref());
            let from = from.as_ref().and_then(socket_addr).ok_or(Errno::EAFNOSUPPORT)?;
            return Ok(Received { carrier: Carrier::Udp, from, len, segment_len: None, traffic_class: 0 });
        }
        let mut control = CmsgBuffer([0; CMSG_SPACE]);
        let mut iov = [IoSliceMut::new(buffer)];
        let message =
            sys::recvmsg::<SockaddrStorage>(fd, &mut iov, Some(&mut control.0), MsgFlags::MSG_DONTWAIT)
                .inspect_err(|_| gro.record_empty())?;
        let (len, from) = (message.bytes, message.address);
        let (mut segment_len, mut traffic_class) = (None, 0);
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::UdpGroSegments(size) => {
                    segment_len = usize::try_from(size).ok().filter(|&s| s > 0);
                }
                ControlMessageOwned::Ipv4Tos(class) => traffic_class = class,
                ControlMessageOwned::Ipv6TClass(class) => traffic_class = class as u8,
                _ => {}
            }
        }
        self.record(gro, len, from.as_ref());
        let from = from.as_ref().and_then(socket_addr).ok_or(Errno::EAFNOSUPPORT)?;
        Ok(Received { carrier: Carrier::Udp, from, len, segment_len, traffic_class })
    }

    /// Removes the oldest entry of the error queue. After an ICMP message, the next receive or send
    /// call fails once and transfers nothing. While no call fails, the queue therefore need not be
    /// read (`ip(7)`, `IP_RECVERR`).
    pub(crate) fn take_error(&self) -> Option<SocketError> {
        let mut control = CmsgBuffer([0; ERROR_CMSG_SPACE]);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let fd = self.inner.as_raw_fd();
        let message = sys::recvmsg::<SockaddrStorage>(fd, &mut [], Some(&mut control.0), flags).ok()?;
        // The destination of the datagram that the message is about.
        let destination = message.address.as_ref().and_then(socket_addr);
        let mut found = SocketError::Local;
        for control in message.cmsgs().ok()? {
            let (error, port_unreachable, sender) = match control {
                ControlMessageOwned::Ipv4RecvErr(error, sender)
                    if error.ee_origin == libc::SO_EE_ORIGIN_ICMP =>
                {
                    (error, PORT_UNREACHABLE_V4, sender.map(|s| SockaddrIn::from(s).ip().into()))
                }
                ControlMessageOwned::Ipv6RecvErr(error, sender)
                    if error.ee_origin == libc::SO_EE_ORIGIN_ICMP6 =>
                {
                    (error, PORT_UNREACHABLE_V6, sender.map(|s| SockaddrIn6::from(s).ip().into()))
                }
                _ => continue,
            };
            found = match destination {
                // The report of a router on the way says nothing about the process.
                Some(to)
                    if (error.ee_type, error.ee_code) == port_unreachable
                        && to.port() == ROCE_PORT
                        && sender == Some(to.ip()) =>
                {
                    SocketError::PortRefused(to.ip())
                }
                _ => SocketError::OtherIcmp,
            };
        }
        Some(found)
    }

    /// Records a datagram that was received without GRO, and enables GRO if the policy asks for it.
    fn record(&self, gro: &mut GroPolicy, len: usize, from: Option<&SockaddrStorage>) {
        if !matches!(gro, GroPolicy::On) && gro.record_datagram(len, from.copied()) {
            self.enable_gro(gro);
        }
    }

    /// Enables GRO if the policy still observes the senders.
    pub(crate) fn enable_gro(&self, gro: &mut GroPolicy) {
        if gro.is_observing() {
            // The call fails before Linux 5.0, where the kernel delivers each datagram separately.
            let result = sys::setsockopt(&self.inner, sockopt::UdpGroSegment, &true);
            *gro = if result.is_ok() { GroPolicy::On } else { GroPolicy::Off };
        }
    }

    pub(crate) fn send(&self, datagram: &[u8], to: &SockaddrStorage) -> Result<(), Errno> {
        sys::sendto(self.inner.as_raw_fd(), datagram, to, MsgFlags::MSG_DONTWAIT).map(drop)
    }

    /// Sends a run of datagrams with segmentation offload. Each has `segment_len` bytes; the last
    /// may be shorter.
    pub(crate) fn send_gso(&self, run: &[u8], segment_len: u16, to: &SockaddrStorage) -> Result<(), Errno> {
        let control = [ControlMessage::UdpGsoSegments(&segment_len)];
        let iov = [IoSlice::new(run)];
        sys::sendmsg(self.inner.as_raw_fd(), &iov, &control, MsgFlags::MSG_DONTWAIT, Some(to)).map(drop)
    }

    /// Sends datagrams of any lengths with `sendmmsg(2)`. Returns how many the kernel has taken.
    pub(crate) fn send_mmsg<'a>(
        &self,
        datagrams: impl Iterator<Item = &'a [u8]>,
        to: &SockaddrStorage,
    ) -> Result<usize, Errno> {
        let iovs: Vec<[IoSlice<'_>; 1]> = datagrams.map(|d| [IoSlice::new(d)]).collect();
        let mut headers = MultiHeaders::preallocate(iovs.len(), None);
        let to = vec![Some(*to); iovs.len()];
        const NO_CONTROL: [ControlMessage<'_>; 0] = [];
        let fd = self.inner.as_raw_fd();
        Ok(sys::sendmmsg(fd, &mut headers, &iovs, to, NO_CONTROL, MsgFlags::MSG_DONTWAIT)?.count())
    }
}

impl AsFd for RoceSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

fn bind(address: IpAddr) -> Result<socket2::Socket, OpenError> {
    check_usable(address).map_err(|reason| OpenError::UnusableAddress { address, reason })?;
    let to = SocketAddr::new(address, ROCE_PORT);
    let socket = socket2::Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))
        .with_operation("creating a UDP socket")?;
    match socket.bind(&to.into()) {
        Ok(()) => Ok(socket),
        Err(e) => Err(match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EADDRNOTAVAIL) => not_local(address),
            Some(Errno::EADDRINUSE) => {
                OpenError::PortTaken { address, owner: describe_process_using(address) }
            }
            _ => OpenError::System { operation: "binding the UDP socket", source: e },
        }),
    }
}

/// Returns a random address of the loopback interface for a NIC. Another NIC may have it.
///
/// # Errors
/// `System` if the system's random source cannot be read.
pub fn random_loopback_address() -> Result<IpAddr, OpenError> {
    let mut seed = [0; 3];
    getrandom::fill(&mut seed).with_operation("reading the system's random source")?;
    // 127.0.0.0/16 is reserved for addresses that users choose. The last byte is never 0 or 255,
    // because such an address looks like a network or broadcast address.
    Ok(IpAddr::from([127, seed[0].max(1), seed[1], seed[2] % 254 + 1]))
}

fn bind_free_loopback() -> Result<socket2::Socket, OpenError> {
    let mut last = IpAddr::from([127, 0, 0, 1]);
    for _ in 0..MAX_LOOPBACK_ATTEMPTS {
        last = random_loopback_address()?;
        match bind(last) {
            Err(OpenError::PortTaken { .. }) => {}
            other => return other,
        }
    }
    Err(OpenError::NoFreeLoopback { owner: describe_process_using(last) })
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddr::V4((*v4).into())),
        (_, Some(v6)) => Some(SocketAddr::V6((*v6).into())),
        _ => None,
    }
}

//! The UDP socket: its options, one receive, one send. Knows nothing of RoCE but the port.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use mitra_wire::ROCE_PORT;
use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::sys::socket::{
    self as sys, ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, sockopt,
};
use socket2::{Domain, Protocol, Type};

use crate::error::{OpenError, Tried};
use crate::{Offload, host};

/// The largest payload that a UDP datagram, or a run of segments handed to the kernel in one piece, can have.
pub(crate) const MAX_DATAGRAM: usize = 65_507;
/// Segments that one send may have (UDP_MAX_SEGMENTS, 64 before Linux 6.9).
pub(crate) const MAX_SEGMENTS: usize = 64;
/// Datagrams that one `sendmmsg` takes here.
pub(crate) const MAX_MANY: usize = 32;
/// Asked of the kernel for each buffer; it grants up to `net.core.rmem_max` and `wmem_max`.
const BUFFER: usize = 8 << 20;
/// A datagram of bulk data.
const LONG: usize = 1000;
/// An acknowledgement: BTH, AETH and ICRC.
pub(crate) const ACK_LEN: usize = 20;
/// How much it takes to believe that runs will go on coming, counted as [`Merging::wanted`] says. More than a requester sends
/// pairs for until it has learnt whether it may hold its acknowledgements back.
const ENOUGH: u32 = 512;
/// What a long datagram counts for.
const BULK: u32 = 64;
/// Bytes of a control message with one integer, and more.
const CONTROL: usize = 32;
/// Free loopback addresses that are tried, of sixteen million.
const ATTEMPTS: usize = 64;

/// Socket options that nix has no name for.
mod options {
    use super::*;

    /// What to do with datagrams above the path MTU, over IPv4.
    #[derive(Clone, Copy)]
    pub(super) struct MtuDiscover;
    nix::setsockopt_impl!(
        MtuDiscover,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        c_int,
        sockopt::SetStruct<c_int>
    );

    /// Whether a socket gets what any other socket of the machine has joined.
    #[derive(Clone, Copy)]
    pub(super) struct MulticastAll;
    nix::setsockopt_impl!(
        MulticastAll,
        libc::IPPROTO_IP,
        libc::IP_MULTICAST_ALL,
        c_int,
        sockopt::SetStruct<c_int>
    );

    /// The same over IPv6.
    #[derive(Clone, Copy)]
    pub(super) struct Ipv6MulticastAll;
    nix::setsockopt_impl!(
        Ipv6MulticastAll,
        libc::IPPROTO_IPV6,
        libc::IPV6_MULTICAST_ALL,
        c_int,
        sockopt::SetStruct<c_int>
    );

    /// The same as [`MtuDiscover`] over IPv6.
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
pub(crate) struct Socket {
    inner: socket2::Socket,
    address: SocketAddr,
    /// Bytes that the kernel queues for it, counted with their overhead.
    receive_buffer: usize,
}

/// Whether the kernel hands over received runs of segments in one piece. Being told where they end makes each receive
/// dearer by 0.15 µs, but one receive of two datagrams is 0.7 µs cheaper than two. So it is asked to only when bulk data or
/// pairs come (a request and the acknowledgement of another); until then it takes runs apart.
pub(crate) enum Merging {
    Never,
    Later {
        /// What it still takes.
        left: u32,
        /// Who sent the last datagram, if none was looked for in vain since.
        last: Option<SockaddrStorage>,
    },
    Now,
}

/// One receive.
pub(crate) struct Received {
    pub(crate) from: SocketAddr,
    pub(crate) len: usize,
    /// The datagrams' length if there are several, of which the last may be shorter.
    pub(crate) segment: Option<usize>,
}

impl Merging {
    pub(crate) fn new(offload: Offload) -> Merging {
        if offload == Offload::Auto { Merging::Later { left: ENOUGH, last: None } } else { Merging::Never }
    }

    /// Nothing came.
    fn pause(&mut self) {
        if let Merging::Later { last, .. } = self {
            *last = None;
        }
    }

    /// Whether a datagram of this length is the last that it takes. Each of bulk data brings that nearer, and so does an
    /// acknowledgement right behind another datagram of its sender; any other puts it off.
    fn wanted(&mut self, len: usize, from: Option<SockaddrStorage>) -> bool {
        let Merging::Later { left, last } = self else { return false };
        let follows = std::mem::replace(last, from) == from;
        *left = match len {
            LONG.. => left.saturating_sub(BULK),
            ACK_LEN if follows => left.saturating_sub(2),
            _ => (*left + 1).min(ENOUGH),
        };
        *left == 0
    }
}

/// Room for a control message, aligned as the kernel's structures are.
#[repr(align(8))]
struct Control([u8; CONTROL]);

impl Socket {
    /// Binds to the RoCE port of the address, or of a free loopback address.
    pub(crate) fn open(address: Option<IpAddr>) -> Result<Socket, OpenError> {
        let inner = match address {
            Some(address) => bind(address)?,
            None => bind_free()?,
        };
        let address = inner.local_addr().tried("asking the socket for its address")?;
        let address = address.as_socket().expect("an IP socket has an IP address");
        inner.set_nonblocking(true).tried("making the socket non-blocking")?;
        // RoCEv2 forbids fragments (annex A17.3.2). This also makes the kernel send identification 0, which the ICRC needs.
        if address.is_ipv6() {
            // Over IPv4 the own address says which interface is meant.
            let interface = host::interface_index(address.ip()).tried("asking for the interface's index")?;
            inner.set_multicast_if_v6(interface).tried("choosing the interface of multicast groups")?;
            sys::setsockopt(&inner, options::Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)
        } else {
            sys::setsockopt(&inner, options::MtuDiscover, &libc::IP_PMTUDISC_DO)
        }
        .tried("forbidding fragments")?;
        inner.set_recv_buffer_size(BUFFER).tried("setting the receive buffer's size")?;
        inner.set_send_buffer_size(BUFFER).tried("setting the send buffer's size")?;
        let receive_buffer = inner.recv_buffer_size().tried("asking for the receive buffer's size")?;
        Ok(Socket { inner, address, receive_buffer })
    }

    /// Joins a multicast group on the interface of one of this machine's addresses. This socket only receives.
    ///
    /// One that is bound to the address itself gets no datagrams of a group; one that is bound to the group does, as does
    /// each other NIC's of this machine.
    pub(crate) fn join(group: IpAddr, own: IpAddr) -> io::Result<Socket> {
        let interface = host::interface_index(own)?;
        let address = match group {
            IpAddr::V4(_) => SocketAddr::new(group, ROCE_PORT),
            IpAddr::V6(group) => SocketAddrV6::new(group, ROCE_PORT, 0, interface).into(),
        };
        let inner = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        inner.set_nonblocking(true)?;
        inner.set_recv_buffer_size(BUFFER)?;
        inner.set_reuse_address(true)?;
        // What comes over other interfaces is not for this NIC, whoever has joined there.
        match (group, own) {
            (IpAddr::V4(group), IpAddr::V4(own)) => {
                sys::setsockopt(&inner, options::MulticastAll, &0)?;
                inner.bind(&address.into())?;
                inner.join_multicast_v4(&group, &own)?;
            }
            (IpAddr::V6(group), IpAddr::V6(_)) => {
                sys::setsockopt(&inner, options::Ipv6MulticastAll, &0)?;
                inner.bind(&address.into())?;
                inner.join_multicast_v6(&group, interface)?;
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        let receive_buffer = inner.recv_buffer_size()?;
        Ok(Socket { inner, address, receive_buffer })
    }

    /// Its address and port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that the kernel queues for it, counted with their overhead.
    pub(crate) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// The next datagram, or run of datagrams of one sender, if one waits.
    pub(crate) fn receive(&self, buffer: &mut [u8], merging: &mut Merging) -> Result<Received, Errno> {
        let fd = self.inner.as_raw_fd();
        let Merging::Now = merging else {
            let (len, from) =
                sys::recvfrom::<SockaddrStorage>(fd, buffer).inspect_err(|_| merging.pause())?;
            if merging.wanted(len, from) {
                // Kernels before 5.0 do not know it: they go on taking runs apart.
                let done = sys::setsockopt(&self.inner, sockopt::UdpGroSegment, &true);
                *merging = if done.is_ok() { Merging::Now } else { Merging::Never };
            }
            let from = from.as_ref().and_then(socket_addr).ok_or(Errno::EAFNOSUPPORT)?;
            return Ok(Received { from, len, segment: None });
        };
        let mut control = Control([0; CONTROL]);
        let mut iov = [IoSliceMut::new(buffer)];
        let message =
            sys::recvmsg::<SockaddrStorage>(fd, &mut iov, Some(&mut control.0), MsgFlags::MSG_DONTWAIT)?;
        let from = message.address.as_ref().and_then(socket_addr).ok_or(Errno::EAFNOSUPPORT)?;
        let segment = match message.cmsgs()?.next() {
            Some(ControlMessageOwned::UdpGroSegments(size)) => usize::try_from(size).ok().filter(|&s| s > 0),
            _ => None,
        };
        Ok(Received { from, len: message.bytes, segment })
    }

    /// Sends one datagram.
    pub(crate) fn send(&self, datagram: &[u8], to: &SockaddrStorage) -> Result<(), Errno> {
        sys::sendto(self.inner.as_raw_fd(), datagram, to, MsgFlags::MSG_DONTWAIT).map(drop)
    }

    /// Sends datagrams of `segment` bytes, the last perhaps shorter, in one piece.
    pub(crate) fn send_run(&self, run: &[u8], segment: u16, to: &SockaddrStorage) -> Result<(), Errno> {
        let control = [ControlMessage::UdpGsoSegments(&segment)];
        let iov = [IoSlice::new(run)];
        sys::sendmsg(self.inner.as_raw_fd(), &iov, &control, MsgFlags::MSG_DONTWAIT, Some(to)).map(drop)
    }

    /// Sends datagrams of any lengths and says how many went.
    pub(crate) fn send_many<'a>(
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

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

fn bind(address: IpAddr) -> Result<socket2::Socket, OpenError> {
    host::usable(address).map_err(|why| OpenError::UnusableAddress { address, why })?;
    let to = SocketAddr::new(address, ROCE_PORT);
    let socket = socket2::Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))
        .tried("making a UDP socket")?;
    match socket.bind(&to.into()) {
        Ok(()) => Ok(socket),
        Err(e) => Err(match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EADDRNOTAVAIL) => {
                OpenError::AddressNotLocal { address, local: host::local_addresses() }
            }
            Some(Errno::EADDRINUSE) => OpenError::PortTaken { address, holder: host::port_holder(address) },
            _ => OpenError::System { what: "binding the UDP socket", source: e },
        }),
    }
}

fn bind_free() -> Result<socket2::Socket, OpenError> {
    let mut seed = [0; 3];
    getrandom::fill(&mut seed).tried("reading the system's random source")?;
    let mut last = IpAddr::from([127, 0, 0, 1]);
    for attempt in 0..ATTEMPTS {
        // Below 127.1 people choose by hand; the last byte avoids what looks like a network or broadcast address.
        let [a, b, c] = [seed[0].max(1), seed[1], seed[2].wrapping_add(attempt as u8) % 254 + 1];
        last = IpAddr::from([127, a, b, c]);
        match bind(last) {
            Err(OpenError::PortTaken { .. }) => {}
            other => return other,
        }
    }
    Err(OpenError::NoFreeLoopback { holder: host::port_holder(last) })
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddr::V4((*v4).into())),
        (_, Some(v6)) => Some(SocketAddr::V6((*v6).into())),
        _ => None,
    }
}

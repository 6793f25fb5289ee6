//! UDP sockets in place of queue pair 1, which the kernel owns on its NICs.
//!
//! Several processes may have rails on one NIC of the kernel, and so at one address. Each takes a
//! port of its own from a fixed range, the same on all of its rails. Who knows only the address of
//! a peer sends a question to the ports of the range, and the process that has the object answers.
//! No process serves the others, so one that is stopped delays its own peers only.
//!
//! A second socket belongs to the multicast group of the rendezvous, which all processes receive.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use mitra_os_util::interfaces::interface_index;
use mitra_verbs::Gid;
use socket2::{Domain, Protocol, Socket, Type};

use super::MAX_MESSAGE;
use super::socket_refusals::SocketRefusals;
use crate::common::close_on_fork::{CloseOnFork, close_on_fork};

/// The first port of the range. No service is registered for the range.
const FIRST_PORT: u16 = 19_796;
/// The number of ports, and so of processes with rails at one address.
const PORTS: u16 = 256;
/// The port of the multicast group.
const GROUP_PORT: u16 = FIRST_PORT - 1;
/// The number of ports to which each question goes. The processes of a machine take the first free
/// ports.
const LIKELY_PORTS: u16 = 4;
/// Of this many questions to one address, one goes to all ports.
const WIDE_INTERVAL: u32 = 8;
/// The number of the first question that goes to all ports.
const FIRST_WIDE: u32 = 1;
/// The number of addresses of which the ports are known. More are forgotten together.
const MAX_KNOWN: usize = 1 << 10;
/// The number of datagrams that one poll takes.
const BATCH: usize = 256;
/// The requested size of the receive buffer, in bytes. Refused datagrams take a part of it.
const RECEIVE_BUFFER: usize = 1 << 20;

/// What is known of the processes at an address.
#[derive(Default)]
struct Known {
    /// The ports from which datagrams have arrived.
    ports: Vec<u16>,
    questions: u32,
}

/// The sockets of a rail.
pub(super) struct ControlSocket {
    // Before the sockets, so that the descriptors are given up before they are closed.
    _closed_on_fork: Vec<CloseOnFork>,
    socket: Arc<UdpSocket>,
    /// `None` if the system has no multicast on the interface.
    group: Option<Arc<UdpSocket>>,
    /// The scope of link-local IPv6 addresses.
    scope: u32,
    port: u16,
    known: HashMap<Gid, Known>,
    refusals: SocketRefusals,
}

fn socket(address: IpAddr) -> io::Result<Socket> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl ControlSocket {
    /// Opens a socket at each address, all with the same free port.
    ///
    /// # Errors
    /// `AddrInUse` if all ports are in use, or the error of the system.
    pub(super) fn claim(addresses: &[IpAddr]) -> io::Result<Vec<ControlSocket>> {
        for port in FIRST_PORT..FIRST_PORT + PORTS {
            match addresses.iter().map(|&address| ControlSocket::open(address, port)).collect() {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                opened => return opened,
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }

    fn open(address: IpAddr, port: u16) -> io::Result<ControlSocket> {
        let bound = socket(address)?;
        // The address may be gone for a while: its interface is down.
        match address {
            IpAddr::V4(_) => bound.set_freebind_v4(true)?,
            IpAddr::V6(_) => bound.set_freebind_v6(true)?,
        }
        // The system grants less, up to its limit.
        let _ = bound.set_recv_buffer_size(RECEIVE_BUFFER);
        let scope = interface_index(address).unwrap_or(0);
        bound.bind(&at(address, port, scope).into())?;
        let group = join_group(address, scope)
            .inspect_err(|error| tracing::debug!("{address} has no multicast: {error}"))
            .ok();
        if group.is_some() {
            match address {
                IpAddr::V4(address) => bound.set_multicast_if_v4(&address)?,
                IpAddr::V6(_) => bound.set_multicast_if_v6(scope)?,
            }
        }
        let bound = UdpSocket::from(bound);
        SocketRefusals::enable(&bound, address.is_ipv4())?;
        let closed_on_fork = [Some(&bound), group.as_ref()]
            .into_iter()
            .flatten()
            .map(|socket| close_on_fork(socket.as_raw_fd()));
        Ok(ControlSocket {
            _closed_on_fork: closed_on_fork.collect::<Result<_, _>>()?,
            socket: Arc::new(bound),
            group: group.map(Arc::new),
            scope,
            port,
            known: HashMap::new(),
            refusals: SocketRefusals::default(),
        })
    }

    /// The port of this process at the address.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The sockets, for a thread that waits until one is readable.
    pub(super) fn sockets(&self) -> impl Iterator<Item = Arc<UdpSocket>> {
        std::iter::once(&self.socket).chain(&self.group).cloned()
    }

    /// Sends a datagram to one process. It may be lost, as any datagram may.
    pub(super) fn send(&mut self, to: Gid, port: u16, bytes: &[u8]) {
        let to = at(to.into(), port, self.scope);
        if self.socket.send_to(bytes, to).is_err() {
            // The call may have failed for an earlier datagram.
            self.refusals.take(&self.socket, |receiver| is_known(&self.known, receiver));
            let _ = self.socket.send_to(bytes, to);
        }
    }

    /// Returns a number that changes when the host at an address says that no process has the port.
    pub(super) fn refusals(&self, at: Gid, port: u16) -> u64 {
        self.refusals.count(SocketAddr::new(at.into(), port))
    }

    /// Sends a datagram to all processes at an address, as far as their ports are known or likely,
    /// and now and then to all ports.
    pub(super) fn send_to_all(&mut self, to: Gid, bytes: &[u8]) {
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&to) {
            self.known.clear();
        }
        let known = self.known.entry(to).or_default();
        let is_wide = known.questions % WIDE_INTERVAL == FIRST_WIDE;
        known.questions = known.questions.wrapping_add(1);
        let likely = if is_wide { PORTS } else { LIKELY_PORTS };
        let likely = FIRST_PORT..FIRST_PORT + likely;
        let others = known.ports.iter().copied().filter(|port| !likely.contains(port));
        let ports: Vec<u16> = likely.clone().chain(others).collect();
        ports.into_iter().for_each(|port| self.send(to, port, bytes));
    }

    /// Sends a datagram to the multicast group of the rendezvous.
    pub(super) fn send_to_group(&self, bytes: &[u8]) {
        if let Some(group) = self.group.as_ref().and_then(|group| group.local_addr().ok()) {
            let _ = self.socket.send_to(bytes, group);
        }
    }

    /// Calls `on_datagram` with the source and the content of each datagram that has arrived from a
    /// port of the range.
    pub(super) fn poll(&mut self, mut on_datagram: impl FnMut(Gid, u16, &[u8])) {
        let Self { socket, group, known, refusals, .. } = self;
        for socket in std::iter::once(&**socket).chain(group.as_deref()) {
            let mut buffer = [0; MAX_MESSAGE + 1];
            for _ in 0..BATCH {
                let (length, from) = match socket.recv_from(&mut buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An earlier datagram was refused, or the call was interrupted.
                    Err(_) => {
                        refusals.take(socket, |receiver| is_known(known, receiver));
                        continue;
                    }
                };
                let is_peer = (FIRST_PORT..FIRST_PORT + PORTS).contains(&from.port());
                if length > MAX_MESSAGE || !is_peer {
                    continue;
                }
                let gid = Gid::from(from.ip());
                if known.len() < MAX_KNOWN || known.contains_key(&gid) {
                    let ports = &mut known.entry(gid).or_default().ports;
                    if !ports.contains(&from.port()) {
                        ports.push(from.port());
                    }
                }
                on_datagram(gid, from.port(), &buffer[..length]);
            }
        }
    }
}

/// Whether a process was heard there. Questions to all ports are refused by most.
fn is_known(known: &HashMap<Gid, Known>, receiver: SocketAddr) -> bool {
    known.get(&Gid::from(receiver.ip())).is_some_and(|known| known.ports.contains(&receiver.port()))
}

fn at(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() || address.is_multicast() => {
            SocketAddrV6::new(address, port, 0, scope).into()
        }
        address => SocketAddr::new(address, port),
    }
}

/// Opens a socket that receives the datagrams of the group on the interface of an address. All
/// processes have one.
fn join_group(address: IpAddr, scope: u32) -> io::Result<UdpSocket> {
    let group = IpAddr::from(super::gsi_qp::group_of(address.into()));
    let socket = socket(address)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at(group, GROUP_PORT, scope).into())?;
    // Only the datagrams of this rail's interface: each rail has a socket.
    match (group, address) {
        (IpAddr::V4(group), IpAddr::V4(address)) => {
            socket.set_multicast_all_v4(false)?;
            socket.join_multicast_v4(&group, &address)?;
        }
        (IpAddr::V6(group), _) => {
            socket.set_multicast_all_v6(false)?;
            socket.join_multicast_v6(&group, scope)?;
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => return Err(ErrorKind::Unsupported.into()),
    }
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// An address that one test uses.
    fn address(test: u8) -> IpAddr {
        IpAddr::from([127, 77, 3, test])
    }

    fn claim(address: IpAddr) -> ControlSocket {
        ControlSocket::claim(&[address]).expect("a port is free").pop().expect("one for each address")
    }

    /// Receives until `count` datagrams have arrived.
    fn receive(socket: &mut ControlSocket, count: usize) -> Vec<(u16, Vec<u8>)> {
        let (begin, mut received) = (Instant::now(), Vec::new());
        while received.len() < count && begin.elapsed() < Duration::from_secs(20) {
            socket.poll(|_, port, bytes| received.push((port, bytes.to_vec())));
        }
        received
    }

    #[test]
    fn processes_with_one_address_have_ports_of_their_own() {
        let address = address(1);
        let (mut asker, mut others) = (claim(address), [claim(address), claim(address)]);
        asker.send_to_all(address.into(), b"who");
        for other in &mut others {
            assert_eq!(receive(other, 1), [(asker.port(), b"who".to_vec())]);
            other.send(address.into(), asker.port(), b"I");
        }
        // The asker's own port gets the question, too.
        let answers = receive(&mut asker, 3);
        for expected in others.iter().map(|other| (other.port(), b"I".to_vec())) {
            assert!(answers.contains(&expected), "{answers:?}");
        }
    }

    #[test]
    fn each_rail_has_the_same_port() {
        let taken = claim(address(2));
        let rails = ControlSocket::claim(&[address(3), address(2)]).expect("a port is free");
        assert_eq!(rails[0].port(), rails[1].port());
        assert_ne!(rails[0].port(), taken.port());
    }

    #[test]
    fn question_reaches_a_process_behind_the_likely_ports() {
        let address = address(4);
        let mut asker = claim(address);
        let mut others: Vec<_> = (0..2 * LIKELY_PORTS).map(|_| claim(address)).collect();
        let last = others.last_mut().expect("there are some");
        (0..WIDE_INTERVAL).for_each(|_| asker.send_to_all(address.into(), b"who"));
        assert_eq!(receive(last, 1).len(), 1);
        // Once its port is known, it gets every question.
        last.send(address.into(), asker.port(), b"I");
        let questions = WIDE_INTERVAL as usize;
        assert!(receive(&mut asker, questions + 1).contains(&(last.port(), b"I".to_vec())));
        (0..questions).for_each(|_| asker.send_to_all(address.into(), b"again"));
        assert_eq!(receive(last, questions).len(), questions);
    }

    /// A datagram from another port, or one that is too long, is no message.
    #[test]
    fn foreign_datagrams_are_dropped() {
        let address = address(5);
        let (mut socket, mut peer) = (claim(address), claim(address));
        let foreign = UdpSocket::bind((address, 0)).expect("a port is free");
        foreign.send_to(b"foreign", (address, socket.port())).expect("it is sent");
        peer.send(address.into(), socket.port(), &[0; MAX_MESSAGE + 1]);
        peer.send(address.into(), socket.port(), &[1; MAX_MESSAGE]);
        assert_eq!(receive(&mut socket, 1), [(peer.port(), vec![1; MAX_MESSAGE])]);
    }

    #[test]
    fn ended_process_refuses() {
        let address = address(7);
        let (mut asker, mut ended) = (claim(address), claim(address));
        let port = ended.port();
        ended.send(address.into(), asker.port(), b"I");
        assert_eq!(receive(&mut asker, 1).len(), 1);
        asker.send(address.into(), port, b"one");
        asker.poll(|_, _, _| ());
        assert_eq!(asker.refusals(address.into(), port), 0);
        drop(ended);
        asker.send(address.into(), port, b"two");
        let begin = Instant::now();
        while asker.refusals(address.into(), port) == 0 && begin.elapsed() < Duration::from_secs(20) {
            asker.poll(|_, _, _| ());
        }
        assert_eq!(asker.refusals(address.into(), port), 1);
        // A refusal costs no other datagram.
        let mut other = claim(address);
        asker.send(address.into(), port + 9, b"nobody");
        asker.send(address.into(), other.port(), b"three");
        assert_eq!(receive(&mut other, 1), [(asker.port(), b"three".to_vec())]);
    }

    #[test]
    fn group_reaches_all_processes() {
        let address = address(6);
        let (sender, mut others) = (claim(address), [claim(address), claim(address)]);
        sender.send_to_group(b"who has");
        for other in &mut others {
            assert_eq!(receive(other, 1), [(sender.port(), b"who has".to_vec())]);
        }
    }
}

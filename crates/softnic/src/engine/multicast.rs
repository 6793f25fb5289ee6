//! Multicast groups. The NIC opens one socket for each group that a queue pair is attached to.

use std::net::IpAddr;
use std::sync::Arc;

use mitra_verbs::{Error, Gid, Qpn, Result, Time};

use crate::engine::Engine;
use crate::gro_policy::GroPolicy;
use crate::udp_socket::RoceSocket;

pub(crate) struct MulticastGroup {
    gid: Gid,
    socket: Arc<RoceSocket>,
}

impl Engine {
    /// Attaches a queue pair to a group, with loopback of its own messages if `own` is set. The NIC
    /// joins the group when the first queue pair is attached.
    pub(crate) fn attach_mcast(&mut self, qp: Qpn, gid: Gid, own: bool) -> Result<()> {
        let Some(unicast) = &self.socket else { return Err(Error::DeviceFatal) };
        let is_first = !self.nic.has_mcast_members(gid);
        self.nic.attach_mcast(qp, gid, own)?;
        if is_first {
            match RoceSocket::join(gid.into(), unicast.address().ip()) {
                Ok(socket) => self.multicast_groups.push(MulticastGroup { gid, socket: Arc::new(socket) }),
                Err(e) => {
                    self.nic.detach_mcast(qp, gid)?;
                    return Err(Error::system("joining a multicast group", &e));
                }
            }
        }
        Ok(())
    }

    /// Joins the groups on the interface of another local address.
    pub(crate) fn rejoin_multicast(&mut self, local: IpAddr) {
        for group in &mut self.multicast_groups {
            if let Ok(socket) = RoceSocket::join(group.gid.into(), local) {
                group.socket = Arc::new(socket);
            }
        }
    }

    /// Makes the NIC's own socket receive traffic classes. The sockets of multicast groups always
    /// do.
    pub(crate) fn receive_traffic_classes(&mut self) {
        if let Some(socket) = &self.socket {
            socket.receive_traffic_classes();
        }
    }

    /// Detaches a queue pair from a group. The NIC leaves the group when the last queue pair is
    /// detached.
    pub(crate) fn detach_mcast(&mut self, qp: Qpn, gid: Gid) -> Result<()> {
        self.nic.detach_mcast(qp, gid)?;
        self.multicast_groups.retain(|group| self.nic.has_mcast_members(group.gid));
        Ok(())
    }

    pub(crate) fn multicast_sockets(&self) -> Vec<Arc<RoceSocket>> {
        self.multicast_groups.iter().map(|group| Arc::clone(&group.socket)).collect()
    }

    /// Makes up to `max_receives` receive calls for each group and processes their data. Returns
    /// the number of calls that returned data.
    pub(crate) fn receive_multicast(&mut self, now: Time, max_receives: u32) -> u32 {
        let mut receives = 0;
        for index in 0..self.multicast_groups.len() {
            for _ in 0..max_receives {
                let MulticastGroup { gid, ref socket } = self.multicast_groups[index];
                let (local, received) =
                    (socket.address(), socket.receive(self.rx_buffer.bytes_mut(), &mut GroPolicy::Off));
                match received {
                    Ok(received) => self.process(now, local, Some(gid), &received),
                    Err(error) if self.handle_receive_error(error) => {}
                    Err(_) => break,
                }
                receives += 1;
            }
        }
        receives
    }
}

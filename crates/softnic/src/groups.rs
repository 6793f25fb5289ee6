//! Multicast groups: a socket for each that somebody is attached to.

use std::sync::Arc;

use mitra_verbs::{Error, Gid, Qpn, Result, Time};

use crate::engine::Engine;
use crate::socket::{Merging, Socket};

/// A group that the NIC is in.
pub(crate) struct Group {
    gid: Gid,
    socket: Arc<Socket>,
}

impl Engine {
    /// Attaches a queue pair. The first one has the NIC join the group.
    pub(crate) fn attach_mcast(&mut self, qp: Qpn, gid: Gid, own: bool) -> Result<()> {
        let Some(unicast) = &self.socket else { return Err(Error::DeviceFatal) };
        let is_first = !self.nic.has_mcast_members(gid);
        self.nic.attach_mcast(qp, gid, own)?;
        if is_first {
            match Socket::join(gid.into(), unicast.address().ip()) {
                Ok(socket) => self.groups.push(Group { gid, socket: Arc::new(socket) }),
                Err(e) => {
                    self.nic.detach_mcast(qp, gid)?;
                    return Err(Error::System {
                        operation: "joining a multicast group",
                        message: e.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Detaches a queue pair. The last one has the NIC leave the group.
    pub(crate) fn detach_mcast(&mut self, qp: Qpn, gid: Gid) -> Result<()> {
        self.nic.detach_mcast(qp, gid)?;
        self.groups.retain(|group| self.nic.has_mcast_members(group.gid));
        Ok(())
    }

    /// The sockets that the NIC's groups arrive at.
    pub(crate) fn group_sockets(&self) -> Vec<Arc<Socket>> {
        self.groups.iter().map(|group| Arc::clone(&group.socket)).collect()
    }

    /// Takes what waits of each group, with so many receives at most, and executes it; says how many brought something.
    pub(crate) fn receive_multicast(&mut self, now: Time, most: u32) -> u32 {
        let mut brought = 0;
        for at in 0..self.groups.len() {
            for _ in 0..most {
                let Group { gid, ref socket } = self.groups[at];
                let (local, received) =
                    (socket.address(), socket.receive(self.inbox.room(), &mut Merging::Never));
                if !self.received(now, local, Some(gid), received) {
                    break;
                }
                brought += 1;
            }
        }
        brought
    }
}

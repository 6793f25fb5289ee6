//! The GIDs of a device's port.

use std::net::{IpAddr, Ipv6Addr};

use mitra_verbs::{Error, Gid, Result};
use mitra_verbs_abi::*;
use nix::errno::Errno;

use crate::context::{Context, PORT};

/// The largest number of GIDs that are read.
const MAX_GIDS: usize = 1024;

/// The RoCEv2 GIDs of the port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GidTable(Vec<Entry>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    index: u32,
    gid: Gid,
    /// The index of the network interface that has the address.
    interface: u32,
}

impl GidTable {
    /// Reads the table. The indices of GIDs change when addresses are removed and added, so each
    /// connection reads it anew.
    pub(crate) fn read(context: &Context) -> Result<GidTable> {
        let mut entries = vec![ibv_gid_entry::zeroed(); MAX_GIDS];
        // SAFETY: the context is open, and the function writes at most `MAX_GIDS` entries of the
        // given size.
        let count = unsafe {
            (context.lib.query_gid_table)(
                context.raw,
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let errno = Errno::from_raw(i32::try_from(count.unsigned_abs()).unwrap_or(0));
            return Err(context.error("reading the GID table", errno));
        };
        let entries = entries.iter().take(count);
        let of_port = entries.filter(|e| e.port_num == u32::from(PORT) && e.gid_type == IBV_GID_TYPE_ROCE_V2);
        let entry = |e: &ibv_gid_entry| Entry {
            index: e.gid_index,
            // SAFETY: every bit pattern is a valid GID, and the entry was written or is zero.
            gid: Gid(unsafe { e.gid.raw }),
            interface: e.ndev_ifindex,
        };
        Ok(GidTable(of_port.map(entry).collect()))
    }

    /// Returns the index of a GID.
    ///
    /// # Errors
    /// `Invalid` if the port does not have the address any more.
    pub(crate) fn index_of(&self, gid: Gid) -> Result<u8> {
        let found = self.0.iter().find(|entry| entry.gid == gid);
        found.and_then(|entry| u8::try_from(entry.index).ok()).ok_or(Error::Invalid(
            "the port has lost the address of the NIC; give its interface the address again",
        ))
    }

    pub(crate) fn contains(&self, gid: Gid) -> bool {
        self.0.iter().any(|entry| entry.gid == gid)
    }

    /// Returns the indices of the network interfaces that have the addresses.
    pub(crate) fn interfaces(&self) -> Vec<u32> {
        let mut interfaces: Vec<u32> = self.0.iter().map(|entry| entry.interface).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        interfaces.retain(|&interface| interface != 0);
        interfaces
    }

    /// Returns the GID that a NIC without a choice of address has: an IPv4 address before an IPv6
    /// address, and a link-local address last, because no router forwards it.
    pub(crate) fn preferred(&self) -> Option<Gid> {
        self.0.iter().map(|entry| entry.gid).min_by_key(|gid| rank(*gid))
    }
}

fn rank(gid: Gid) -> u8 {
    match IpAddr::from(gid) {
        IpAddr::V4(address) => u8::from(address.is_link_local()),
        IpAddr::V6(address) => 2 + u8::from(is_link_local(address)),
    }
}

fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn routable_ipv4_address_is_preferred() {
        let entry = |(index, address, interface)| Entry { index, gid: gid(address), interface };
        let entries = [(0, "fe80::1", 7), (1, "2001:db8::1", 7), (3, "10.0.0.1", 9)].map(entry);
        let table = GidTable(entries.to_vec());
        assert_eq!(table.preferred(), Some(gid("10.0.0.1")));
        assert_eq!(table.index_of(gid("10.0.0.1")), Ok(3));
        assert!(table.index_of(gid("10.0.0.2")).is_err());
        assert_eq!(GidTable(table.0[..2].to_vec()).preferred(), Some(gid("2001:db8::1")));
        assert_eq!(GidTable(Vec::new()).preferred(), None);
        assert_eq!(table.interfaces(), [7, 9]);
    }
}

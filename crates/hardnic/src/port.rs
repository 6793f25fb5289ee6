//! The state of the port, as the watch thread read it last.

use mitra_verbs::{Error, Gid, Mtu, PortAttr, PortState, Result};
use mitra_verbs_abi::*;

use crate::context::{Context, PORT};
use crate::gid_table::GidTable;

/// The attributes of the port that the device itself reports.
pub(crate) fn query(context: &Context) -> Result<ibv_port_attr> {
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: the context is open, and the function writes a prefix of the attributes.
    let result = unsafe { (context.lib.query_port)(context.raw, PORT, &raw mut attr) };
    context.check("querying the port", result)?;
    Ok(attr)
}

/// A port as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) attr: PortAttr,
    /// The index of the NIC's address in the device's table.
    pub(crate) gid_index: Option<u8>,
    /// The network interfaces with addresses of the port.
    pub(crate) interfaces: Vec<u32>,
}

/// Returns the present state of the port of a NIC with the address `gid`. A port that has lost the
/// address is down, since no packet leaves from it.
pub(crate) fn read(context: &Context, gid: Gid) -> Result<Port> {
    let attr = query(context)?;
    let table = GidTable::read(context)?;
    let gid_index = table.index_of(gid).ok();
    context.set_gid_index(gid_index);
    let is_active = attr.state == IBV_PORT_ACTIVE && gid_index.is_some();
    let state = if is_active { PortState::Active } else { PortState::Down };
    let max_mtu = mtu_from(attr.active_mtu).ok_or(Error::Unsupported("the port's MTU"))?;
    Ok(Port { attr: PortAttr { state, max_mtu, gid }, gid_index, interfaces: table.interfaces() })
}

fn mtu_from(mtu: ibv_mtu) -> Option<Mtu> {
    Mtu::ALL.get((mtu as usize).checked_sub(IBV_MTU_256 as usize)?).copied()
}

pub(crate) fn mtu_to(mtu: Mtu) -> ibv_mtu {
    IBV_MTU_256 + mtu as ibv_mtu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_numbered_from_one() {
        assert_eq!(mtu_to(Mtu::M4096), IBV_MTU_4096);
        assert_eq!(mtu_from(IBV_MTU_1024), Some(Mtu::M1024));
        assert_eq!((mtu_from(0), mtu_from(6)), (None, None));
    }
}

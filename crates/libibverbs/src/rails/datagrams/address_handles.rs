//! The program's address handles. The NIC of rail 0 numbers them. A handle names the same
//! destination on all rails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mitra_failover::LocalNic;
use mitra_verbs::{AhId, Error, Gid, Provider, Result};

use crate::common::limit::check_limit;
use crate::common::lock::lock;
use crate::rails::object_number;
use crate::rails::protection_domain::MultiRailPd;

pub(crate) struct AddressHandles {
    nics: Vec<LocalNic>,
    handles: Mutex<HashMap<AhId, Arc<AddressHandle>>>,
}

/// A destination, with its address handles on the rails. Dropping the value destroys the handles.
pub(super) struct AddressHandle {
    /// Declared, and so dropped, before the protection domain, which counts the handles.
    on_rails: Mutex<Vec<OnRail>>,
    pd: Arc<MultiRailPd>,
    pub(super) gid: Gid,
    traffic_class: u8,
}

struct OnRail {
    rail: usize,
    gid: Gid,
    id: AhId,
    nic: Arc<dyn Provider>,
}

impl AddressHandles {
    pub(super) fn new(nics: &[LocalNic]) -> AddressHandles {
        AddressHandles { nics: nics.to_vec(), handles: Mutex::default() }
    }

    /// # Errors
    /// `Limit` if there are too many address handles, or another error of the NIC of rail 0.
    pub(crate) fn create(&self, pd: &Arc<MultiRailPd>, gid: Gid, traffic_class: u8) -> Result<AhId> {
        let handle = AddressHandle { pd: Arc::clone(pd), gid, traffic_class, on_rails: Mutex::default() };
        let on_rail_0 = handle.on_rail(&self.nics, 0, gid);
        let mut handles = lock(&self.handles);
        let id = match on_rail_0 {
            Err(Error::DeviceFatal) => {
                let limit = self.nics[0].provider.attr().limits.ahs;
                check_limit("address handles", handles.len() as u32 + 1, limit)?;
                AhId(object_number::next())
            }
            created => created?,
        };
        handles.insert(id, Arc::new(handle));
        Ok(id)
    }

    /// Destroys an address handle. Datagrams that were posted with it keep their destination.
    ///
    /// # Errors
    /// `NoSuchObject` if there is no such handle.
    pub(crate) fn destroy(&self, id: AhId) -> Result<()> {
        let removed = lock(&self.handles).remove(&id);
        removed.map(drop).ok_or(Error::NoSuchObject { kind: "address handle", id: id.0 })
    }

    /// # Errors
    /// `NoSuchObject` if there is no such handle.
    pub(super) fn get(&self, id: AhId) -> Result<Arc<AddressHandle>> {
        lock(&self.handles).get(&id).cloned().ok_or(Error::NoSuchObject { kind: "address handle", id: id.0 })
    }
}

impl AddressHandle {
    /// Returns the address handle on `rail` for `gid`, the destination's address on this rail.
    ///
    /// # Errors
    /// The error of the NIC that creates the handle.
    pub(super) fn on_rail(&self, nics: &[LocalNic], rail: usize, gid: Gid) -> Result<AhId> {
        let mut on_rails = lock(&self.on_rails);
        if let Some(known) = on_rails.iter().find(|known| known.rail == rail && known.gid == gid) {
            return Ok(known.id);
        }
        let (nic, pd) = (Arc::clone(&nics[rail].provider), self.pd.failover.nics()[rail].pd);
        let id = nic.create_ah_with_traffic_class(pd, gid, self.traffic_class)?;
        // A known handle of this rail is for a former address of the device.
        on_rails.retain(|known| known.rail != rail);
        on_rails.push(OnRail { rail, gid, id, nic });
        Ok(id)
    }
}

impl Drop for OnRail {
    fn drop(&mut self) {
        // Only a dead NIC refuses, and its objects no longer exist.
        let _ = self.nic.destroy_ah(self.id);
    }
}

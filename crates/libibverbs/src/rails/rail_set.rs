//! The open device: its NICs, and the objects that the program has created.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use mitra_control::ControlServer;
use mitra_metrics::MetricsServer;
use mitra_os_util::interfaces::interface_index;
use mitra_verbs::{AsyncEvent, Error, Gid, Limits, Mtu, Nic, PortAttr, PortState, Result};

use super::cm_receiver::SharedReceiver;
use super::device_memory::DeviceMemory;
use super::object_number;
use super::object_table::ObjectTable;
use super::on_demand_regions::OnDemandRegions;
use super::rendezvous::{OneRail, limits_of_program};
use super::virtual_qps::MultiRail;
use super::xrc_domains::XrcDomains;
use crate::common::limit::check_limit;
use crate::common::lock::lock;

pub(crate) struct RailSet {
    /// The NICs, rail 0 first.
    nics: Vec<Arc<dyn Nic>>,
    /// The GID that rail 0 had when the device was opened. The device's GUID contains this GID, so
    /// the GUID stays when the address changes.
    first_gid: Gid,
    /// The smallest MTU of the NICs' ports, because each rail carries datagrams as long as the MTU
    /// that the program reads.
    max_mtu: Mtu,
    /// The index of the network interface of rail 0 (`if_nametoindex(3)`), or 0 if the system does
    /// not know it.
    interface_index: u32,
    /// The virtual queue pairs. Present if there are at least two NICs.
    pub(crate) multi_rail: Option<Arc<MultiRail>>,
    /// Queue pair 1 of a device with one rail.
    pub(super) one_rail: OnceLock<Arc<OneRail>>,
    pub(super) cm_receiver: SharedReceiver,
    objects: Mutex<ObjectTable>,
    /// Tells the connection manager that the last NIC has died.
    on_death: OnceLock<fn()>,
    pub(crate) on_demand: Mutex<OnDemandRegions>,
    xrc_domains: Mutex<XrcDomains>,
    pub(crate) device_memory: DeviceMemory,
    /// The control socket for `mitra fault`, which lives as long as the device is open.
    pub(super) fault_control: OnceLock<ControlServer>,
    pub(super) metrics: OnceLock<MetricsServer>,
}

impl RailSet {
    /// # Errors
    /// `DeviceFatal` if the NIC of rail 0 is dead.
    pub(super) fn new(nics: Vec<Arc<dyn Nic>>, multi_rail: Option<Arc<MultiRail>>) -> Result<RailSet> {
        let first_gid = nics[0].query_port()?.gid;
        let max_mtu = smallest_mtu(nics.iter().map(|nic| nic.query_port()));
        // The index only informs programs, so a device without one is usable.
        let interface_index = interface_index(first_gid.into()).unwrap_or(0);
        Ok(RailSet {
            nics,
            first_gid,
            max_mtu,
            interface_index,
            multi_rail,
            one_rail: OnceLock::new(),
            cm_receiver: SharedReceiver::new(),
            objects: Mutex::default(),
            on_death: OnceLock::new(),
            on_demand: Mutex::default(),
            xrc_domains: Mutex::default(),
            device_memory: DeviceMemory::default(),
            fault_control: OnceLock::new(),
            metrics: OnceLock::new(),
        })
    }

    /// Returns the NIC of rail 0. The program's objects have the numbers that this NIC assigned.
    pub(crate) fn nic(&self) -> &Arc<dyn Nic> {
        &self.nics[0]
    }

    pub(crate) fn nics(&self) -> &[Arc<dyn Nic>] {
        &self.nics
    }

    pub(crate) fn max_mtu(&self) -> Mtu {
        self.max_mtu
    }

    /// The device's port is up if the port of at least one NIC is active.
    pub(crate) fn is_up(&self) -> bool {
        let is_active =
            |nic: &Arc<dyn Nic>| nic.query_port().is_ok_and(|port| port.state == PortState::Active);
        // The ports are read in turn. A port may come up after its turn, and another go down before
        // its own. The second round then finds the first port up.
        (0..2).any(|_| self.nics.iter().any(is_active))
    }

    /// Returns whether at least one NIC answers.
    pub(crate) fn is_alive(&self) -> bool {
        self.nics.iter().any(|nic| nic.query_port().is_ok())
    }

    /// Returns the number that the NIC of rail 0 has assigned to a new object. If this NIC is dead
    /// and another NIC is alive, returns a number that no NIC assigns. `existing` is the number of
    /// objects of the same kind, and `limit` is its maximum.
    ///
    /// # Errors
    /// The error of the NIC; `Limit` if the NIC is dead and there are too many objects.
    pub(crate) fn number_of(&self, assigned: Result<u32>, existing: usize, limit: u32) -> Result<u32> {
        match assigned {
            Err(Error::DeviceFatal) if self.is_alive() => {
                check_limit("objects of this kind", existing as u32 + 1, limit)?;
                Ok(object_number::without_rail_0())
            }
            assigned => assigned,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        match &self.multi_rail {
            None => limits_of_program(self.nic().attr().limits),
            Some(multi_rail) => multi_rail.domain().limits(),
        }
    }

    pub(crate) fn objects(&self) -> MutexGuard<'_, ObjectTable> {
        lock(&self.objects)
    }

    pub(crate) fn xrc_domains(&self) -> MutexGuard<'_, XrcDomains> {
        lock(&self.xrc_domains)
    }

    /// Queues an asynchronous event at the contexts that it concerns.
    pub(crate) fn deliver(&self, event: AsyncEvent) {
        let has_died = {
            let mut objects = self.objects();
            let was_dead = objects.is_dead;
            objects.deliver(event);
            objects.is_dead && !was_dead
        };
        if let (true, Some(on_death)) = (has_died, self.on_death.get()) {
            on_death();
        }
    }

    /// Calls a function when the last NIC dies. Only the first call of this method has an effect.
    pub(crate) fn set_on_death(&self, on_death: fn()) {
        let _ = self.on_death.set(on_death);
    }

    /// Queues an event of the NIC of rail 0 at the context that it concerns, on a device with
    /// several rails. Returns false if the event is about an object of a virtual queue pair.
    pub(super) fn deliver_from_rail_0(&self, event: AsyncEvent) -> bool {
        let virtual_cq = {
            let objects = self.objects();
            if !objects.is_on_nic(event) {
                return false;
            }
            match event {
                AsyncEvent::CqError(id) => objects.cqs.get(&id).and_then(|entry| entry.virtual_cq.clone()),
                _ => None,
            }
        };
        match virtual_cq {
            Some(virtual_cq) => virtual_cq.overflow(),
            None => self.deliver(event),
        }
        true
    }

    /// Returns the device's GID, which is the present GID of rail 0.
    ///
    /// # Errors
    /// `DeviceFatal` if the device has one rail and its NIC is dead. With several rails the GID
    /// outlives rail 0.
    pub(crate) fn gid(&self) -> Result<Gid> {
        if self.multi_rail.is_none() {
            self.nic().query_port()?;
        }
        Ok(self.gid_of_rail_0())
    }

    /// Returns the present GID of rail 0, even if its NIC is dead.
    pub(crate) fn gid_of_rail_0(&self) -> Gid {
        self.nic().address().into()
    }

    pub(crate) fn first_gid(&self) -> Gid {
        self.first_gid
    }

    pub(crate) fn interface_index(&self) -> u32 {
        self.interface_index
    }
}

/// Returns the smallest MTU of the ports, as far as they can be read.
fn smallest_mtu(ports: impl Iterator<Item = Result<PortAttr>>) -> Mtu {
    ports.flatten().map(|port| port.max_mtu).min().unwrap_or(Mtu::M1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram of the port's MTU can leave on every rail.
    #[test]
    fn mtu_of_the_port_is_the_smallest_of_all_rails() {
        let port = |max_mtu| Ok(PortAttr { state: PortState::Active, max_mtu, gid: Gid([0; 16]) });
        for mtus in [[Mtu::M4096, Mtu::M1024], [Mtu::M512, Mtu::M2048]] {
            let ports = [port(mtus[0]), Err(Error::DeviceFatal), port(mtus[1])];
            assert_eq!(Some(smallest_mtu(ports.into_iter())), mtus.into_iter().min());
        }
    }
}

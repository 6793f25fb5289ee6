//! The open device: its NICs, and the objects that the program has created.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use mitra_control::ControlServer;
use mitra_metrics::MetricsServer;
use mitra_os_util::interfaces::interface_index;
use mitra_verbs::{AsyncEvent, Gid, Mtu, Nic, PortAttr, PortState, Result};

use super::device::Device;
use super::device_memory::DeviceMemory;
use super::object_table::ObjectTable;
use super::on_demand_regions::OnDemandRegions;
use super::xrc_domains::XrcDomains;
use crate::common::lock::lock;

pub(crate) struct RailSet {
    /// The NICs, rail 0 first.
    pub(crate) nics: Vec<Arc<dyn Nic>>,
    /// The GID that rail 0 had when the device was opened. The device's GUID contains this GID, so
    /// the GUID stays when the address changes.
    pub(crate) first_gid: Gid,
    /// The smallest MTU of the NICs' ports, because each rail carries datagrams as long as the MTU
    /// that the program reads.
    pub(crate) max_mtu: Mtu,
    /// The index of the network interface of rail 0 (`if_nametoindex(3)`), or 0 if the system does
    /// not know it.
    pub(crate) interface_index: u32,
    pub(crate) device: Box<dyn Device>,
    objects: Mutex<ObjectTable>,
    /// Tells the connection manager that the last NIC has died.
    on_death: OnceLock<fn()>,
    pub(crate) on_demand: Mutex<OnDemandRegions>,
    pub(crate) xrc_domains: Mutex<XrcDomains>,
    pub(crate) device_memory: DeviceMemory,
    /// The control socket for `mitra fault`, which lives as long as the device is open.
    pub(super) fault_control: OnceLock<ControlServer>,
    pub(super) metrics: OnceLock<MetricsServer>,
}

impl RailSet {
    /// `first_gid` is the GID of rail 0.
    pub(super) fn new(nics: Vec<Arc<dyn Nic>>, first_gid: Gid, device: Box<dyn Device>) -> RailSet {
        let max_mtu = smallest_mtu(nics.iter().map(|nic| nic.query_port()));
        // The index only informs programs, so a device without one is usable.
        let interface_index = interface_index(first_gid.into()).unwrap_or(0);
        RailSet {
            nics,
            first_gid,
            max_mtu,
            interface_index,
            device,
            objects: Mutex::default(),
            on_death: OnceLock::new(),
            on_demand: Mutex::default(),
            xrc_domains: Mutex::default(),
            device_memory: DeviceMemory::default(),
            fault_control: OnceLock::new(),
            metrics: OnceLock::new(),
        }
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

    /// Returns whether every NIC reaches memory that is mapped after its registration, or has no
    /// address in the process.
    pub(crate) fn has_on_demand_paging(&self) -> bool {
        self.nics.iter().all(|nic| nic.attr().capabilities.on_demand)
    }

    pub(crate) fn objects(&self) -> MutexGuard<'_, ObjectTable> {
        lock(&self.objects)
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

    /// Returns the present GID of rail 0, even if its NIC is dead.
    pub(crate) fn gid_of_rail_0(&self) -> Gid {
        self.nics[0].address().into()
    }
}

/// Returns the smallest MTU of the ports, as far as they can be read.
fn smallest_mtu(ports: impl Iterator<Item = Result<PortAttr>>) -> Mtu {
    ports.flatten().map(|port| port.max_mtu).min().unwrap_or(Mtu::M1024)
}

#[cfg(test)]
mod tests {
    use mitra_verbs::Error;

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

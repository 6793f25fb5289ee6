//! A NIC as the device of a program has it: the verbs, its address, and its faults.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use crate::Limits;
use crate::Provider;
use crate::Result;
use crate::fault::FaultSwitch;

/// A NIC that a program's device is made of.
pub trait Nic: Provider {
    /// Returns the IP address of the NIC. A dead NIC keeps its address.
    fn address(&self) -> IpAddr;

    /// Returns the kernel's name of the RDMA device that the NIC is, such as `mlx5_0`, or `None` if
    /// the kernel knows no such device.
    fn device_name(&self) -> Option<&str> {
        None
    }

    /// Returns what programs get of a device whose only NIC this is.
    fn extras(&self) -> Extras {
        let Limits { wrs, sges, .. } = self.attr().limits;
        Extras { srq_wrs: wrs, srq_sges: sges, srq_resize: true, xrc: true, type_1_windows: true }
    }

    /// Returns the switch of a NIC that fails on demand, or `None` if this one does not.
    fn fault_switch(&self) -> Option<&dyn FaultSwitch> {
        None
    }

    /// Makes the NIC receive the traffic class of each datagram, which a UD queue pair shows in the
    /// GRH. Called before the first UD queue pair is created. A NIC that always receives the class
    /// has nothing to do.
    ///
    /// # Errors
    /// `DeviceFatal` if the NIC is dead.
    fn receive_traffic_classes(&self) -> Result<()> {
        Ok(())
    }

    /// Executes the datagrams that have arrived, and sends pending ACKs. A process that ends
    /// without dropping its NIC calls this, so that senders see their messages acknowledged. Gives
    /// up after 100 ms, because an exit handler or signal handler may run on a thread that holds
    /// the NIC's lock. A NIC that outlives its process has nothing to do.
    fn settle(&self) {}
}

/// What a NIC has for programs, besides its [`Limits`] and the
/// [`Capabilities`](crate::Capabilities) on which failover depends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extras {
    /// The maximum number of entries in a shared receive queue.
    pub srq_wrs: u32,
    /// The maximum number of scatter entries of a receive in a shared receive queue.
    pub srq_sges: u32,
    /// Whether a shared receive queue can be resized.
    pub srq_resize: bool,
    /// Whether the NIC has XRC.
    pub xrc: bool,
    /// Whether the NIC has memory windows of type 1.
    pub type_1_windows: bool,
}

/// How datagrams reach the NICs of this host: through shared memory, or over UDP. Shared memory
/// needs no system call while the receiver polls. It is possible between NICs of one user and one
/// network namespace. The packets, their faults and their captures are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Links {
    /// The NIC uses shared memory for the peers that it reaches so, and UDP for the others, and
    /// until there is a link.
    #[default]
    Auto,
    /// The NIC uses shared memory only, and drops the datagrams to other peers. It uses UDP for
    /// multicast, and for the question to a peer without a link whether its process has ended.
    SharedMemory,
    /// The NIC uses UDP only.
    Udp,
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Links::Auto => "auto",
            Links::SharedMemory => "shm",
            Links::Udp => "udp",
        })
    }
}

impl FromStr for Links {
    type Err = String;

    fn from_str(text: &str) -> Result<Links, String> {
        [Links::Auto, Links::SharedMemory, Links::Udp]
            .into_iter()
            .find(|links| links.to_string() == text)
            .ok_or_else(|| "expected auto, shm or udp".to_owned())
    }
}

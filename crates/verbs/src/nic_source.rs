//! What opens NICs: the programs choose it, and all that is below them takes NICs from it.

use core::fmt;
use core::net::IpAddr;
use std::sync::Arc;

use crate::{Limits, Links, Nic};

/// A kind of NIC, and the way to open one. Everything below the programs opens NICs by this trait,
/// so that NICs of another kind can take the place of software NICs.
pub trait NicSource: Send + Sync + fmt::Debug {
    /// Returns the limits of a NIC that nobody has asked for others.
    fn limits(&self) -> Limits;

    /// Returns the address that a NIC at [`NicAddress::Preferred`] of this address will have,
    /// unless another one takes it first. Programs can show the address before the NIC is open.
    /// Returns `None` if there is none.
    fn propose_address(&self) -> Option<IpAddr>;

    /// Opens a NIC.
    ///
    /// # Errors
    /// The error of the kind's crate, which says what to do, in one line.
    fn open(&self, request: &NicRequest) -> Result<OpenedNic, NicOpenError>;
}

/// Why a NIC cannot be opened: the error of its crate. If the operating system refused a call, its
/// error is a source.
pub type NicOpenError = Box<dyn core::error::Error + Send + Sync>;

/// The NIC that a caller of [`NicSource::open`] needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicRequest {
    /// Where the NIC is.
    pub address: NicAddress,
    /// How its datagrams reach the NICs of this host.
    pub links: Links,
    /// The limits that it has, where the source can choose them.
    pub limits: Limits,
}

impl NicRequest {
    /// Returns the request for a NIC with the limits of its kind.
    pub fn new(source: &dyn NicSource, address: NicAddress) -> NicRequest {
        NicRequest { address, links: Links::default(), limits: source.limits() }
    }
}

/// The address of a NIC that is to be opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NicAddress {
    /// A free address, which only this machine reaches.
    Free,
    /// This address or, if it is in use, a free one.
    Preferred(IpAddr),
    /// This address.
    At(IpAddr),
}

/// A NIC that [`NicSource::open`] has opened.
#[derive(Debug)]
pub struct OpenedNic {
    /// The NIC.
    pub nic: Arc<dyn Nic>,
    /// What does not work as the request asks, for the user.
    pub warning: Option<String>,
}

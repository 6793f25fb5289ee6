//! The messages between a coordinator and a memory node over TCP: one frame in each direction.

use mitra_driver::QpInfo;
use serde::{Deserialize, Serialize};

/// The version of the messages.
pub const VERSION: u32 = 1;

/// A secret by which a coordinator authenticates itself. It is sent in clear text.
pub type Token = [u8; 16];

/// The frame of a coordinator. Its version is first, so that a node can refuse another version by
/// name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The token of the coordinator.
    pub token: Token,
    /// The fingerprint of the layout that both ends must have.
    pub fingerprint: u64,
    /// The number that the coordinator expects the node to have.
    pub node: u16,
    /// The number of the coordinator.
    pub coordinator: u16,
    /// The request to the node.
    pub ask: Ask,
}

/// A request of a coordinator to a memory node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// The highest incarnation of the coordinator that the node has ever admitted or fenced.
    Highest,
    /// A connection for this incarnation.
    Connect {
        /// The incarnation.
        incarnation: u16,
        /// The connection data of the coordinator's end.
        info: QpInfo,
    },
    /// The end of all rights of a life.
    Fence {
        /// The incarnation that asks.
        incarnation: u16,
        /// The coordinator that is fenced.
        fenced_coordinator: u16,
        /// The fenced incarnation. All earlier incarnations are fenced too.
        fenced_incarnation: u16,
    },
}

/// The answer of the node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The highest incarnation, 0 if there is none.
    Highest(u16),
    /// The node has connected its end.
    Connected {
        /// The connection data of the node's end.
        info: QpInfo,
        /// The node's memory: an encoded [`mitra_failover::RemoteRegion`].
        region: Vec<u8>,
    },
    /// The NIC has confirmed that no access of the life is under way, and that none follows.
    Fenced,
    /// The node refuses.
    Refused(Refusal),
}

/// Why a memory node refuses a coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The two programs are of different versions.
    #[error("the node speaks version {0} of the protocol; run the same version of Mitra everywhere")]
    Version(u32),
    /// The token does not belong to the coordinator, or the coordinator has no token.
    #[error("the token is not that of coordinator {0}; give both ends the same tokens")]
    Token(u16),
    /// The layouts differ.
    #[error("the node has another layout; give both ends the same tables, nodes and coordinators")]
    Layout,
    /// Another node has this address.
    #[error("the address is that of node {0}; list the nodes in the order of their numbers")]
    Node(u16),
    /// The incarnation is not above all incarnations that the node has admitted or fenced.
    #[error(
        "the node has admitted or fenced incarnation {0}; another process may run as this coordinator: end it, or connect again"
    )]
    Incarnation(u16),
    /// Too many lives of one coordinator are connected.
    #[error(
        "{0} lives of this coordinator are connected and not fenced; let another coordinator recover them"
    )]
    Lives(usize),
    /// The life that asks for a fence is not connected.
    #[error(
        "the life that asks for a fence is not connected, or was fenced itself; connect again as a new life"
    )]
    NotConnected,
    /// The node has no coordinator with this number.
    #[error("there is no coordinator {0}; count coordinators from 1 to the number of tokens")]
    Coordinator(u16),
    /// The two ends use different kinds of queue pairs.
    #[error("one end uses virtual queue pairs and the other one RC queue pairs; configure the same kind")]
    Kind,
    /// The NIC of the node refuses, or does not confirm that the life has ended.
    #[error("the NIC of the node: {0}; if it stays so, end the node")]
    Nic(String),
}

//! The exchange between the two processes of a benchmark that measures blocks: latency and
//! bandwidth.

use mitra_peer_process::{PeerConnection, PeerProcess};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::endpoint::{BlockTask, Endpoint, NicPlacement, Variant};
use super::run_error;

/// The parameters of the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) placement: NicPlacement,
    pub(crate) half: usize,
}

/// Runs `task` in this process, and sends `block` to [`serve_blocks`] in the second process.
/// Returns the measured value.
pub(crate) fn run_block<T: BlockTask>(
    endpoint: &mut Endpoint,
    peer: &mut PeerProcess,
    variant: Variant,
    block: &impl Serialize,
    task: &T,
) -> anyhow::Result<T::Output> {
    peer.connection.send(&Some(block))?;
    endpoint
        .run(variant, task, &mut peer.connection)
        .and_then(|measured| Ok(peer.connection.receive::<()>().map(|()| measured)?))
        .map_err(|error| run_error(peer, error))
}

/// Ends [`serve_blocks`] in the second process.
pub(crate) fn end_blocks(peer: &mut PeerProcess) -> anyhow::Result<()> {
    Ok(peer.connection.send(&None::<()>)?)
}

/// Runs the second process: calls `serve` for each block, until the first process calls
/// `end_blocks`.
pub(crate) fn serve_blocks<B: DeserializeOwned>(
    setup: &Setup,
    connection: &mut PeerConnection,
    serve: impl Fn(&mut Endpoint, &B, &mut PeerConnection) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut endpoint = Endpoint::open(&setup.placement, setup.half, connection)?;
    while let Some(block) = connection.receive::<Option<B>>()? {
        serve(&mut endpoint, &block, connection)?;
        connection.send(&())?;
    }
    Ok(())
}

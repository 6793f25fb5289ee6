//! Processes and memories that decide together: `mitra memory`, `mitra propose`.

pub(crate) mod memory;
pub(crate) mod propose;
mod protocol;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use mitra_failover::Domain;
use mitra_launch::Rails;
use mitra_node::Token;
use mitra_softnic::SoftNic;
use mitra_verbs::Provider;
use sha2::{Digest, Sha256};

/// What every process and memory is told.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Place {
    /// How many rails, each at a free loopback address; or the address of each, separated by commas. All must have as many
    #[arg(long, value_name = "N|ADDRESS,...", default_value = "2")]
    rails: Rails,
    /// What only those know that belong together: needed where others than this machine reach them
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
}

impl Place {
    /// Opens the rails.
    pub(crate) fn open(&self) -> anyhow::Result<Arc<Domain>> {
        let configs: Vec<_> = match &self.rails {
            Rails::Count(count) => vec![mitra_softnic::Config::loopback(); *count],
            Rails::Addresses(addresses) => addresses.iter().map(|&a| mitra_softnic::Config::at(a)).collect(),
        };
        let open = |(rail, config)| -> anyhow::Result<Arc<dyn Provider>> {
            Ok(SoftNic::open(config).with_context(|| format!("cannot open the NIC of rail {rail}"))?)
        };
        let nics: Vec<_> = configs.into_iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(Domain::notifying(nics)?)
    }

    /// Opens a door.
    pub(crate) fn listen(&self, at: SocketAddr) -> anyhow::Result<TcpListener> {
        ensure!(
            at.ip().is_loopback() || self.secret.is_some(),
            "others than this machine reach {at}: give all of them the same --secret FILE"
        );
        TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))
    }

    /// The word by which each process is known.
    pub(crate) fn tokens(&self, processes: u8) -> anyhow::Result<Vec<Token>> {
        let secret = match &self.secret {
            Some(file) => std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
            None => Vec::new(),
        };
        let token = |p: u8| {
            let digest =
                Sha256::new().chain_update(b"mitra token").chain_update([p]).chain_update(&secret).finalize();
            std::array::from_fn(|i| digest[i])
        };
        Ok((0..processes).map(token).collect())
    }
}

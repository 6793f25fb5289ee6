//! Checks the writers. Only the process that holds the right may write, over the connection on
//! which the process took the right. Only the latest life of a process may write.

use std::collections::{BTreeMap, BTreeSet};

use mitra_consensus::{LegalChange, Permissions, ProcessId, Region};

use super::fabric::QpId;

/// The connections that a memory node has accepted, and the rights that it has granted.
#[derive(Debug)]
pub(super) struct Rights {
    regions: Vec<Region>,
    /// The rights of each region whose permissions can change.
    holders: Vec<Holder>,
    /// Per process, the memory node's end of its latest connection, and the incarnation.
    latest: BTreeMap<ProcessId, (QpId, u64)>,
    /// The incarnations that were accepted before another incarnation of the same process.
    superseded: BTreeSet<(ProcessId, u64)>,
    dialled: BTreeSet<(ProcessId, u64)>,
    /// The incarnations after which another incarnation of the same process dialled. The memory
    /// node has possibly recorded the later incarnation without accepting it.
    uncertain: BTreeSet<(ProcessId, u64)>,
    allow_restarts: bool,
}

/// The right to write a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// No change was confirmed yet. The initial writers have the right on their first connections.
    Initial,
    /// The last confirmed change gave the right to this connection, or to no connection.
    Taken(Option<QpId>),
}

impl Rights {
    pub(super) fn new(regions: &[Region], allow_restarts: bool) -> Rights {
        Rights {
            regions: regions.to_vec(),
            holders: vec![Holder::Initial; regions.len()],
            latest: BTreeMap::new(),
            superseded: BTreeSet::new(),
            dialled: BTreeSet::new(),
            uncertain: BTreeSet::new(),
            allow_restarts,
        }
    }

    /// Records that the memory node has accepted a process. Returns whether the memory node may do
    /// so.
    pub(super) fn accept(&mut self, p: ProcessId, incarnation: u64, qp: QpId) -> bool {
        self.dial(p, incarnation);
        self.uncertain.remove(&(p, incarnation));
        let before = self.latest.insert(p, (qp, incarnation));
        let is_restarted = before.is_some_and(|(_, other)| other != incarnation);
        if let Some((_, other)) = before.filter(|_| is_restarted) {
            self.superseded.insert((p, other));
        }
        if before.is_some() {
            self.forget_initial(Some(p));
        }
        (self.allow_restarts || !is_restarted) && !self.superseded.contains(&(p, incarnation))
    }

    pub(super) fn dial(&mut self, p: ProcessId, incarnation: u64) {
        if !self.superseded.contains(&(p, incarnation)) {
            let others = self.dialled.iter().filter(|&&(q, other)| q == p && other != incarnation);
            self.uncertain.extend(others);
            self.dialled.insert((p, incarnation));
        }
    }

    /// Returns whether the memory node may refuse a life because it knows a later life of the
    /// process.
    pub(super) fn may_be_superseded(&self, p: ProcessId, incarnation: u64) -> bool {
        self.superseded.contains(&(p, incarnation)) || self.uncertain.contains(&(p, incarnation))
    }

    /// Records that the memory node has restarted with its contents: no process holds a right that
    /// can be taken.
    pub(super) fn restart(&mut self) {
        self.forget_initial(None);
        self.holders.iter_mut().for_each(|holder| *holder = Holder::Taken(None));
    }

    /// Records that process `p` has lost its initial rights, or that all processes have if `p` is
    /// `None`.
    fn forget_initial(&mut self, p: Option<ProcessId>) {
        for (region, holder) in self.regions.iter_mut().zip(&self.holders) {
            if region.legal_change != LegalChange::Never && *holder == Holder::Initial {
                let write = &mut region.permissions.write;
                *write = p.map_or(mitra_consensus::ProcessSet::NONE, |p| write.without(p));
            }
        }
    }

    /// Records that the memory node has confirmed a change of permissions to the process whose
    /// connection is `qp`.
    pub(super) fn change(&mut self, p: ProcessId, qp: QpId, region: u8, permissions: Permissions) {
        let at = usize::from(region);
        if self.regions[at].legal_change != LegalChange::Never {
            self.holders[at] = Holder::Taken(permissions.write.contains(p).then_some(qp));
        }
    }

    /// Returns whether a write of process `p` by connection `qp` may be executed.
    pub(super) fn permits(&self, p: ProcessId, qp: QpId, region: u8) -> bool {
        let at = usize::from(region);
        let is_latest = self.latest.get(&p).is_some_and(|&(latest, _)| latest == qp);
        is_latest
            && match (self.holders[at], self.regions[at].legal_change) {
                (_, LegalChange::Never) | (Holder::Initial, _) => {
                    self.regions[at].permissions.write.contains(p)
                }
                (Holder::Taken(holder), _) => holder == Some(qp),
            }
    }
}

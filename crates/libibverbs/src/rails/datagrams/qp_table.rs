//! The numbers of the UD queue pairs of one device.

use std::collections::BTreeMap;

use mitra_verbs::Qpn;

use crate::rails::rendezvous::QpNumbers;

/// The maximum number of queue pairs of a device that are known.
pub(super) const MAX_QPS: usize = 1 << 12;

/// The number on a rail without a queue pair.
const NO_QPN: Qpn = Qpn::new(0);

/// The queue pairs of one device, by the number that programs know and by the number on a rail.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct QpTable {
    pub(super) qps: BTreeMap<Qpn, Vec<Qpn>>,
    pub(super) by_number: BTreeMap<(usize, Qpn), Qpn>,
}

impl QpTable {
    /// Adds a queue pair, or replaces its numbers. Evicts another queue pair if there are too many.
    pub(super) fn insert(&mut self, QpNumbers { qpn, on_rails }: QpNumbers) {
        if self.qps.get(&qpn) == Some(&on_rails) {
            return;
        }
        self.remove(qpn);
        if self.qps.len() >= MAX_QPS
            && let Some((&first, _)) = self.qps.first_key_value()
        {
            self.remove(first);
        }
        for (rail, &number) in on_rails.iter().enumerate().filter(|(_, number)| **number != NO_QPN) {
            self.by_number.insert((rail, number), qpn);
        }
        self.qps.insert(qpn, on_rails);
    }

    pub(super) fn remove(&mut self, qpn: Qpn) {
        for (rail, number) in self.qps.remove(&qpn).into_iter().flatten().enumerate() {
            if self.by_number.get(&(rail, number)) == Some(&qpn) {
                self.by_number.remove(&(rail, number));
            }
        }
    }

    pub(super) fn numbers(&self, qpn: Qpn) -> Option<QpNumbers> {
        self.qps.get(&qpn).map(|on_rails| QpNumbers { qpn, on_rails: on_rails.clone() })
    }
}

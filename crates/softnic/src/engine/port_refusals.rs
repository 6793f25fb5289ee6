//! A host sends an ICMP message "port unreachable" if none of its processes has the RoCE port open.
//! The NIC numbers these reports, and stores the number of each host's last report.

use std::collections::HashMap;
use std::net::IpAddr;

use mitra_verbs::Gid;

use crate::engine::Engine;
use crate::udp_socket::SocketError;

/// The maximum number of hosts, because forged reports may name any host. A further host replaces
/// the host with the oldest report.
const MAX_HOSTS: usize = 1024;
/// The largest number of entries that one call reads from the error queue. A remaining entry makes
/// the next call on the socket fail.
const MAX_ERRORS: usize = 64;

/// For each host, the number of the last report, counted over all hosts.
#[derive(Default)]
pub(crate) struct PortRefusals {
    total: u64,
    last: HashMap<Gid, u64>,
}

impl PortRefusals {
    fn record(&mut self, host: IpAddr) {
        let host = Gid::from(host);
        self.total += 1;
        if self.last.len() == MAX_HOSTS && !self.last.contains_key(&host) {
            let oldest = self.last.iter().min_by_key(|(_, number)| **number).map(|(host, _)| *host);
            oldest.and_then(|oldest| self.last.remove(&oldest));
        }
        self.last.insert(host, self.total);
    }

    /// Returns a number that changes with each report of `host`, or 0 if no report of `host` is
    /// stored.
    pub(crate) fn of(&self, host: Gid) -> u64 {
        self.last.get(&host).copied().unwrap_or(0)
    }
}

impl Engine {
    /// Reads the error queue of the NIC's socket. Returns whether the queue held an ICMP message:
    /// the caller may then repeat a send call that has failed. A NIC whose link is down by fault
    /// injection gets no messages.
    pub(crate) fn read_socket_errors(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let is_reached = self.faults.link_up() && self.faults.dma_ok();
        let mut has_icmp = false;
        for error in std::iter::from_fn(|| socket.take_error()).take(MAX_ERRORS) {
            has_icmp |= error != SocketError::Local;
            if let SocketError::PortRefused(host) = error
                && is_reached
            {
                self.driver_counters.rx_refusals += 1;
                self.port_refusals.record(host);
            }
        }
        has_icmp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: usize) -> IpAddr {
        IpAddr::from([10, 0, (n >> 8) as u8, n as u8])
    }

    #[test]
    fn number_changes_with_each_report_of_the_host() {
        let mut refusals = PortRefusals::default();
        assert_eq!(refusals.of(host(1).into()), 0);
        refusals.record(host(1));
        let first = refusals.of(host(1).into());
        refusals.record(host(2));
        assert_eq!(refusals.of(host(1).into()), first);
        refusals.record(host(1));
        assert!(refusals.of(host(1).into()) > first);
        assert_eq!(refusals.of(host(3).into()), 0);
    }

    #[test]
    fn table_is_bounded_and_forgets_the_oldest_host() {
        let mut refusals = PortRefusals::default();
        for n in 0..MAX_HOSTS {
            refusals.record(host(n));
        }
        refusals.record(host(0));
        let known = refusals.of(host(0).into());
        refusals.record(host(MAX_HOSTS));
        assert_eq!(refusals.last.len(), MAX_HOSTS);
        assert_eq!((refusals.of(host(0).into()), refusals.of(host(1).into())), (known, 0));
        refusals.record(host(1));
        assert_eq!(refusals.of(host(1).into()), refusals.total, "a number is never used again");
    }
}

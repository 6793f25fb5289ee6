//! Where the UD queue pairs of other devices can be reached, and the choice of a rail for each
//! datagram.
//!
//! The directory is a state machine without I/O. Times count from any fixed point. All tables are
//! bounded, and the directory learns evicted entries again.
//!
//! Before a device sends the first datagram to a queue pair of another device, it asks that device
//! for the numbers of the queue pair on all rails. The question also states the numbers of the
//! sending queue pair, so both ends know all numbers before a datagram uses them. While a program
//! sends, the device asks on all rails in short intervals, and so learns which rails answer. A
//! device whose ports change tells the other devices at once. A device that does not answer is
//! addressed on rail 0 only, as on a device with one rail.
//!
//! The first datagram waits for the answer, because rail 0 may be down at the receiver. Two cases
//! need no wait: the receiver has just sent a datagram on rail 0, or has left a question about
//! another of its queue pairs unanswered.

mod device_addresses;
mod due_messages;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use mitra_verbs::{Gid, Qpn};

use super::qp_table::{MAX_QPS, QpTable};
use crate::rails::rendezvous::{DeviceAddress, QpNumbers, RailMask, Reach, ReachKind};

/// The time for which the first datagram to a queue pair waits for an answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_millis(500);
/// The number of probes in a row without an answer after which another rail is preferred.
const MAX_MISSES: u32 = 10;
/// For this long after the last datagram to a device, the device is probed, and is told of changed
/// ports.
const IN_USE: Duration = Duration::from_secs(2);
/// For this long after a device's last message, a message from an unknown address cannot change the
/// device's addresses. A message from a known address of the device can change the others at any
/// time.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(3);
/// The number of messages that tell a device of a changed port. Messages may be lost.
const TELLS: u32 = 3;
const MAX_PEERS: usize = 1 << 10;
const MAX_DESTINATIONS: usize = 1 << 13;

const ANY_QPN: Qpn = Qpn::new(0);
const MAX_QPN: Qpn = Qpn::new(0xff_ffff);

/// The way of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Route {
    /// On this rail, to this address.
    To { rail: usize, gid: Gid, qpn: Qpn },
    /// Not yet known.
    Wait,
}

/// A message to send on a rail. `to` is the destination, or `None` for the multicast group of the
/// rendezvous.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Outgoing {
    pub(super) rail: usize,
    pub(super) to: Option<Gid>,
    pub(super) message: Reach,
}

/// A change of the rail that the datagrams to a device use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Move {
    pub(super) device: Gid,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Another device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Peer {
    address: DeviceAddress,
    /// The number of probes on each rail since the device's last message on that rail.
    misses: Vec<u32>,
    /// The rail that datagrams to the device use.
    current: usize,
    qps: QpTable,
    /// The queue pairs of this device whose numbers the other device has asked for, and so knows.
    told: BTreeSet<Qpn>,
    /// The time of its last message.
    heard: Duration,
    /// The time of the last datagram to it.
    sent: Option<Duration>,
    /// The time of its last question.
    asked: Option<Duration>,
    next_probe: Duration,
    tells_left: u32,
}

/// A queue pair to which the queue pair `own` of this device sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Destination {
    gid: Gid,
    qpn: Qpn,
    own: Qpn,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Resolution {
    /// The time of the first question.
    since: Duration,
    answer: Answer,
    next_ask: Duration,
    questions: u32,
    /// The time of the last datagram.
    used: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Answer {
    Awaited,
    /// The device answers, and has the queue pair.
    Found,
    /// The device does not answer, or has no such queue pair. Datagrams use rail 0.
    None,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Directory {
    pub(super) own: DeviceAddress,
    own_qps: QpTable,
    /// The other devices, by the GID that programs know.
    peers: BTreeMap<Gid, Peer>,
    /// The GIDs by which programs know the devices, by rail and address.
    by_address: BTreeMap<(usize, Gid), Gid>,
    /// The present GIDs of known devices, by the former GIDs that programs may use.
    renamed: BTreeMap<Gid, Gid>,
    destinations: BTreeMap<Destination, Resolution>,
    /// The GIDs of unknown devices from which datagrams have arrived on rail 0, each with the time
    /// of the last datagram.
    heard: BTreeMap<Gid, Duration>,
    /// The queue pairs that send to multicast groups on a rail other than rail 0, with the times of
    /// their next announcements.
    announced: BTreeMap<Qpn, Duration>,
    /// No message is due before this time.
    next_transmit: Duration,
    moves: Vec<Move>,
}

fn contains(mask: RailMask, rail: usize) -> bool {
    mask & 1 << rail != 0
}

impl Directory {
    /// Creates the directory of a device whose ports are all down.
    pub(super) fn new(gids: Vec<Gid>) -> Directory {
        Directory {
            own: DeviceAddress::new(gids, 0),
            own_qps: QpTable::default(),
            peers: BTreeMap::new(),
            by_address: BTreeMap::new(),
            renamed: BTreeMap::new(),
            destinations: BTreeMap::new(),
            heard: BTreeMap::new(),
            announced: BTreeMap::new(),
            next_transmit: Duration::ZERO,
            moves: Vec::new(),
        }
    }

    /// Returns the GID by which programs know this device.
    pub(super) fn own_gid(&self) -> Gid {
        self.own.gids[0]
    }

    pub(super) fn add_qp(&mut self, numbers: QpNumbers) {
        self.own_qps.insert(numbers);
    }

    /// Returns whether a question about this queue pair is one about this device: whether it has
    /// the queue pair, or the question is about none.
    pub(super) fn may_answer_for(&self, qpn: Qpn) -> bool {
        qpn == ANY_QPN || self.own_qps.qps.contains_key(&qpn)
    }

    pub(super) fn remove_qp(&mut self, qpn: Qpn) {
        self.own_qps.remove(qpn);
        self.announced.remove(&qpn);
        self.peers.values_mut().for_each(|peer| _ = peer.told.remove(&qpn));
        self.destinations.retain(|destination, _| destination.own != qpn);
    }

    /// Sets the rails whose ports are up at this device, and tells other devices of a change.
    pub(super) fn set_up(&mut self, now: Duration, up: RailMask) {
        if self.own.up == up {
            return;
        }
        self.own.up = up;
        self.tell(now);
    }

    /// Sets the GIDs of this device, and tells other devices of a change.
    pub(super) fn set_gids(&mut self, now: Duration, gids: &[Gid]) {
        if self.own.gids != gids {
            self.own.set_gids(gids.to_vec());
            self.tell(now);
        }
    }

    /// Schedules messages that state where this device can be reached. They go to the devices to
    /// which this device has recently sent datagrams, and to the devices that have recently asked
    /// it.
    fn tell(&mut self, now: Duration) {
        for peer in self.peers.values_mut().filter(|peer| peer.is_in_use(now) || is_recent(peer.asked, now)) {
            (peer.tells_left, peer.next_probe) = (TELLS, now);
        }
        self.next_transmit = now;
    }

    /// Returns the present GID of the device that a program knows by `gid`.
    fn present(&self, gid: Gid) -> Gid {
        self.renamed.get(&gid).copied().unwrap_or(gid)
    }

    /// Returns the changes of rails since the last call.
    pub(super) fn take_moves(&mut self) -> Vec<Move> {
        std::mem::take(&mut self.moves)
    }

    /// Handles a message that has arrived on `rail` from the address `from`, and returns the
    /// answer. Ignores a message that does not state `from` as the sender's address on `rail`.
    pub(super) fn handle(
        &mut self,
        now: Duration,
        rail: usize,
        from: Gid,
        message: Reach,
    ) -> Option<Outgoing> {
        let Reach { kind, device, qp } = message;
        let gid = device.gids[0];
        if device.gids.get(rail) != Some(&from) || gid == self.own_gid() || !self.accept(now, rail, device) {
            return None;
        }
        let peer = self.peers.get_mut(&gid)?;
        let found = qp.as_ref().map(|qp| qp.qpn);
        if let Some(qp) = qp {
            peer.qps.insert(qp);
        }
        match kind {
            ReachKind::Ask { device, qpn } if self.own.device.includes(device) => {
                peer.asked = Some(now);
                let qp = self.own_qps.numbers(qpn);
                if peer.told.len() >= MAX_QPS {
                    peer.told.pop_first();
                }
                peer.told.extend(qp.as_ref().map(|qp| qp.qpn));
                let message = Reach { kind: ReachKind::Answer { qpn }, device: self.own.clone(), qp };
                Some(Outgoing { rail, to: Some(from), message })
            }
            ReachKind::Answer { qpn } => {
                let answer = if found == Some(qpn) { Answer::Found } else { Answer::None };
                let names =
                    self.renamed.iter().filter(|(_, present)| **present == gid).map(|(former, _)| *former);
                for gid in names.chain([gid]) {
                    let of = |own| Destination { gid, qpn, own };
                    let range = of(ANY_QPN)..=of(MAX_QPN);
                    self.destinations.range_mut(range).for_each(|(_, resolution)| resolution.answer = answer);
                }
                None
            }
            ReachKind::Ask { .. } | ReachKind::Tell => None,
        }
    }

    /// Returns the way of a datagram from the queue pair `own` to the GID and the number that the
    /// program knows.
    pub(super) fn route(&mut self, now: Duration, own: Qpn, gid: Gid, qpn: Qpn) -> Route {
        if self.own.device.includes(gid) && !self.peers.contains_key(&gid) {
            let as_addressed = Route::To { rail: 0, gid: self.own_gid(), qpn };
            let Some(on_rails) = self.own_qps.qps.get(&qpn) else { return as_addressed };
            let is_good = |rail: &usize| contains(self.own.up, *rail) && on_rails[*rail] != ANY_QPN;
            let rail = (0..on_rails.len()).find(is_good).unwrap_or(0);
            return Route::To { rail, gid: self.own.gids[rail], qpn: on_rails[rail] };
        }
        let destination = Destination { gid, qpn, own };
        let gid = self.present(gid);
        let as_addressed = Route::To { rail: 0, gid, qpn };
        if !self.destinations.contains_key(&destination) {
            self.make_room(now);
            // If the destination has asked for `own`, both ends know both queue pairs, and the
            // datagram need not wait.
            let is_known = |peer: &Peer| peer.qps.qps.contains_key(&qpn) && peer.told.contains(&own);
            let answer = match self.peers.get(&gid) {
                Some(peer) if is_known(peer) => Answer::Found,
                None if self.is_silent(destination.gid) => Answer::None,
                _ => Answer::Awaited,
            };
            let resolution = Resolution { since: now, answer, next_ask: now, questions: 0, used: now };
            self.destinations.insert(destination, resolution);
            self.next_transmit = now;
        }
        let Some(resolution) = self.destinations.get_mut(&destination) else { return as_addressed };
        if now > resolution.used + IN_USE {
            // The answer may be out of date, and the next question is due.
            self.next_transmit = now;
        }
        resolution.used = now;
        if resolution.answer == Answer::Awaited {
            if now < resolution.since + ANSWER_WAIT {
                // A device whose datagram has just arrived on rail 0 is reached there, whether it
                // answers the question or not.
                let is_heard = contains(self.own.up, 0) && is_recent(self.heard.get(&gid).copied(), now);
                return if is_heard { as_addressed } else { Route::Wait };
            }
            resolution.answer = Answer::None;
        }
        let Some(peer) = self.peers.get_mut(&gid) else { return as_addressed };
        if !peer.is_in_use(now) {
            peer.misses.fill(0);
        }
        peer.sent = Some(now);
        let Some(on_rails) = peer.qps.qps.get(&qpn).filter(|_| resolution.answer == Answer::Found) else {
            return as_addressed;
        };
        let rails = self.own.gids.len().min(on_rails.len());
        let is_up = |rail: usize| contains(self.own.up & peer.address.up, rail) && on_rails[rail] != ANY_QPN;
        let is_good = |rail: usize| is_up(rail) && peer.misses[rail] < MAX_MISSES;
        let from = peer.current.min(rails - 1);
        let to = if is_good(from) {
            from
        } else {
            let other = (0..rails).find(|rail| is_good(*rail));
            // If no rail answers, the device may merely be slow. Its datagrams then leave the
            // present rail only if this rail is down.
            other.or_else(|| (0..rails).find(|rail| is_up(*rail) && !is_up(from))).unwrap_or(from)
        };
        // Another process at the same address may have fewer rails.
        let to = to.min(rails.saturating_sub(1));
        if to != from {
            self.moves.push(Move { device: gid, from, to });
        }
        peer.current = to;
        Route::To { rail: to, gid: peer.address.gids[to], qpn: on_rails[to] }
    }

    /// Returns whether an unknown device has not answered a question about one of its queue pairs.
    fn is_silent(&self, gid: Gid) -> bool {
        self.destinations_at(gid).any(|resolution| resolution.answer == Answer::None)
    }

    fn destinations_at(&self, gid: Gid) -> impl Iterator<Item = &Resolution> {
        let of = |number| Destination { gid, qpn: number, own: number };
        self.destinations.range(of(ANY_QPN)..=of(MAX_QPN)).map(|(_, resolution)| resolution)
    }

    /// Evicts a destination if there are too many.
    fn make_room(&mut self, now: Duration) {
        if self.destinations.len() >= MAX_DESTINATIONS {
            self.destinations.retain(|_, resolution| now <= resolution.used + IN_USE);
        }
        if self.destinations.len() >= MAX_DESTINATIONS {
            self.destinations.pop_first();
        }
    }

    /// Returns the rail on which one of this device's queue pairs sends to multicast groups, and
    /// whether an announcement of the queue pair is due before the datagram.
    pub(super) fn multicast_rail(&mut self, now: Duration, own: Qpn) -> (usize, bool) {
        let rail = self.own.first_up();
        let is_new = rail > 0 && !self.announced.contains_key(&own);
        if is_new {
            self.announced.insert(own, now);
            self.next_transmit = now;
        }
        (rail, is_new)
    }

    /// Returns whether `gid` is the address on rail 0 of this device or of a known device.
    pub(super) fn is_known(&self, gid: Gid) -> bool {
        gid == self.own_gid() || self.by_address.contains_key(&(0, gid))
    }

    /// Returns the GID and the number by which programs know the sender of a datagram that has
    /// arrived on `rail`. Returns `None` if the sender is unknown, or if the sender has this
    /// address on another rail: a multicast datagram may also arrive on a rail on which it was not
    /// sent.
    pub(super) fn identify(&mut self, now: Duration, rail: usize, gid: Gid, qpn: Qpn) -> Option<(Gid, Qpn)> {
        if rail == 0 {
            if self.is_known(gid) {
                return Some((gid, qpn));
            }
            let is_of_other =
                |rail: usize| self.own.gids[rail] == gid || self.by_address.contains_key(&(rail, gid));
            if (1..self.own.gids.len()).any(is_of_other) {
                return None;
            }
            if self.heard.len() >= MAX_PEERS && !self.heard.contains_key(&gid) {
                self.heard.pop_first();
            }
            self.heard.insert(gid, now);
            return Some((gid, qpn));
        }
        let (device, qps) = if self.own.gids.get(rail) == Some(&gid) {
            (self.own_gid(), &self.own_qps)
        } else {
            let device = *self.by_address.get(&(rail, gid))?;
            (device, &self.peers.get(&device)?.qps)
        };
        qps.by_number.get(&(rail, qpn)).map(|qpn| (device, *qpn))
    }
}

impl Peer {
    /// Returns whether the device is known to have an address on a rail.
    fn is_at(&self, (rail, gid): (usize, Gid)) -> bool {
        self.address.gids.get(rail) == Some(&gid)
    }

    /// Returns whether the device has one of these addresses on the same rail.
    fn shares_rail(&self, address: &DeviceAddress) -> bool {
        self.address.gids.iter().zip(&address.gids).any(|(own, other)| own == other)
    }

    /// Returns whether the device was heard recently.
    fn is_alive(&self, now: Duration) -> bool {
        now < self.heard + ADDRESS_LIFETIME
    }

    fn is_in_use(&self, now: Duration) -> bool {
        is_recent(self.sent, now)
    }
}

fn is_recent(time: Option<Duration>, now: Duration) -> bool {
    time.is_some_and(|time| now <= time + IN_USE)
}

pub(super) fn is_multicast(gid: Gid) -> bool {
    IpAddr::from(gid).is_multicast()
}

#[cfg(test)]
mod tests;

//! NICs whose own thread gets no processor. Such a NIC works when a program calls it, as a software
//! NIC does.

use mitra_verbs::Time;

use crate::absences::Part;
use crate::nic::Starvation;
use crate::timeline::{NoteKind, Subject};
use crate::world_state::{Event, WorldState};

impl WorldState {
    pub(crate) fn starve(&mut self, n: usize, until: Time) {
        let nic = &mut self.nics[n];
        if !nic.is_running() {
            return;
        }
        nic.starvations += 1;
        let number = nic.starvations;
        match &mut nic.starvation {
            Some(starvation) => starvation.number = number,
            starvation => {
                *starvation = Some(Starvation { number, unread: Default::default(), may_transmit: false });
            }
        }
        self.absences.set(self.now, Part::Starved(n), true);
        self.trace.note(self.now, Subject::Nic(n), NoteKind::Fault, "is starved".to_owned());
        self.queue.push(until.max(self.now), Event::StarvationEnd(n, number));
    }

    pub(crate) fn end_starvation(&mut self, n: usize) {
        if self.nics[n].starvation.is_none() {
            return;
        }
        self.read_packets(n);
        self.nics[n].starvation = None;
        self.absences.set(self.now, Part::Starved(n), false);
        self.trace.note(self.now, Subject::Nic(n), NoteKind::Recovery, "runs again".to_owned());
        if self.nics[n].is_running() {
            self.ring_doorbell(n);
            self.schedule_idle_poll(n);
            self.reschedule(n);
        }
    }

    /// Lets a starved NIC work for a call: it reads the packets that have arrived, handles its due
    /// timer, and may transmit.
    pub(crate) fn drive_starved(&mut self, n: usize) {
        let now = self.now;
        let Some(starvation) = &mut self.nics[n].starvation else { return };
        starvation.may_transmit = true;
        self.read_packets(n);
        let nic = &mut self.nics[n];
        let local = nic.local(now);
        if nic.is_running() && nic.nic.poll_timeout().is_some_and(|t| t <= local) {
            nic.nic.handle_timeout(local);
        }
        self.ring_doorbell(n);
        self.reschedule(n);
    }

    fn read_packets(&mut self, n: usize) {
        let unread =
            self.nics[n].starvation.as_mut().map(|starvation| std::mem::take(&mut starvation.unread));
        for packet in unread.into_iter().flatten() {
            self.in_flight -= 1;
            self.read(n, packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::Arc;

    use mitra_verbs::{Provider, Time};

    use crate::workload::{OpKind, Plan, RcOptions, WorkloadPeer, connect_rc, verify};
    use crate::{Config, Testbed, World};

    /// Less than the time in which the requester gives up.
    const STARVED: Duration = Duration::from_millis(1);

    /// Runs 20 operations to a NIC that is starved for 1 ms. Returns the time that they took.
    fn time_of_operations(is_called: bool) -> Duration {
        let mut testbed = Testbed::with_config(3, Config::fault_free(), 1);
        let plan = Plan::new(3, 20).only(&[OpKind::Write, OpKind::FetchAdd, OpKind::Read]);
        let none = Plan { tag: 2, ..Plan::new(3, 0) };
        let mut peers = [WorkloadPeer::new(&plan, &none), WorkloadPeer::new(&none, &plan)];
        let nics = testbed.nics.each_ref().map(|rails| Arc::clone(&rails[0]) as Arc<dyn Provider>);
        let [mut a, mut b] = connect_rc(nics, peers.each_mut(), &RcOptions::default()).unwrap();
        let [requester, responder] = &mut peers;
        let until = testbed.world.now() + STARVED;
        testbed.world.starve(testbed.nics[1][0].id(), until);
        let begin = testbed.world.now();
        let done = |world: &World| {
            if is_called || world.now() > until {
                responder.step(&mut b);
            }
            requester.step(&mut a);
            requester.is_done()
        };
        testbed.world.run_until(done, Duration::from_secs(1)).unwrap();
        let took = testbed.world.now().saturating_since(begin);
        testbed.world.run_for(Duration::from_millis(10));
        responder.step(&mut b);
        responder.sweep();
        requester.sweep();
        let verdict = verify(&plan, requester.requester_log(), responder.responder_log());
        assert!(verdict.is_complete(), "{verdict}");
        assert!(testbed.world.is_quiet());
        took
    }

    #[test]
    fn starved_nic_works_only_when_it_is_called() {
        let [alone, called] = [false, true].map(time_of_operations);
        assert!(alone > STARVED && called < STARVED, "{alone:?} {called:?}");
    }

    #[test]
    fn heal_ends_a_starvation() {
        let mut testbed = Testbed::with_config(3, Config::fault_free(), 1);
        let nic = testbed.nics[1][0].id();
        testbed.world.starve(nic, Time::ZERO + Duration::from_secs(1));
        testbed.world.starve(nic, Time::ZERO + Duration::from_secs(2)); // it lasts longer now
        let isolation = |world: &World| world.longest_isolation(testbed.hosts, Duration::ZERO);
        testbed.world.run_for(Duration::from_millis(1500));
        assert_eq!(isolation(&testbed.world), Duration::MAX);
        testbed.world.heal();
        testbed.world.run_for(Duration::from_millis(1500));
        assert_eq!(isolation(&testbed.world), Duration::from_millis(1500));
    }
}

//! Injects the faults of a schedule into the world.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;

use super::fault_schedule::{Fault, LONGEST_BLINK, Rail};
use super::{End, FailoverWorld};
use mitra_sim::workload::FailoverQp;
use mitra_sim::{Failure, HostId, NicId, Noise, World};

/// How long before the end of a nap a NIC of the sleeping host fails.
const BEFORE_WAKING: Duration = Duration::from_micros(50);

/// The parts of a world that a fault affects when it happens.
struct Target<Q> {
    hosts: [HostId; 2],
    nics: [Vec<NicId>; 2],
    /// The ends of the first connection.
    ends: [Rc<RefCell<End<Q>>>; 2],
    spared_rail: Option<usize>,
}

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    pub(super) fn inject_faults(&mut self, hosts: [HostId; 2]) {
        let target = Rc::new(Target {
            hosts,
            nics: self.nics.each_ref().map(|nics| nics.iter().map(|nic| nic.id()).collect()),
            ends: self.connections[0].clone(),
            spared_rail: self.schedule.spared_rail,
        });
        for &(at, fault) in &self.schedule.faults {
            let (target, count) = (Rc::clone(&target), Rc::clone(&self.faults));
            self.world.after(at, move |world| {
                if target.inject(world, fault) {
                    count.set(count.get() + 1);
                }
            });
        }
    }

    /// Stops all faults. Dead and hung NICs stay dead and hung.
    pub(super) fn stop_faults(&mut self) {
        self.world.heal();
        for nic in self.nics.iter().flatten() {
            self.world.faults(nic.id(), |faults| faults.disarm_all());
        }
        self.world.disarm_stages();
    }
}

impl<Q: FailoverQp + 'static> Target<Q> {
    /// Injects a fault. Returns false if the fault would hit the spared rail.
    fn inject(self: &Rc<Self>, world: &mut World, fault: Fault) -> bool {
        match fault {
            Fault::Link { rail, end, down } => {
                let number = self.number(rail, end);
                let down = match Some(number) == self.spared_rail {
                    true => Some(down.unwrap_or(LONGEST_BLINK).min(LONGEST_BLINK)),
                    false => down,
                };
                let nic = self.nics[end][number];
                world.set_link(nic, false);
                if let Some(down) = down {
                    world.after(down, move |world| world.set_link(nic, true));
                }
                true
            }
            Fault::Nic { rail, end, failure } => self.fail(world, rail, end, failure),
            Fault::OneWay { rail, end, sends, time, drop_ppm } => {
                let Some(nic) = self.unspared(rail, end) else { return false };
                let set = move |world: &mut World, drop_ppm| {
                    let noise = Noise { drop_ppm, ..Noise::default() };
                    world.faults(nic, |faults| match sends {
                        true => faults.set_noise_tx(noise),
                        false => faults.set_noise_rx(noise),
                    });
                };
                set(world, drop_ppm);
                world.after(time, move |world| set(world, 0));
                true
            }
            Fault::Address { rail, end } => {
                self.unspared(rail, end).inspect(|&nic| world.change_address(nic)).is_some()
            }
            Fault::Nap { end, time, then } => {
                let until = world.now() + time;
                world.pause(self.hosts[end], Some(until));
                if let Some((rail, failure)) = then {
                    let target = Rc::clone(self);
                    world.after(time.saturating_sub(BEFORE_WAKING), move |world| {
                        target.fail(world, rail, end, failure);
                    });
                }
                true
            }
            Fault::AtStage { rail, observer, stage, operation, nth, target, failure, hold } => {
                let Some(observer) = self.unspared(rail, observer) else { return false };
                let Some(nic) = self.unspared(rail, target) else { return false };
                world.fail_operation_at_stage(observer, stage, operation, nth, &[(nic, failure)], hold);
                true
            }
            Fault::AtPacket { rail, end, kind, arriving, nth, fate, then } => {
                let number = self.number(rail, end);
                // On the spared rail, the packet may be lost, but no NIC or link may fail. `rail`
                // may mean the active rail, which is known only now.
                let then = then.filter(|_| Some(number) != self.spared_rail);
                let targets: Vec<_> =
                    then.iter().map(|&(end, failure)| (self.nics[end][number], failure)).collect();
                world.fail_at_packet(self.nics[end][number], kind, arriving, nth, fate, &targets);
                true
            }
            Fault::InRecovery { first, end, nth, second, target, failure } => {
                let Some(nic) = self.unspared(second, target) else { return false };
                let down = Some(LONGEST_BLINK);
                self.inject(world, Fault::Link { rail: first, end, down });
                world.fail_at_call(self.hosts[end], nth, &[(nic, failure)]);
                true
            }
            Fault::AtPoint { point, nth, rail, target, failure } => {
                let Some(nic) = self.unspared(rail, target) else { return false };
                for host in self.hosts {
                    world.fail_at_point(host, point, nth, &[(nic, failure)]);
                }
                true
            }
            Fault::Leave { end, abruptly } => {
                self.ends[end].borrow_mut().endpoint.leave(abruptly);
                true
            }
        }
    }

    fn fail(&self, world: &mut World, rail: Rail, end: usize, failure: Failure) -> bool {
        let nic = self.unspared(rail, end);
        nic.inspect(|&nic| world.fail(nic, failure)).is_some()
    }

    fn number(&self, rail: Rail, end: usize) -> usize {
        match rail {
            Rail::Number(number) => number,
            Rail::Active => self.ends[end].borrow().endpoint.qp.active_rail(),
        }
    }

    /// Returns the NIC of an end on a rail. `None` on the spared rail.
    fn unspared(&self, rail: Rail, end: usize) -> Option<NicId> {
        let number = self.number(rail, end);
        (Some(number) != self.spared_rail).then(|| self.nics[end][number])
    }
}

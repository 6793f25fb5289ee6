//! The state of a port that changes, as a NIC's watch thread notices it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_hardnic::HardNic;
use mitra_verbs::{AsyncEvent, Mtu, PortState, Provider};

use crate::devices::Devices;
use crate::link_faults::{Fault, set_mtu};

const REPEATS: usize = 5;
/// The time that the program that makes a link fail has to start.
const PREPARATION: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(5);

type Test = fn(&HardNic) -> Result<(), Failed>;

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let tests: [(&str, Test); 3] = [
        ("link_down_is_noticed", |nic| loss_is_noticed(nic, Fault::LinkDown)),
        ("removed_address_is_noticed", |nic| loss_is_noticed(nic, Fault::AddressRemoved)),
        ("changed_mtu_is_noticed", changed_mtu_is_noticed),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            let devices = devices.cloned();
            Trial::test(format!("watch::{name}"), move || run(&*devices.ok_or("no devices")?, test))
        })
        .collect()
}

fn run(devices: &Devices, test: Test) -> Result<(), Failed> {
    if !devices.are_rxe() || devices.rails().len() < 2 {
        println!("needs the links of the emulated machine, which can be made to fail");
        return Ok(());
    }
    test(&devices.nics()[0])
}

fn loss_is_noticed(nic: &HardNic, fault: Fault) -> Result<(), Failed> {
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let injection = fault.prepare(0);
        thread::sleep(PREPARATION);
        down.push(noticed(nic, PortState::Down, || injection.inject())?);
        up.push(noticed(nic, PortState::Active, || fault.heal(0))?);
    }
    println!("{fault:?}: noticed after {down:.1?}, and the repair after {up:.1?}");
    Ok(())
}

/// soft-RoCE takes the interface's MTU over, and raises no event. Only the kernel's announcement of
/// the change tells of it.
fn changed_mtu_is_noticed(nic: &HardNic) -> Result<(), Failed> {
    let mut times = Vec::new();
    for (bytes, mtu) in [(1500, Mtu::M1024), (4200, Mtu::M4096)].repeat(REPEATS) {
        let generation = nic.generation();
        set_mtu(0, bytes);
        let begin = Instant::now();
        while nic.query_port()?.max_mtu != mtu || nic.generation() == generation {
            if begin.elapsed() > TIMEOUT {
                return Err(format!("the MTU is {:?} after {TIMEOUT:?}", nic.query_port()?.max_mtu).into());
            }
            thread::sleep(Duration::from_micros(200));
        }
        times.push(begin.elapsed());
    }
    println!("changed MTU: noticed after {times:.1?}");
    Ok(())
}

/// Changes a port, and returns the time until the NIC says so. The time begins before the commands
/// that make the change.
fn noticed(nic: &HardNic, state: PortState, change: impl FnOnce() + Send) -> Result<Duration, Failed> {
    while nic.poll_async_event().is_some() {}
    let (generation, begin) = (nic.generation(), Instant::now());
    let elapsed = thread::scope(|scope| {
        scope.spawn(change);
        while nic.query_port().is_ok_and(|port| port.state != state) {
            if begin.elapsed() > TIMEOUT {
                return Err(format!("the port is not {state:?} after {TIMEOUT:?}"));
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(begin.elapsed())
    })?;
    // The event is behind the state.
    let event = if state == PortState::Active { AsyncEvent::PortActive } else { AsyncEvent::PortError };
    while nic.poll_async_event() != Some(event) {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("no {event:?} after {TIMEOUT:?}").into());
        }
        thread::sleep(Duration::from_micros(200));
    }
    if nic.generation() == generation {
        return Err("the generation is the same".into());
    }
    Ok(elapsed)
}

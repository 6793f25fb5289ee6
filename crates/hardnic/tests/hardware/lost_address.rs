//! A NIC whose interface loses its address, as when a link goes down or an administrator changes
//! it. The address comes back at another index of the device's table.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_hardnic::HardNic;
use mitra_qualify::QualificationStore;
use mitra_verbs::{
    AhId, Data, PortState, Provider, Psn, QpAttr, QpState, QpType, RecvWr, SendOp, SendWr, UdDestination,
    WcStatus,
};

use crate::devices::Devices;
use crate::ends::{End, FIRST_PSN, TIMEOUT};
use crate::link_faults::Fault;

const QKEY: u32 = 0x1111_1111;
/// The GRH, and a message of 8 bytes.
const DATAGRAM: u32 = 40 + 8;
/// The time that the program that removes the address has to start.
const PREPARATION: Duration = Duration::from_millis(400);

type Test = fn(&HardNic, &HardNic) -> Result<(), Failed>;

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let tests: [(&str, Test); 2] = [
        ("handle_of_datagrams_follows_the_address", handle_of_datagrams_follows_the_address),
        ("peer_that_is_not_reached_is_connected", peer_that_is_not_reached_is_connected),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            let devices = devices.cloned();
            Trial::test(format!("lost_address::{name}"), move || run(&*devices.ok_or("no devices")?, test))
        })
        .collect()
}

fn run(devices: &Devices, test: Test) -> Result<(), Failed> {
    if !devices.are_rxe() || devices.rails().len() < 2 {
        println!("needs the links of the emulated machine, which can be made to fail");
        return Ok(());
    }
    // NICs of their own, since one of them is told to connect to peers that are not reached.
    let store = QualificationStore::load(Path::new("/nonexistent"))?;
    let [first, second] = devices.pair();
    let (nic, peer) = (HardNic::open_qualified(first, &store)?, HardNic::open_qualified(second, &store)?);
    let result = test(&nic, &peer);
    Fault::AddressRemoved.heal(0);
    await_port(&nic, PortState::Active)?;
    result
}

fn await_port(nic: &HardNic, state: PortState) -> Result<(), Failed> {
    let begin = Instant::now();
    while nic.query_port()?.state != state {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("the port is not {state:?} after {TIMEOUT:?}").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn remove_address(nic: &HardNic) -> Result<(), Failed> {
    let injection = Fault::AddressRemoved.prepare(0);
    thread::sleep(PREPARATION);
    injection.inject();
    await_port(nic, PortState::Down)
}

fn restore_address(nic: &HardNic) -> Result<(), Failed> {
    Fault::AddressRemoved.heal(0);
    await_port(nic, PortState::Active)
}

/// Returns a datagram queue pair in RTS, with receives.
fn socket(nic: &HardNic) -> Result<End<'_>, Failed> {
    let end = End::of_type(QpType::Ud, nic, 256)?;
    let init = QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
    let rts = QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) };
    for attr in [init, QpAttr::to(QpState::Rtr), rts] {
        nic.modify_qp(end.qp, &attr)?;
    }
    for _ in 0..16 {
        let receive = RecvWr::new(0, end.mr.sge(64, DATAGRAM));
        nic.post_recv(end.qp, &[receive]).map_err(|refused| refused.error)?;
    }
    Ok(end)
}

/// Sends datagrams until one has arrived.
fn send_until_one_arrives(from: &End<'_>, to: &End<'_>, ah: AhId) -> Result<(), Failed> {
    let begin = Instant::now();
    let mut polled = Vec::new();
    while begin.elapsed() < TIMEOUT {
        let destination = UdDestination { ah, qpn: to.qp, qkey: QKEY };
        let send = SendWr::new(0, SendOp::Send, Data::sge(from.mr.sge(0, 8))).to(destination);
        // A datagram to a peer that is not reached is refused, as one on a dead path is lost.
        if from.nic.post_send(from.qp, &[send]).is_ok() {
            assert_eq!(from.completions(1)?[0].status, WcStatus::Success);
        }
        thread::sleep(Duration::from_millis(10));
        if to.nic.poll_cq(to.cq, 16, &mut polled)? > 0 {
            return Ok(());
        }
    }
    Err(format!("no datagram has arrived after {TIMEOUT:?}").into())
}

fn handle_of_datagrams_follows_the_address(nic: &HardNic, peer: &HardNic) -> Result<(), Failed> {
    let (from, to) = (socket(nic)?, socket(peer)?);
    let ah = nic.create_ah(from.pd, peer.query_port()?.gid)?;
    send_until_one_arrives(&from, &to, ah)?;
    remove_address(nic)?;
    restore_address(nic)?;
    send_until_one_arrives(&from, &to, ah)?;
    // A handle that was made while there was no address.
    nic.connect_unreached_peers();
    remove_address(nic)?;
    let late = nic.create_ah(from.pd, peer.query_port()?.gid)?;
    restore_address(nic)?;
    send_until_one_arrives(&from, &to, late)?;
    nic.destroy_ah(ah)?;
    nic.destroy_ah(late)?;
    from.destroy()?;
    Ok(to.destroy()?)
}

/// Its requests fail as on a path that loses them. After a reset, the queue pair connects again.
fn peer_that_is_not_reached_is_connected(nic: &HardNic, peer: &HardNic) -> Result<(), Failed> {
    let (from, to) = (End::new(nic, 4096)?, End::new(peer, 4096)?);
    to.connect(&from)?;
    remove_address(nic)?;
    assert!(from.connect(&to).is_err(), "the kernel refuses the change to RTR");
    nic.modify_qp(from.qp, &QpAttr::to(QpState::Reset))?;
    nic.connect_unreached_peers();
    from.connect(&to)?;
    let status = nic.query_qp(from.qp)?;
    assert_eq!((status.state, status.rq_psn, status.sq_psn), (QpState::Rts, FIRST_PSN, FIRST_PSN));
    let write = || SendWr::new(0, SendOp::Write(to.remote()), Data::sge(from.mr.sge(0, 8)));
    let post = || nic.post_send(from.qp, &[write(), write()]).map_err(|refused| refused.error);
    post()?;
    let statuses: Vec<_> = from.completions(2)?.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExceeded, WcStatus::Flushed]);
    restore_address(nic)?;
    nic.modify_qp(from.qp, &QpAttr::to(QpState::Reset))?;
    from.connect(&to)?;
    post()?;
    assert!(from.completions(2)?.iter().all(|wc| wc.status == WcStatus::Success));
    from.destroy()?;
    Ok(to.destroy()?)
}

//! Faults on demand: a NIC whose link is held down, while its device's own link stays up.

mod datagrams;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_hardnic::HardNic;
use mitra_qualify::QualificationStore;
use mitra_verbs::fault::{Failure, FaultKind, FaultSwitch};
use mitra_verbs::{
    AsyncEvent, Data, Error, Nic, PortState, Provider, QpAttr, QpState, QpType, RecvWr, SendOp, SendWr, Wc,
    WcStatus,
};

use crate::devices::Devices;
use crate::ends::{End, FIRST_PSN, TIMEOUT, WINDOW, WRITE, bytes_of, fill, stream};

/// The WRITEs that complete before the fault.
const BEFORE: u64 = 16;
/// The packet that the device had begun to execute is executed in this time.
const SETTLE_TIME: Duration = Duration::from_millis(10);
/// For this time after that, nothing may arrive.
const QUIET_TIME: Duration = Duration::from_millis(20);

type Test = fn(&[Arc<HardNic>; 2]) -> Result<(), Failed>;

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let tests: [(&str, Test); 8] = [
        ("requester_without_link_fails", |nics| stream_is_cut(nics, QpType::Rc, 0)),
        ("responder_without_link_receives_nothing", |nics| stream_is_cut(nics, QpType::Rc, 1)),
        ("unreliable_requester_without_link_fails", |nics| stream_is_cut(nics, QpType::Uc, 0)),
        ("unreliable_responder_without_link_receives_nothing", |nics| stream_is_cut(nics, QpType::Uc, 1)),
        ("connection_made_without_link_fails", connection_made_without_link_fails),
        ("datagrams_of_a_nic_without_link_are_lost", datagrams::are_lost_without_link),
        ("dead_nic_stays_dead", dead_nic_stays_dead),
        ("other_faults_are_refused", other_faults_are_refused),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            let devices = devices.cloned();
            Trial::test(format!("faults::{name}"), move || {
                let devices = devices.ok_or("no devices")?;
                let begin = Instant::now();
                // NICs of their own, since the faults of a test that fails stay.
                let store = QualificationStore::load(Path::new("/nonexistent"))?;
                let [first, second] = devices.pair();
                let nic = HardNic::open_qualified(first, &store)?;
                let peer = match first == second {
                    true => Arc::clone(&nic),
                    false => HardNic::open_qualified(second, &store)?,
                };
                test(&[nic, peer])?;
                println!("faults::{name}: {:.2?}", begin.elapsed());
                Ok(())
            })
        })
        .collect()
}

fn switch(nic: &HardNic) -> &dyn FaultSwitch {
    nic.fault_switch().expect("NICs of the kernel fail on demand")
}

/// Takes the link of one end down while WRITEs arrive from the first NIC at the second.
fn stream_is_cut(nics: &[Arc<HardNic>; 2], qp_type: QpType, cut: usize) -> Result<(), Failed> {
    if Arc::ptr_eq(&nics[0], &nics[1]) {
        println!("needs two devices");
        return Ok(());
    }
    let requester = End::of_type(qp_type, &nics[0], WINDOW as usize * WRITE as usize)?;
    let responder = End::of_type(qp_type, &nics[1], WRITE as usize)?;
    requester.connect(&responder)?;
    responder.connect(&requester)?;
    fill(&requester);
    let (completed, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let generation = nics[cut].generation();
    let failed = thread::scope(|scope| {
        let streaming = scope.spawn(|| stream(&requester, responder.remote(), &completed, &is_over));
        while completed.load(Ordering::Acquire) < BEFORE && !streaming.is_finished() {
            thread::yield_now();
        }
        switch(&nics[cut]).fail(Failure::LinkDown);
        thread::sleep(SETTLE_TIME);
        let memory = bytes_of(&responder.memory);
        let quiet = Instant::now() + QUIET_TIME;
        let mut is_quiet = true;
        while Instant::now() < quiet || (qp_type == QpType::Rc && !streaming.is_finished()) {
            is_quiet &= bytes_of(&responder.memory) == memory;
            thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Release);
        let failed = streaming.join().map_err(|_| "the stream panicked")??;
        if is_quiet { Ok(failed) } else { Err("memory changed after the link was down".to_owned()) }
    })?;
    // The requests of an unreliable connection do not depend on the other end's link.
    match (qp_type, cut) {
        (QpType::Rc, _) => {
            assert_eq!(failed.first(), Some(&WcStatus::RetryExceeded), "{failed:?}");
            assert!(failed[1..].iter().all(|status| *status == WcStatus::Flushed), "{failed:?}");
        }
        (_, 0) => {
            assert!(!failed.is_empty() && failed.iter().all(|s| *s == WcStatus::Flushed), "{failed:?}");
        }
        _ => assert_eq!(failed, []),
    }
    port_changes(&nics[cut], PortState::Down)?;
    assert_ne!(nics[cut].generation(), generation);
    switch(&nics[cut]).heal();
    port_changes(&nics[cut], PortState::Active)?;
    // The queue pairs of the connection stay dead, and can be connected anew.
    if cut == 0 {
        assert_eq!(post_and_wait(&requester, &responder)?.status, WcStatus::Flushed);
        assert_eq!(requester.nic.query_qp(requester.qp)?.state, QpState::Err);
    }
    for end in [&requester, &responder] {
        end.nic.modify_qp(end.qp, &QpAttr::to(QpState::Reset))?;
    }
    requester.connect(&responder)?;
    responder.connect(&requester)?;
    assert_eq!(post_and_wait(&requester, &responder)?.status, WcStatus::Success);
    requester.destroy()?;
    responder.destroy()?;
    Ok(())
}

/// Checks the port's state and the event of its change.
fn port_changes(nic: &HardNic, state: PortState) -> Result<(), Failed> {
    assert_eq!(nic.query_port()?.state, state);
    let event = if state == PortState::Active { AsyncEvent::PortActive } else { AsyncEvent::PortError };
    assert_eq!(nic.poll_async_event(), Some(event));
    Ok(())
}

fn write_to(to: &End<'_>, from: &End<'_>) -> SendWr {
    SendWr::new(7, SendOp::Write(to.remote()), Data::sge(from.mr.sge(0, 64)))
}

fn post_and_wait(from: &End<'_>, to: &End<'_>) -> Result<Wc, Failed> {
    from.nic.post_send(from.qp, &[write_to(to, from)]).map_err(|refused| refused.error)?;
    Ok(from.completions(1)?.remove(0))
}

/// A connection can be made without a link, which its ends find out by their requests.
fn connection_made_without_link_fails(nics: &[Arc<HardNic>; 2]) -> Result<(), Failed> {
    let near = End::new(&nics[0], 64)?;
    let far = End::new(&nics[1], 64)?;
    far.memory.write_at(0, &[3; 64]);
    switch(&nics[0]).fail(Failure::LinkDown);
    near.connect(&far)?;
    far.connect(&near)?;
    let status = near.nic.query_qp(near.qp)?;
    assert_eq!((status.state, status.rq_psn, status.sq_psn), (QpState::Rts, FIRST_PSN, FIRST_PSN));
    near.nic.post_recv(near.qp, &[RecvWr::new(1, near.mr.sge(0, 64))]).map_err(|refused| refused.error)?;
    assert_eq!(post_and_wait(&far, &near)?.status, WcStatus::RetryExceeded);
    assert_eq!(bytes_of(&near.memory), [0; 64]);
    // The failed request ends the queue pair, and so flushes its receive.
    let requests = [write_to(&far, &near), write_to(&far, &near)];
    near.nic.post_send(near.qp, &requests).map_err(|refused| refused.error)?;
    let ended = near.completions(3)?;
    let of_sends: Vec<_> = ended.iter().filter(|wc| wc.wr_id == 7).map(|wc| wc.status).collect();
    assert_eq!(of_sends, [WcStatus::RetryExceeded, WcStatus::Flushed]);
    assert!(ended.iter().any(|wc| wc.wr_id == 1 && wc.status == WcStatus::Flushed), "{ended:?}");
    let status = near.nic.query_qp(near.qp)?;
    assert_eq!((status.state, status.rq_psn), (QpState::Err, FIRST_PSN));
    near.destroy()?;
    far.destroy()?;
    Ok(())
}

fn dead_nic_stays_dead(nics: &[Arc<HardNic>; 2]) -> Result<(), Failed> {
    let near = End::new(&nics[0], 64)?;
    let far = End::new(&nics[1], 64)?;
    near.connect(&far)?;
    far.connect(&near)?;
    assert_eq!(post_and_wait(&far, &near)?.status, WcStatus::Success);
    switch(&nics[0]).fail(Failure::NicDead);
    switch(&nics[0]).heal();
    assert!(matches!(near.nic.query_port(), Err(Error::DeviceFatal)));
    let refused = near.nic.post_send(near.qp, &[write_to(&far, &near)]).expect_err("the NIC is dead");
    assert!(matches!(refused.error, Error::DeviceFatal), "{refused:?}");
    let events: Vec<_> = std::iter::from_fn(|| near.nic.poll_async_event()).collect();
    assert_eq!(events, [AsyncEvent::PortError, AsyncEvent::DeviceFatal]);
    assert_eq!(near.nic.generation().map(|generation| generation >> 63), Some(1));
    if !Arc::ptr_eq(&nics[0], &nics[1]) {
        assert_eq!(post_and_wait(&far, &near)?.status, WcStatus::RetryExceeded);
    }
    Ok(())
}

fn other_faults_are_refused(nics: &[Arc<HardNic>; 2]) -> Result<(), Failed> {
    let faults = switch(&nics[0]);
    for kind in [
        FaultKind::Failure(Failure::NicHung),
        FaultKind::Failure(Failure::NotPlaced),
        FaultKind::Trigger,
        FaultKind::Noise,
        FaultKind::Address,
    ] {
        let refused = faults.check(kind).expect_err("this fault cannot be injected");
        assert!(refused.ends_with("by down, up and nic-dead only"), "{refused}");
    }
    assert!(faults.change_address(None).is_err());
    for kind in [FaultKind::Failure(Failure::LinkDown), FaultKind::Failure(Failure::NicDead), FaultKind::Heal]
    {
        faults.check(kind)?;
    }
    // What is refused changes nothing.
    faults.fail(Failure::NicHung);
    assert_eq!(nics[0].query_port()?.state, PortState::Active);
    Ok(())
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool, Failed>) -> Result<(), Failed> {
    let begin = Instant::now();
    while !holds()? {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("{what}: not after {TIMEOUT:?}").into());
        }
        thread::yield_now();
    }
    Ok(())
}

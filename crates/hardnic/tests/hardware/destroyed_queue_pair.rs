//! A queue pair that is destroyed before its completions are polled. Drivers discard them then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mitra_verbs::{Data, Provider, RecvWr, SendOp, SendWr, SgeList, Wc, WcStatus};

use crate::devices::Devices;
use crate::ends::End;

const TIMEOUT: Duration = Duration::from_secs(20);

pub fn trials(devices: Option<&Arc<Devices>>) -> Vec<Trial> {
    let devices = devices.cloned();
    let body = move || completions_stay(&*devices.ok_or("no devices")?);
    vec![Trial::test("destroyed_queue_pair::completions_stay", body)]
}

/// The sender's completion shows that the receiver's device has taken the receives.
fn completions_stay(devices: &Devices) -> Result<(), Failed> {
    let [sender, receiver] = [0, 1].map(|n| End::new(&devices.nics()[n], 64));
    let (sender, receiver) = (sender?, receiver?);
    sender.connect(&receiver)?;
    receiver.connect(&sender)?;
    for wr_id in 0..2 {
        receiver
            .nic
            .post_recv(receiver.qp, &[RecvWr { wr_id, sges: SgeList::new() }])
            .map_err(|e| e.error)?;
        let send = SendWr::new(wr_id, SendOp::Send, Data::empty());
        sender.nic.post_send(sender.qp, &[send]).map_err(|e| e.error)?;
    }
    let (mut sent, mut received): (Vec<Wc>, Vec<Wc>) = Default::default();
    let deadline = Instant::now() + TIMEOUT;
    while sent.len() < 2 && Instant::now() < deadline {
        sender.nic.poll_cq(sender.cq, 2, &mut sent)?;
    }
    assert!(sent.len() == 2 && sent.iter().all(|wc| wc.status == WcStatus::Success), "{sent:?}");
    receiver.nic.destroy_qp(receiver.qp)?;
    // A poll returns at most the number of completions that the caller asks for.
    while received.len() < 2 && Instant::now() < deadline {
        assert!(receiver.nic.poll_cq(receiver.cq, 1, &mut received)? <= 1);
    }
    let ids: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!(receiver.nic.poll_cq(receiver.cq, 2, &mut received)?, 0);
    sender.destroy()?;
    Ok(receiver.destroy()?)
}

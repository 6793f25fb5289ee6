//! Completion channels.

use std::os::fd::AsFd;
use std::sync::Arc;

use mitra_verbs::{CompletionChannel, Error, Key, RemoteAddr, SendFlags, SendOp, SendWr, WcStatus};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::endpoint::{Endpoint, Link, Options, connect};
use crate::{CaseResult, Fabric};

/// Returns the channel of b's completion queue, and two connected endpoints.
fn pair_with_channel(fabric: &dyn Fabric) -> CaseResult<(Arc<dyn CompletionChannel>, [Endpoint<'_>; 2])> {
    let [a, b] = fabric.nics();
    let channel = b.create_completion_channel()?;
    let options = Options { channel: Some(Arc::clone(&channel)), ..Options::default() };
    let ends = [Endpoint::new(fabric, a, Options::default())?, Endpoint::new(fabric, b, options)?];
    connect(&ends, Link::default())?;
    Ok((channel, ends))
}

fn is_readable_within(channel: &Arc<dyn CompletionChannel>, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, timeout).expect("the descriptor can be polled") == 1
}

fn is_readable(channel: &Arc<dyn CompletionChannel>) -> bool {
    is_readable_within(channel, PollTimeout::ZERO)
}

/// Sleeps until the channel of b has an event, and takes it.
#[track_caller]
fn wait_event(b: &Endpoint<'_>, channel: &Arc<dyn CompletionChannel>) {
    b.wait_until("a completion event", || is_readable_within(channel, PollTimeout::from(10_u8)));
    assert_eq!(channel.next_event(), Ok(Some(b.cq)));
}

/// Polls long enough that a NIC in software is driven by the caller.
fn poll_for_a_while(b: &Endpoint<'_>) -> CaseResult {
    let mut wcs = Vec::new();
    for _ in 0..1000 {
        assert_eq!(b.nic.poll_cq(b.cq, 1, &mut wcs)?, 0);
    }
    Ok(())
}

pub(super) fn armed_queue_raises_one_event(fabric: &dyn Fabric) -> CaseResult {
    let (channel, [a, b]) = pair_with_channel(fabric)?;
    for i in 0..50 {
        b.post_recv(i, 0, 8)?;
        b.nic.req_notify_cq(b.cq, false)?;
        assert!(!is_readable(&channel));
        if i % 2 == 0 {
            // The caller polls an armed queue.
            poll_for_a_while(&b)?;
        }
        a.post(i, SendOp::Send, 0, 8)?;
        wait_event(&b, &channel);
        assert_eq!(channel.next_event(), Ok(None));
        assert!(!is_readable(&channel));
        b.wait_for(i, WcStatus::Success);
        a.wait_for(i, WcStatus::Success);
        // The queue is not armed, so there is no event.
        b.post_recv(i, 0, 8)?;
        a.post(i, SendOp::Send, 0, 8)?;
        a.wait_for(i, WcStatus::Success);
        b.wait_for(i, WcStatus::Success);
        assert!(!is_readable(&channel));
    }
    Ok(())
}

pub(super) fn event_is_raised_although_the_caller_polled(fabric: &dyn Fabric) -> CaseResult {
    let (channel, [a, b]) = pair_with_channel(fabric)?;
    for i in 0..50 {
        b.post_recv(i, 0, 8)?;
        poll_for_a_while(&b)?;
        b.nic.req_notify_cq(b.cq, false)?;
        a.post(i, SendOp::Send, 0, 8)?;
        wait_event(&b, &channel);
        b.wait_for(i, WcStatus::Success);
        a.wait_for(i, WcStatus::Success);
    }
    Ok(())
}

pub(super) fn solicited_only_arming_ignores_other_completions(fabric: &dyn Fabric) -> CaseResult {
    let (channel, [a, b]) = pair_with_channel(fabric)?;
    b.nic.req_notify_cq(b.cq, true)?;
    b.post_recv(1, 0, 8)?;
    b.post_recv(2, 0, 8)?;
    a.post(1, SendOp::Send, 0, 8)?;
    a.wait_for(1, WcStatus::Success);
    b.wait_for(1, WcStatus::Success);
    b.pause();
    assert!(!is_readable(&channel));
    let send = SendWr::new(2, SendOp::Send, a.data(0, 8));
    a.post_wr(send.with_flags(SendFlags::SOLICITED | SendFlags::SIGNALED))?;
    wait_event(&b, &channel);
    b.wait_for(2, WcStatus::Success);
    a.wait_for(2, WcStatus::Success);
    Ok(())
}

pub(super) fn error_is_an_event_of_solicited_only_arming(fabric: &dyn Fabric) -> CaseResult {
    let (channel, [a, b]) = pair_with_channel(fabric)?;
    b.nic.req_notify_cq(b.cq, true)?;
    let wrong = RemoteAddr { rkey: Key(!a.mr.rkey.0), ..a.mr.remote(0) };
    b.post(1, SendOp::Write(wrong), 0, 8)?;
    wait_event(&b, &channel);
    b.wait_for(1, WcStatus::RemoteAccess);
    Ok(())
}

pub(super) fn channel_of_another_nic_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let [one, other] = fabric.nics();
    let channel = other.create_completion_channel()?;
    let refused = one.create_cq(4, Some(&channel));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    Ok(())
}

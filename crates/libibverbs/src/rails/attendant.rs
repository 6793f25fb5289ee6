//! The thread that attends to virtual queue pairs while the program is busy elsewhere: it takes part in recoveries, answers
//! peers that want to connect, and wakes who sleeps on a completion channel.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use mitra_launch::thread;
use mitra_verbs::CompletionChannel;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::meeting::About;
use super::pair::Pair;
use super::{Rails, Spanning};
use crate::calls::cq::Cq;
use crate::calls::object::Object;

/// How long it sleeps, in milliseconds: how late a peer's failover can find a program that does not poll.
const NAP: u16 = 1;

pub(super) fn start(rails: &Arc<Rails>, spanning: &Arc<Spanning>) -> io::Result<()> {
    let (rails, spanning) = (Arc::downgrade(rails), Arc::clone(spanning));
    thread::start("mitra-attendant", move || while round(&rails, &spanning) {})?;
    Ok(())
}

/// False when the device is closed.
fn round(rails: &Weak<Rails>, spanning: &Spanning) -> bool {
    let channels: Vec<&Arc<dyn CompletionChannel>> =
        spanning.domain.nics().iter().filter_map(|nic| nic.channel.as_ref()).collect();
    let mut ready: Vec<PollFd<'_>> =
        channels.iter().map(|channel| PollFd::new(channel.as_fd(), PollFlags::POLLIN)).collect();
    // A refused wait is a short one.
    let _ = poll(&mut ready, PollTimeout::from(NAP));
    let Some(rails) = rails.upgrade() else { return false };
    spanning.tell_if_ending();
    let pairs = spanning.pairs();
    for (rail, channel) in channels.into_iter().enumerate() {
        while let Ok(Some(id)) = channel.next_event() {
            // Of a queue of the program's, which rail 0 has, or of a rail's of a virtual queue pair, which is looked at below.
            if rail == 0
                && let Some(&cq) = rails.objects().cqs.get(&id)
            {
                // SAFETY: queues leave the table before they go, under the lock that is held here.
                unsafe { Cq::of(cq as *mut _) }.notify();
            }
        }
    }
    for pair in &pairs {
        pair.attend();
        pair.arm_again();
    }
    answer_questions(spanning, &pairs);
    spanning.let_go();
    true
}

/// Answers what peers ask. A stranger hears what it would hear if there were nothing.
pub(super) fn answer_questions(spanning: &Spanning, pairs: &[Arc<Pair>]) {
    for question in spanning.meeting.questions() {
        let answer = match question.about {
            About::Connection(qpn) => spanning
                .pair(qpn)
                .filter(|pair| pair.expects(question.from))
                .and_then(|pair| pair.local_info().ok())
                .map(|info| info.encode()),
            About::Region(key) => pairs
                .iter()
                .any(|pair| pair.expects(question.from))
                .then(|| spanning.region(key))
                .flatten()
                .map(|region| region.encode()),
        };
        spanning.meeting.answer(&question, answer);
    }
}

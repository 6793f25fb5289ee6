//! The thread that attends to virtual queue pairs while the program is busy elsewhere: it takes part in recoveries, answers
//! peers that want to connect, and wakes who sleeps on a completion channel.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use mitra_os_util::thread;
use mitra_verbs::{AsyncEvent, CompletionChannel, Provider};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::meeting::About;
use super::pair::Pair;
use super::{Rails, Spanning};
use crate::calls::abi_object::AbiObject;
use crate::calls::cq::Cq;
use crate::calls::events;

/// How long it sleeps, in milliseconds: how late a peer's failover can find a program that does not poll.
const NAP: u16 = 1;

pub(super) fn start(rails: &Arc<Rails>, spanning: &Arc<Spanning>) -> io::Result<()> {
    let (rails, spanning) = (Arc::downgrade(rails), Arc::clone(spanning));
    let mut port = Port { up: true, alive: true };
    thread::spawn("mitra-attendant", move || while round(&rails, &spanning, &mut port) {})?;
    Ok(())
}

/// The one port that the program knows, as it was told of it last.
struct Port {
    up: bool,
    alive: bool,
}

impl Port {
    /// Tells the program when the last rail is lost, and when one is there again. What lasts for less than a round is not seen.
    fn tell(&mut self, rails: &Rails) {
        let up = rails.is_up();
        let alive = up || rails.nics().iter().any(|nic| nic.query_port().is_ok());
        if std::mem::replace(&mut self.alive, alive) && !alive {
            events::deliver(rails, AsyncEvent::DeviceFatal);
        } else if self.up != up && alive {
            events::deliver(rails, if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
        self.up = up;
    }
}

/// False when the device is closed.
fn round(rails: &Weak<Rails>, spanning: &Spanning, port: &mut Port) -> bool {
    let channels: Vec<&Arc<dyn CompletionChannel>> =
        spanning.domain.nics().iter().filter_map(|nic| nic.channel.as_ref()).collect();
    let mut ready: Vec<PollFd<'_>> =
        channels.iter().map(|channel| PollFd::new(channel.as_fd(), PollFlags::POLLIN)).collect();
    // A refused wait is a short one.
    let _ = poll(&mut ready, PollTimeout::from(NAP));
    let Some(rails) = rails.upgrade() else { return false };
    spanning.tell_if_ending();
    port.tell(&rails);
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
            About::Connection(qpn) => {
                let pair = spanning.pair(qpn).filter(|pair| pair.expects(question.from));
                if pair.as_ref().is_some_and(|pair| pair.has_ended()) {
                    continue; // it may be reset before who asks has given up
                }
                pair.and_then(|pair| pair.local_info().ok()).map(|info| info.encode())
            }
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

//! Control messages from a forger that knows the secret of a virtual queue pair, while operations
//! are in flight and a link fails: nothing panics, the state stays bounded, and every operation
//! ends. Each message is its type (1 byte), epoch (2), proposer (1), the length of its body (1),
//! and the body.

use core::time::Duration;

use mitra_verbs::{Data, SendOp, SendWr};

use super::vqp_pair::forger::Forger;
use super::vqp_pair::{VqpPair, config};

/// The maximum number of messages.
const MESSAGES: usize = 32;
/// The number of messages that the first end sends.
const OPERATIONS: u64 = 6;

pub(crate) fn run(data: &[u8]) {
    let Some((&schedule, mut rest)) = data.split_first() else { return };
    let mut pair = VqpPair::new(2, config());
    (0..OPERATIONS).for_each(|i| pair.recv(1, i, 64));
    pair.poll_times(&[0, 1], 50);
    let forger = Forger::new(&pair);
    // A host that knows the secret can name a wrong address.
    pair.is_attacked = true;
    // The first bits are the number of messages before the operations are posted, and before the
    // link fails.
    let (posted_at, fails_at) = (usize::from(schedule & 7), usize::from(schedule >> 3 & 15));
    for n in 0..MESSAGES {
        if n == posted_at {
            for i in 0..OPERATIONS {
                let send = SendWr::new(i, SendOp::Send, Data::inline(&i.to_ne_bytes()));
                // The post is refused if the messages have closed the virtual queue pair.
                let _ = pair.vqps[0].post_send(send);
            }
        }
        if n == fails_at {
            pair.link_down(0, 0);
        }
        let Some((&[kind, e0, e1, proposer, len], tail)) = rest.split_first_chunk() else { continue };
        let (body, tail) = tail.split_at(usize::from(len).min(200).min(tail.len()));
        rest = tail;
        forger.send(&forger.encode(kind, u16::from_le_bytes([e0, e1]), proposer, body));
        pair.poll_times(&[0, 1], 3);
    }
    let size = format!("{:?}", pair.vqps[1]).len();
    assert!(size < 20_000, "the vQP holds {size} bytes");
    let is_done = |pair: &VqpPair| pair.vqps.iter().all(|vqp| vqp.outstanding() == 0);
    for _ in 0..40_000 {
        if is_done(&pair) {
            return;
        }
        for end in 0..2 {
            pair.vqps[end].poll(&mut pair.completions[end]);
        }
        pair.testbed.world.run_for(Duration::from_micros(250));
    }
    panic!("operations do not end: {:?} {:?}", pair.vqps[0], pair.vqps[1]);
}

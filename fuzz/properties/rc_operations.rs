//! Arbitrary operations on a reliable connection over a link that loses, copies and delays packets,
//! against a model that executes each operation when it is posted. Both memories, all completions
//! and all received messages equal the model's.
//!
//! The input is the path MTU and the limits of the queue pair (1 byte), what happens to the first
//! 15 packets (15 bytes), and 8 bytes for each operation.

use core::cell::Cell;
use core::ops::Range;
use core::time::Duration;
use std::rc::Rc;

use mitra_verbs::{Data, Key, Mtu, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus};

use super::common::{BASE, LinkAction, NicPair, SIZE, Setup, pattern, statuses};

/// The parts of each memory. No operation writes the first part of the responder's memory. Only
/// READs and atomics write behind `RESULTS` in the requester's memory.
const WRITTEN: u64 = 32 << 10;
const RECEIVES: u64 = 128 << 10;
const RESULTS: u64 = 128 << 10;
/// The largest WRITE, READ or SEND, and the size of a receive. A SEND may be longer.
const MAX_BYTES: u32 = 6 << 10;
const RECEIVE_BYTES: u32 = 4 << 10;
/// The largest number of operations, and of posted receives.
const OPERATIONS: usize = 64;
/// The number of packets that the link may lose or delay. More could exceed the retries.
const LOSSES: u32 = 6;

/// The effects that the operations posted so far must have once they have ended.
struct Model {
    requester: Vec<u8>,
    responder: Vec<u8>,
    sends: Vec<(u64, WcStatus)>,
    /// The receives that complete with success: their number, and the bytes and immediate data of
    /// the message.
    receives: Vec<(u64, u32, Option<u32>)>,
    has_failed: bool,
    /// The local memory of a READ that is refused, and the receive of a SEND that is too long. Both
    /// may contain a part of the data.
    undefined: [Range<usize>; 2],
    /// Whether a READ may still be pending, so that a request without FENCE could change its
    /// source.
    is_read_pending: bool,
}

impl Model {
    /// Executes an operation. `offset` is in the responder's memory, `local` in the requester's.
    fn execute(&mut self, wr: &SendWr, offset: u64, local: u64) {
        let len = wr.data.len() as usize;
        let status = if self.has_failed { WcStatus::Flushed } else { self.status(wr, offset) };
        if status == WcStatus::Success {
            let (at, from) = (offset as usize, local as usize);
            match wr.op {
                SendOp::Write(_) => {
                    self.responder[at..at + len].copy_from_slice(&self.requester[from..from + len]);
                }
                SendOp::WriteWithImm(_, imm) => {
                    self.responder[at..at + len].copy_from_slice(&self.requester[from..from + len]);
                    self.receives.push((self.receives.len() as u64, len as u32, Some(imm)));
                }
                SendOp::Read(_) => {
                    self.requester[from..from + len].copy_from_slice(&self.responder[at..at + len]);
                }
                SendOp::FetchAdd { add, .. } => self.atomic(at, from, |old| old.wrapping_add(add)),
                SendOp::CompareSwap { compare, swap, .. } => {
                    self.atomic(at, from, |old| if old == compare { swap } else { old });
                }
                SendOp::Send | SendOp::SendWithImm(_) => {
                    let to = RECEIVES as usize + self.receives.len() * RECEIVE_BYTES as usize;
                    self.responder[to..to + len].copy_from_slice(&self.requester[from..from + len]);
                    let imm = match wr.op {
                        SendOp::SendWithImm(imm) => Some(imm),
                        _ => None,
                    };
                    self.receives.push((self.receives.len() as u64, len as u32, imm));
                }
                _ => unreachable!("the input has no other operation"),
            }
        } else if status != WcStatus::Flushed {
            self.has_failed = true;
            let to = RECEIVES as usize + self.receives.len() * RECEIVE_BYTES as usize;
            match wr.op {
                SendOp::Read(_) => self.undefined[0] = local as usize..local as usize + len,
                SendOp::Send | SendOp::SendWithImm(_) => self.undefined[1] = to..to + RECEIVE_BYTES as usize,
                _ => {}
            }
        }
        if wr.flags.contains(SendFlags::SIGNALED) || status != WcStatus::Success {
            self.sends.push((wr.wr_id, status));
        }
    }

    /// Returns how an operation ends if no operation before it has failed.
    fn status(&self, wr: &SendWr, offset: u64) -> WcStatus {
        let len = wr.data.len();
        match wr.op.remote() {
            None if len > u64::from(RECEIVE_BYTES) => WcStatus::RemoteInvalidRequest,
            None => WcStatus::Success,
            Some(remote) if wr.op.is_atomic() && !remote.addr.is_multiple_of(8) => {
                WcStatus::RemoteInvalidRequest
            }
            // A request without data needs no right.
            Some(_) if len == 0 => WcStatus::Success,
            Some(remote) if remote.rkey == WRONG_KEY || offset + len > SIZE as u64 => WcStatus::RemoteAccess,
            Some(_) => WcStatus::Success,
        }
    }

    fn atomic(&mut self, at: usize, result: usize, new: impl FnOnce(u64) -> u64) {
        let word: [u8; 8] = self.responder[at..at + 8].try_into().expect("a word has 8 bytes");
        self.requester[result..result + 8].copy_from_slice(&word);
        self.responder[at..at + 8].copy_from_slice(&new(u64::from_ne_bytes(word)).to_ne_bytes());
    }
}

/// A key that no region has.
const WRONG_KEY: Key = Key(0x00ff_ff00);

pub(crate) fn run(data: &[u8]) {
    let Some((&[limits, ref faults @ ..], operations)) = data.split_first_chunk::<16>() else { return };
    let mut p = connect(limits);
    let losses = Rc::new(Cell::new(LOSSES));
    let (faults, mut packet) = (faults.to_vec(), 0);
    p.set_link(move |_, _| {
        packet += 1;
        // The faults repeat, until the losses are used up.
        let action = match faults[packet % faults.len()] {
            0..40 => LinkAction::Drop,
            40..60 => LinkAction::Delay(Duration::from_micros(packet as u64 % 50)),
            60..80 => return LinkAction::Duplicate,
            _ => return LinkAction::Pass,
        };
        match losses.get() {
            0 => LinkAction::Pass,
            left => {
                losses.set(left - 1);
                action
            }
        }
    });
    for node in 0..2 {
        p.bytes(node).copy_from_slice(&pattern(SIZE, 0x35 + node as u8));
    }
    let mut model = Model {
        requester: p.bytes(0).to_vec(),
        responder: p.bytes(1).to_vec(),
        sends: Vec::new(),
        receives: Vec::new(),
        has_failed: false,
        undefined: [0..0, 0..0],
        is_read_pending: false,
    };
    for n in 0..OPERATIONS as u64 {
        let sge = p.sge(1, RECEIVES + n * u64::from(RECEIVE_BYTES), RECEIVE_BYTES);
        p.post_recv(RecvWr::new(n, sge));
    }
    for (n, bytes) in operations.as_chunks::<8>().0.iter().take(OPERATIONS).enumerate() {
        let (wr, offset, local) = operation(n as u64, bytes, &p, &mut model.is_read_pending);
        match p.post_on(0, core::slice::from_ref(&wr)) {
            Ok(()) => model.execute(&wr, offset, local),
            // The queue pair may have failed already: its requests are refused or flushed.
            Err(_) => assert!(model.has_failed, "{wr:?} is refused"),
        }
        // Some requests follow each other at once, others when earlier ones have begun or ended.
        match bytes[1] >> 6 {
            0 | 1 => {}
            2 => _ = p.step(),
            _ => p.run(),
        }
    }
    p.run();
    let sends = statuses(&p.send_completions(0));
    // The responder refuses a request once. If the refusal is lost, the requester does not learn
    // which of the requests before it were executed.
    let is_refusal_lost = model.has_failed && sends.iter().any(|send| send.1 == WcStatus::RetryExceeded);
    if is_refusal_lost {
        let ended = sends.iter().position(|send| send.1 != WcStatus::Success).expect("one has ended so");
        assert_eq!(sends[..ended], model.sends[..ended]);
        let flushed = |send: &(u64, WcStatus)| send.1 == WcStatus::Flushed;
        assert!(
            sends[ended].1 == WcStatus::RetryExceeded && sends[ended + 1..].iter().all(flushed),
            "{sends:?}"
        );
    } else {
        assert_eq!(sends, model.sends);
    }
    let received: Vec<_> = p.recv_completions(1);
    let received = received.iter().filter(|wc| wc.status == WcStatus::Success);
    assert!(received.map(|wc| (wc.wr_id, wc.byte_len, wc.imm)).eq(model.receives.iter().copied()));
    for (node, expected) in [(0, &model.requester), (1, &model.responder)] {
        if node == 0 && is_refusal_lost {
            continue;
        }
        let bytes = p.bytes(node);
        let is_wrong = |&i: &usize| bytes[i] != expected[i] && !model.undefined[node].contains(&i);
        let wrong = (0..SIZE).find(is_wrong);
        assert_eq!(wrong, None, "the memory of node {node} differs");
    }
}

fn connect(limits: u8) -> NicPair {
    let rd_atomic = 1 + (limits >> 2 & 3);
    let setup = Setup {
        mtu: [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M4096][usize::from(limits & 3)],
        psn: if limits & 16 == 0 { [100, 200] } else { [0xff_fffa, 0xff_fff0] },
        rd_atomic,
        dest_rd_atomic: rd_atomic,
        send_window: if limits & 32 == 0 { 256 << 10 } else { 4 << 10 },
        ..Setup::default()
    };
    setup.pair()
}

/// Returns an operation, and the offsets of its data in the responder's and in the requester's
/// memory.
fn operation(n: u64, bytes: &[u8; 8], p: &NicPair, is_read_pending: &mut bool) -> (SendWr, u64, u64) {
    let [kind, flags, l0, l1, r0, r1, local, key] = *bytes;
    let len = u32::from(u16::from_le_bytes([l0, l1])) % MAX_BYTES;
    let mut offset = u64::from(u16::from_le_bytes([r0, r1]));
    let rkey = if key == 0 { WRONG_KEY } else { p.remote(0).rkey };
    // The range begins in the last part of the region, and may end behind the region.
    if key == 1 {
        offset += SIZE as u64 - (64 << 10);
    }
    let is_written_part = flags & 4 != 0;
    let (mut local, mut len) = (u64::from(local) * 64, len);
    let remote = |offset: u64| RemoteAddr { addr: BASE + offset, rkey };
    let imm = 0x1000 + n as u32;
    let op = match kind % 8 {
        0 => SendOp::Send,
        1 => SendOp::SendWithImm(imm),
        2..=4 => {
            if key != 1 {
                offset = WRITTEN + offset % WRITTEN;
            }
            if kind % 8 == 4 {
                SendOp::WriteWithImm(remote(offset), imm)
            } else {
                SendOp::Write(remote(offset))
            }
        }
        5 => {
            if key != 1 {
                offset =
                    if is_written_part { WRITTEN } else { 0 } + offset % (WRITTEN - u64::from(MAX_BYTES));
            }
            local += RESULTS;
            SendOp::Read(remote(offset))
        }
        _ => {
            // Some addresses are not aligned to words.
            offset = WRITTEN + if key == 2 { offset % WRITTEN } else { (offset % WRITTEN) & !7 };
            (local, len) = (RESULTS + local, 8);
            if kind % 8 == 6 {
                SendOp::FetchAdd { remote: remote(offset), add: u64::from(l0) << 30 | 1 }
            } else {
                let word = u64::from_ne_bytes(
                    pattern(SIZE, 0x36)[offset as usize..][..8].try_into().expect("8 bytes"),
                );
                let compare = if flags & 8 == 0 { word } else { word ^ 1 };
                SendOp::CompareSwap { remote: remote(offset), compare, swap: u64::from(l1) }
            }
        }
    };
    // A READ returns the content of its memory at its last execution, so requests that change this
    // memory wait for the READ.
    let changes = matches!(op, SendOp::Write(_) | SendOp::WriteWithImm(..)) || op.is_atomic();
    let mut send_flags = SendFlags::empty();
    if flags & 1 != 0 || changes && *is_read_pending {
        send_flags |= SendFlags::FENCE;
        *is_read_pending = false;
    }
    if flags & 2 != 0 {
        send_flags |= SendFlags::SIGNALED;
    }
    *is_read_pending |= matches!(op, SendOp::Read(_)) && (is_written_part || key == 1);
    let sges = |len: u32| -> Data {
        let Sge { addr, key, .. } = p.sge(0, local, len);
        let first = if flags & 16 == 0 { len } else { len / 3 };
        let parts =
            [Sge { addr, len: first, key }, Sge { addr: addr + u64::from(first), len: len - first, key }];
        Data::Sges(parts.into_iter().collect())
    };
    let data = if len <= 64 && !op.is_read_or_atomic() && flags & 32 != 0 {
        let all = pattern(SIZE, 0x35);
        Data::inline(&all[local as usize..local as usize + len as usize])
    } else if op.is_atomic() {
        Data::sge(p.sge(0, local, 8))
    } else {
        sges(len)
    };
    (SendWr::new(n, op, data).with_flags(send_flags), offset, local)
}

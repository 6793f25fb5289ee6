//! How the Mitra halves of two programs find each other: by what the programs exchanged anyway, a GID and a queue pair
//! number, through queue pair 1 (the general services interface) of each other's NICs.
//!
//! A question is a datagram and so is its answer; who asks, asks again until it is answered. Two can be asked: what it takes to
//! connect to a queue pair, and by which names memory that a program named by its key on rail 0 goes on the others.
//!
//! RoCE authenticates nobody, and neither does this: who can send datagrams to a device can ask for the secret of a queue
//! pair that waits to be connected (docs/security.md). Once it is known who its peer is, only that address is told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{ConnectInfo, LocalNic, RemoteRegion};
use mitra_verbs::{
    Access, AhId, Buffer, CqId, Data, Error, GSI_QKEY, Gid, Key, Mr, Psn, QpAttr, QpCap, QpInitAttr, QpState,
    QpType, Qpn, RecvWr, Result, SendOp, SendWr, UdDestination, Wc, WcOpcode, WcStatus,
};

use super::spanning;
use crate::common::grh::{GRH_LEN as GRH, source_gid};
use crate::common::lock::lock;

/// Bytes of a message, at most.
const MAX: usize = 512;
/// Datagrams that may wait to be read, and as many to be sent.
const SLOTS: u64 = 32;
const SLOT: usize = GRH + MAX;
/// A question is asked again after this long ...
const AGAIN: Duration = Duration::from_millis(20);
/// ... and given up after this long.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Questions that wait to be answered; later ones are asked again.
const QUESTIONS: usize = 256;
/// Address handles that are kept.
const HANDLES: usize = 256;

/// The general services queue pairs of all rails.
pub(super) struct Meeting {
    ends: Vec<Mutex<End>>,
    questions: Mutex<VecDeque<Question>>,
    /// By the number of the question: who waits.
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// Who waits for an answer.
struct Waiting {
    /// Who was asked.
    peer: Vec<Gid>,
    /// What came back.
    answer: Option<Answer>,
}

/// A question of a peer's.
pub(super) struct Question {
    rail: usize,
    pub(super) from: Gid,
    number: u64,
    pub(super) about: About,
}

/// What can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// How is this queue pair connected to?
    Connection(Qpn),
    /// What are the names of the memory with this key?
    Region(Key),
}

/// What is answered; nothing, if there is no such thing.
type Answer = Option<Vec<u8>>;

impl Meeting {
    pub(super) fn new(nics: &[LocalNic]) -> Result<Meeting> {
        let ends = nics.iter().map(|nic| End::new(nic).map(Mutex::new)).collect::<Result<_>>()?;
        Ok(Meeting { ends, questions: Mutex::default(), waiting: Mutex::default() })
    }

    /// What it takes to connect to a peer's queue pair.
    ///
    /// # Errors
    /// The peer does not answer, or has no such queue pair.
    pub(super) fn connection(&self, gid: Gid, qpn: Qpn) -> Result<ConnectInfo> {
        let answer = self.ask(&[gid], About::Connection(qpn))?.ok_or(Error::Invalid(
            "the peer has no such queue pair, or it does not span rails: run both ends with the same --rails",
        ))?;
        ConnectInfo::decode(&answer)
    }

    /// The names of the peer's memory; none if the peer has no such memory.
    pub(super) fn region(&self, peer: &[Gid], key: Key) -> Result<Option<RemoteRegion>> {
        self.ask(peer, About::Region(key))?.map(|answer| RemoteRegion::decode(&answer)).transpose()
    }

    /// Asks a peer, on its rails in turn.
    fn ask(&self, peer: &[Gid], about: About) -> Result<Answer> {
        let number = spanning::random()?;
        lock(&self.waiting).insert(number, Waiting { peer: peer.to_vec(), answer: None });
        let begun = Instant::now();
        let mut asked = 0;
        let answer = loop {
            if begun.elapsed() >= AGAIN * asked {
                let rail = asked as usize % peer.len().max(1);
                if let (Some(gid), Some(end)) = (peer.get(rail), self.ends.get(rail)) {
                    lock(end).send(*gid, &encode(number, &Message::Question(about)));
                }
                asked += 1;
            }
            self.poll();
            if let Some(answer) =
                lock(&self.waiting).get_mut(&number).and_then(|waiting| waiting.answer.take())
            {
                break Ok(answer);
            }
            if begun.elapsed() > GIVE_UP {
                break Err(Error::Invalid(
                    "the peer does not answer; it must run under `mitra run` with the same --rails",
                ));
            }
            thread::sleep(Duration::from_micros(20));
        };
        lock(&self.waiting).remove(&number);
        answer
    }

    /// Takes what has arrived, and gives the questions of peers.
    pub(super) fn questions(&self) -> VecDeque<Question> {
        self.poll();
        std::mem::take(&mut lock(&self.questions))
    }

    /// Answers one.
    pub(super) fn answer(&self, question: &Question, answer: Answer) {
        lock(&self.ends[question.rail])
            .send(question.from, &encode(question.number, &Message::Answer(answer)));
    }

    fn poll(&self) {
        for (rail, end) in self.ends.iter().enumerate() {
            lock(end).poll(|from, bytes| match decode(bytes) {
                Some((number, Message::Question(about))) => {
                    let mut questions = lock(&self.questions);
                    if questions.len() < QUESTIONS {
                        questions.push_back(Question { rail, from, number, about });
                    }
                }
                Some((number, Message::Answer(answer))) => {
                    // Only what somebody waits for is kept, and only from whom it was asked of.
                    if let Some(waiting) = lock(&self.waiting).get_mut(&number)
                        && waiting.peer.contains(&from)
                    {
                        waiting.answer.get_or_insert(answer);
                    }
                }
                // Not ours, or not whole.
                None => {}
            });
        }
    }
}

/// What travels.
#[derive(PartialEq, Eq, Debug)]
enum Message {
    Question(About),
    Answer(Answer),
}

const MAGIC: [u8; 4] = *b"MMT1";

fn encode(number: u64, message: &Message) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&number.to_le_bytes());
    match message {
        Message::Question(About::Connection(qpn)) => {
            out.push(1);
            out.extend_from_slice(&qpn.value().to_le_bytes());
        }
        Message::Question(About::Region(key)) => {
            out.push(2);
            out.extend_from_slice(&key.0.to_le_bytes());
        }
        Message::Answer(None) => out.push(3),
        Message::Answer(Some(body)) => {
            out.push(4);
            out.extend_from_slice(body);
        }
    }
    out
}

fn decode(bytes: &[u8]) -> Option<(u64, Message)> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (kind, body) = rest.split_first()?;
    let word = || body.try_into().ok().map(u32::from_le_bytes);
    let message = match kind {
        _ if *magic != MAGIC => return None,
        1 => Message::Question(About::Connection(Qpn::new(word()?))),
        2 => Message::Question(About::Region(Key(word()?))),
        3 if body.is_empty() => Message::Answer(None),
        4 => Message::Answer(Some(body.to_vec())),
        _ => return None,
    };
    Some((u64::from_le_bytes(*number), message))
}

/// Queue pair 1 of one NIC.
struct End {
    nic: LocalNic,
    cq: CqId,
    qpn: Qpn,
    memory: Arc<Buffer>,
    mr: Mr,
    handles: VecDeque<(Gid, AhId)>,
    next: u64,
    wcs: Vec<Wc>,
}

impl End {
    fn new(nic: &LocalNic) -> Result<End> {
        let p = &nic.provider;
        let cq = p.create_cq(4 * SLOTS as u32, None)?;
        let depth = SLOTS as u32;
        let cap = QpCap { send_wrs: depth, recv_wrs: depth, send_sges: 1, recv_sges: 1, inline: 0 };
        let qpn = p.create_qp(&QpInitAttr {
            qp_type: QpType::Gsi,
            pd: nic.pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap,
            sq_sig_all: true,
        })?;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        p.modify_qp(qpn, &QpAttr { qkey: Some(GSI_QKEY), ..init })?;
        p.modify_qp(qpn, &QpAttr::to(QpState::Rtr))?;
        p.modify_qp(qpn, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
        // Receives in the first half, sends in the second.
        let memory = Arc::new(Buffer::new(2 * SLOTS as usize * SLOT));
        let mr = p.reg_mr(nic.pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        let nic = nic.clone();
        let end = End { nic, cq, qpn, memory, mr, handles: VecDeque::new(), next: 0, wcs: Vec::new() };
        (0..SLOTS).try_for_each(|slot| end.post_recv(slot))?;
        Ok(end)
    }

    fn post_recv(&self, slot: u64) -> Result<()> {
        let sge = self.mr.sge(slot * SLOT as u64, SLOT as u32);
        self.nic.provider.post_recv(self.qpn, &[RecvWr::new(slot, sge)]).map_err(|e| e.error)
    }

    /// Sends a datagram. A full queue or a failed NIC loses it, as the wire may.
    fn send(&mut self, to: Gid, bytes: &[u8]) {
        let Ok(ah) = self.handle(to) else { return };
        if bytes.len() > MAX {
            return;
        }
        let slot = SLOTS + self.next % SLOTS;
        self.next += 1;
        self.memory.write_at(slot as usize * SLOT, bytes);
        let data = Data::sge(self.mr.sge(slot * SLOT as u64, bytes.len() as u32));
        let to = UdDestination { ah, qpn: Qpn::new(1), qkey: GSI_QKEY };
        let _ = self.nic.provider.post_send(self.qpn, &[SendWr::new(slot, SendOp::Send, data).to(to)]);
    }

    fn handle(&mut self, to: Gid) -> Result<AhId> {
        if let Some((_, ah)) = self.handles.iter().find(|(gid, _)| *gid == to) {
            return Ok(*ah);
        }
        if self.handles.len() == HANDLES
            && let Some((_, oldest)) = self.handles.pop_front()
        {
            let _ = self.nic.provider.destroy_ah(oldest); // a handle that stays costs a little memory
        }
        let ah = self.nic.provider.create_ah(self.nic.pd, to)?;
        self.handles.push_back((to, ah));
        Ok(ah)
    }

    fn poll(&mut self, mut arrived: impl FnMut(Gid, &[u8])) {
        let mut wcs = std::mem::take(&mut self.wcs);
        wcs.clear();
        // A dead NIC brings nothing; that it is dead others notice.
        let _ = self.nic.provider.poll_cq(self.cq, SLOTS as usize, &mut wcs);
        for wc in wcs.iter().filter(|wc| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success) {
            let mut bytes = [0; SLOT];
            let len = (wc.byte_len as usize).min(SLOT);
            self.memory.read_at(wc.wr_id as usize * SLOT, &mut bytes[..len]);
            if let Some((grh, message)) = bytes[..len].split_first_chunk::<GRH>() {
                arrived(Gid(source_gid(grh)), message);
            }
            // If it cannot be posted again the NIC has failed.
            let _ = self.post_recv(wc.wr_id);
        }
        self.wcs = wcs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_comes_back_and_nothing_cut_short_does() {
        for message in [
            Message::Question(About::Connection(Qpn::new(0x12_3456))),
            Message::Question(About::Region(Key(0x1234_5678))),
            Message::Answer(None),
            Message::Answer(Some(vec![1, 2, 3])),
        ] {
            let bytes = encode(7, &message);
            let head = 4 + 8 + 1;
            for n in 0..head {
                assert_eq!(decode(&bytes[..n]), None);
            }
            if let Message::Question(_) = message {
                assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
                assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
            }
            assert_eq!(decode(&bytes), Some((7, message)));
        }
        let mut foreign = encode(1, &Message::Answer(None));
        foreign[0] ^= 1;
        assert_eq!(decode(&foreign), None);
    }
}

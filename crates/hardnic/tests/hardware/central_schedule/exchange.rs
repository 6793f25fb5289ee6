//! The operations of a trial, posted while a rail fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{
    CloseReason, Completion, Config, ConnectInfo, Domain, Outcome, RemoteRegion, Resolution, VirtualQp,
};
use mitra_verbs::{Buffer, Data, RecvWr, RemoteAddr, SendOp, SendWr};

use super::{Memory, OPERATIONS, Phase, UNSTORED, WRITE};

/// The operations that are posted before a rail fails, and after it has failed.
const BEFORE: u64 = 16;
const AFTER: u64 = 24;
/// The receives that wait for messages.
const RECEIVES: u64 = 32;
/// The operations in flight.
pub(super) const WINDOW: u64 = 12;

pub(super) type Outcomes = BTreeMap<u64, (Outcome, Resolution)>;

/// What a trial ended with.
pub(super) struct Exchange {
    pub(super) outcomes: Outcomes,
    /// The numbers of the messages, in the order of their receives.
    pub(super) messages: Vec<u64>,
}

/// Where the server's receive `i` puts its message.
fn inbox(i: u64) -> u64 {
    4096 + u64::from(WRITE) + 8 * i
}

/// Where operation `i` puts what it receives, or takes what it sends, in the client's memory.
pub(super) fn place(i: u64) -> u64 {
    i * 8
}

fn operation(i: u64, remote: impl Fn(u64) -> RemoteAddr) -> SendOp {
    match i % 4 {
        0 => SendOp::FetchAdd { remote: remote(0), add: 1 },
        1 => SendOp::CompareSwap { remote: remote(8), compare: i / 4, swap: i / 4 + 1 },
        2 => SendOp::Write(remote(4096)),
        _ => SendOp::Send,
    }
}

/// The responder's end.
pub(super) struct Receiver {
    vqp: VirtualQp,
    memory: Memory,
    posted: u64,
    received: Vec<u64>,
    arrived: Vec<Completion>,
}

impl Receiver {
    pub(super) fn new(domain: &Arc<Domain>, config: Config, buffer: Arc<Buffer>) -> Result<Receiver, String> {
        let vqp = VirtualQp::builder(domain).config(config).build().map_err(|error| error.to_string())?;
        let memory = Memory::new(domain, buffer)?;
        Ok(Receiver { vqp, memory, posted: 0, received: Vec::new(), arrived: Vec::new() })
    }

    pub(super) fn connect(&mut self, client: &ConnectInfo) -> Result<(ConnectInfo, RemoteRegion), String> {
        let info = self.vqp.local_info();
        self.vqp.connect(client).map_err(|error| error.to_string())?;
        self.post();
        Ok((info, self.memory.mr.remote()))
    }

    /// Sends an empty message, for which the client has no receive.
    pub(super) fn send(&mut self) -> Result<(), String> {
        let message = SendWr::new(OPERATIONS, SendOp::Send, Data::empty());
        self.vqp.post_send(message).map(drop).map_err(|error| error.to_string())
    }

    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        self.vqp.close_reason()
    }

    /// The receives that messages have completed, in this order.
    pub(super) fn received(&self) -> &[u64] {
        &self.received
    }

    pub(super) fn memory(&self) -> Arc<Buffer> {
        Arc::clone(&self.memory.buffer)
    }

    fn post(&mut self) {
        while self.posted < (RECEIVES + self.received.len() as u64).min(OPERATIONS) {
            let receive = RecvWr::new(self.posted, self.memory.mr.sge(inbox(self.posted), 8));
            if self.vqp.post_recv(receive).is_err() {
                return;
            }
            self.posted += 1;
        }
    }

    pub(super) fn poll(&mut self) {
        self.vqp.poll(&mut self.arrived);
        let done = self.arrived.drain(..).filter(|completion| completion.is_success());
        self.received.extend(done.map(|completion| completion.wr_id));
        self.post();
        if self.vqp.is_halted() {
            self.vqp.resume();
        }
    }

    pub(super) fn end(mut self, domain: &Domain) -> Result<(), String> {
        let _ = self.vqp.close();
        drop(self.vqp);
        domain.deregister(&self.memory.mr).map_err(|error| error.to_string())
    }
}

/// Returns the messages that arrived. Those of a killed peer are the ones in its memory.
pub(super) fn messages(server: Option<&Receiver>, far: &Buffer) -> Vec<u64> {
    let message = |receive: u64| far.load(inbox(receive) as usize);
    match server {
        Some(server) => server.received.iter().map(|&receive| message(receive)).collect(),
        // No message is 0.
        None => (0..OPERATIONS).map(message).take_while(|&message| message != 0).collect(),
    }
}

/// The number of the last WRITE that has begun; 0 before the first, which is operation 2.
pub(super) fn last_write(far: &Buffer) -> u64 {
    far.load(4096)
}

pub(super) fn work_request(i: u64, near: &Memory, region: &RemoteRegion) -> SendWr {
    let op = operation(i, |offset| region.at(offset));
    let data = match op {
        SendOp::Write(_) => {
            near.buffer.write_at(8 * OPERATIONS as usize, &i.to_le_bytes());
            Data::sge(near.mr.sge(8 * OPERATIONS, WRITE))
        }
        SendOp::Send => {
            near.buffer.store(place(i) as usize, i);
            Data::sge(near.mr.sge(place(i), 8))
        }
        _ => {
            near.buffer.store(place(i) as usize, UNSTORED);
            Data::sge(near.mr.sge(place(i), 8))
        }
    };
    SendWr::new(i, op, data)
}

/// Posts operations until some were posted after the failure, and returns how each ended. `server`
/// is the responder if it is in this process; otherwise it drives itself.
pub(super) fn exchange(
    client: &mut VirtualQp,
    mut server: Option<&mut Receiver>,
    near: &Memory,
    region: &RemoteRegion,
    phase: &Phase,
) -> Result<Outcomes, String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut posted, mut outcomes) = (0, BTreeMap::new());
    let mut done = Vec::new();
    let mut last = OPERATIONS;
    // The peer keeps driving until the client has all answers.
    while (outcomes.len() as u64) < last {
        if Instant::now() > deadline {
            let reasons = (client.close_reason(), server.map(|server| server.vqp.close_reason()));
            return Err(format!("{} of {posted} operations ended; closed: {reasons:?}", outcomes.len()));
        }
        while posted < last && posted - (outcomes.len() as u64) < WINDOW && !client.is_halted() {
            if client.post_send(work_request(posted, near, region)).is_err() {
                break;
            }
            posted += 1;
        }
        if posted >= BEFORE {
            phase.is_begun.store(true, Ordering::Release);
        }
        if last == OPERATIONS && phase.is_failed.load(Ordering::Acquire) {
            last = OPERATIONS.min(posted + AFTER);
        }
        if client.close_reason().is_some() {
            last = posted;
        }
        client.poll(&mut done);
        outcomes.extend(
            done.drain(..).map(|completion| (completion.wr_id, (completion.outcome, completion.resolution))),
        );
        if client.is_halted() {
            client.resume();
        }
        if let Some(server) = server.as_deref_mut() {
            server.poll();
        }
        thread::yield_now();
    }
    // The last SENDs may complete at the receiver after the sender.
    let settled = Instant::now() + Duration::from_millis(50);
    while let Some(server) = server.as_deref_mut().filter(|_| Instant::now() < settled) {
        client.progress();
        server.poll();
    }
    Ok(outcomes)
}

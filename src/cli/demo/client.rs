//! The client: posts the workload with many operations in flight and records the outcome of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mitra_failover::{Completion, RemoteRegion, VirtualMr};
use mitra_peer_process::{PeerConnection, RECEIVE_TIMEOUT};
use mitra_verbs::{Access, Buffer, Data, SendOp, SendWr};

use super::fault_plan::Side;
use super::progress::Progress;
use super::protocol::{ClientReport, CompletionRecord, ConnectionInfo, OpRecord, RoundSetup, ServerReport};
use super::rail_endpoint::RailEndpoint;
use super::workload::{Kind, MAX_LEN, Workload, fill, pattern};

const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

struct Client {
    rails: RailEndpoint,
    workload: Workload,
    in_flight: usize,
    /// A slot of [`MAX_LEN`] bytes for each operation in flight.
    local: Arc<Buffer>,
    local_mr: VirtualMr,
    memory: RemoteRegion,
    pattern: RemoteRegion,
    collected: ClientReport,
    /// Whether the client still posts operations. The client's report lists the operations that
    /// were posted until then.
    posts: bool,
    /// The number of completions. Operations complete in posting order.
    done: usize,
    completions: Vec<Completion>,
}

/// Runs one round with the server process, from its setup to the reports of both sides. Returns
/// when the server's capture files are complete.
pub(super) fn round(
    server: &mut PeerConnection,
    round: &RoundSetup,
    progress: &Progress,
) -> anyhow::Result<(ClientReport, ServerReport, [Vec<String>; 2])> {
    server.send(round)?;
    let mut rails = RailEndpoint::open(Side::Client, round)?;
    let in_flight = round.in_flight as usize;
    let local = Arc::new(Buffer::new(in_flight * MAX_LEN));
    let local_mr = rails.domain.register(&local, Access::LOCAL_WRITE)?;
    let info = rails.connection_info(Vec::new())?;
    let peer: ConnectionInfo = server.receive()?;
    server.send(&info)?;
    rails.connect(&peer)?;
    let [memory, pattern] = &peer.regions[..] else {
        bail!("the server's connection info must contain two regions")
    };
    let (memory, pattern) = (RemoteRegion::decode(memory)?, RemoteRegion::decode(pattern)?);
    rails.vqp.import(&memory)?;
    rails.vqp.import(&pattern)?;
    // The server arms its fault when both sides are connected.
    server.receive::<()>()?;
    server.send(&())?;
    server.receive::<()>()?;
    rails.arm(round)?;

    let mut client = Client {
        rails,
        workload: Workload::new(round.seed, round.ops),
        in_flight,
        local,
        local_mr,
        memory,
        pattern,
        collected: ClientReport::default(),
        posts: true,
        done: 0,
        completions: Vec::new(),
    };
    client.run(Duration::from_millis(round.timeout_ms), server, progress)?;
    let report = client.report();
    server.send(&())?;
    // The peer's vQP may still need responses from this vQP.
    let since = Instant::now();
    while !server.is_readable()? && since.elapsed() < RECEIVE_TIMEOUT {
        client.poll()?;
    }
    let seen: ServerReport = server.receive()?;
    client.rails.vqp.close()?;
    drop(client);
    server.receive::<()>()?;
    Ok((report, seen, [info.addresses, peer.addresses]))
}

impl Client {
    /// Posts for `timeout` at most. The operations that are in flight then have as long again to
    /// complete.
    fn run(&mut self, timeout: Duration, server: &PeerConnection, progress: &Progress) -> anyhow::Result<()> {
        let since = Instant::now();
        let mut last_report = Duration::ZERO;
        while !self.is_done() && since.elapsed() < 2 * timeout {
            self.posts = since.elapsed() < timeout;
            self.poll()?;
            if since.elapsed() > last_report + PROGRESS_INTERVAL {
                last_report = since.elapsed();
                progress.completed(self.done as u64);
                if server.is_readable()? {
                    // The server has failed: what it sends is an error.
                    break;
                }
            }
        }
        self.posts = false;
        Ok(())
    }

    fn is_done(&self) -> bool {
        let vqp = &self.rails.vqp;
        // After a move, the server delivers its receives when it knows that the move is complete.
        let all_posted = !self.posts || self.collected.ops.len() == self.workload.ops.len();
        let all_completed = all_posted && self.done == self.collected.ops.len() && vqp.is_move_confirmed();
        all_completed || vqp.close_reason().is_some() && self.done == self.collected.ops.len()
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        self.rails.check_fault();
        self.post()?;
        let mut completions = core::mem::take(&mut self.completions);
        completions.clear();
        self.rails.vqp.poll(&mut completions);
        for completion in &completions {
            self.on_completion(completion);
        }
        self.completions = completions;
        if self.rails.vqp.is_halted() && self.done == self.collected.ops.len() {
            // The client has recorded every error. The checker needs nothing else.
            self.rails.vqp.resume();
        }
        Ok(())
    }

    fn post(&mut self) -> anyhow::Result<()> {
        while self.posts
            && self.collected.ops.len() < self.workload.ops.len()
            && self.collected.ops.len() - self.done < self.in_flight
            && !self.rails.vqp.is_halted()
            && self.rails.vqp.close_reason().is_none()
        {
            let n = self.collected.ops.len();
            let request = self.request(n);
            self.collected.ops.push(OpRecord { posted: self.rails.now(), completion: None });
            self.rails.vqp.post_send(request).with_context(|| format!("the vQP refused operation {n}"))?;
            self.rails.after_post(n + 1)?;
        }
        Ok(())
    }

    fn slot_offset(&self, n: usize) -> usize {
        n % self.in_flight * MAX_LEN
    }

    fn request(&self, n: usize) -> SendWr {
        let op = self.workload.ops[n];
        let (id, place) = (self.workload.id(n), self.slot_offset(n));
        let local = || Data::sge(self.local_mr.sge(place as u64, op.len));
        let payload = || {
            let mut bytes = vec![0; op.len as usize];
            fill(id, &mut bytes);
            if op.len == 8 {
                return Data::inline(&bytes);
            }
            self.local.write_at(place, &bytes);
            local()
        };
        let results = || {
            self.local.write_at(place, &vec![0xee; op.len as usize]);
            local()
        };
        let (op, data) = match op.kind {
            Kind::Write => (SendOp::Write(self.memory.at(op.at)), payload()),
            Kind::Send => (SendOp::Send, payload()),
            Kind::Read => (SendOp::Read(self.pattern.at(op.at)), results()),
            Kind::Cas => {
                (SendOp::CompareSwap { remote: self.memory.at(op.at), compare: 0, swap: id }, results())
            }
            Kind::Faa => (SendOp::FetchAdd { remote: self.memory.at(op.at), add: 1 }, results()),
        };
        SendWr::new(n as u64, op, data)
    }

    fn on_completion(&mut self, completion: &Completion) {
        let n = self.done;
        if completion.wr_id != n as u64 || n >= self.collected.ops.len() {
            self.collected.stray += 1;
            return;
        }
        self.done += 1;
        let value = if completion.is_success() { self.value(n) } else { 0 };
        self.collected.ops[n].completion = Some(CompletionRecord {
            at: self.rails.now(),
            outcome: completion.outcome,
            resolution: completion.resolution,
            value,
        });
    }

    /// Returns the old value of an atomic, or the number of wrong words of a READ.
    fn value(&self, n: usize) -> u64 {
        let (op, place) = (self.workload.ops[n], self.slot_offset(n));
        match op.kind {
            Kind::Write | Kind::Send => 0,
            Kind::Cas | Kind::Faa => self.local.load(place),
            Kind::Read => {
                let words = (0..op.len as usize).step_by(8);
                words.filter(|&i| self.local.load(place + i) != pattern(op.at + i as u64)).count() as u64
            }
        }
    }

    fn report(&mut self) -> ClientReport {
        let mut report = self.collected.clone();
        report.failover = self.rails.failover();
        report.fault_at = self.rails.fault_at;
        report.ended = self.rails.ended();
        report
    }
}

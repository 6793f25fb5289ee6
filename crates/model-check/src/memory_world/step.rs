//! The steps of the adversary.

use mitra_consensus::Permissions;
use mitra_consensus_memory::MemoryRequest;
use mitra_prng::Prng;
use mitra_verbs::Ended;

use super::disk::WriteFault;
use super::fabric::{Moved, QpId, WorkOp};
use super::history::Register;
use super::process::Life;
use super::{MemoryWorld, REGISTER_CAPACITY};

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(usize),
    Dial(usize),
    DeliverHello(usize),
    DeliverWelcome(usize),
    /// The life stops waiting for the answer to its handshake. The frame stays in transit.
    GiveUp(usize),
    DeliverRequest(QpId),
    DeliverReply(QpId),
    /// A piece of the work request at this index moves.
    Move(QpId, usize),
    /// All pieces of the work request at this index move.
    MoveWhole(QpId, usize),
    Complete(QpId, usize),
    /// The end notices that its connection is broken.
    NoticeBreak(QpId),
    /// The connection breaks at the process's end.
    Break(QpId),
    StartNode,
    StopNode,
    Reboot,
    FailDisk,
    LosePower,
    RepairDisk,
    HangNic,
    ResumeNic,
    RestartProcess(usize),
    Suspend(usize),
    Resume(usize),
}

pub(super) struct Weights {
    submit: u64,
    handshake: u64,
    message: u64,
    moves: u64,
    complete: u64,
    notice: u64,
    fault: u64,
    repair: u64,
    /// Requests stall on the queue pairs whose number is this value modulo 4.
    stalled: Option<u64>,
    /// Whether all pieces of a request move in one step.
    moves_whole: bool,
}

impl Weights {
    pub(super) fn adversary(rng: &mut Prng) -> Weights {
        let mut weight = || 1 << (2 * rng.below(5));
        let (submit, handshake, message, moves) = (weight(), 4 * weight(), 4 * weight(), 16 * weight());
        let (complete, notice, repair) = (4 * weight(), weight(), weight());
        let fault = [0, 0, 1, 4][rng.index(4)];
        let stalled = (rng.below(3) == 0).then(|| rng.below(4));
        let moves_whole = rng.below(2) == 0;
        Weights { submit, handshake, message, moves, complete, notice, fault, repair, stalled, moves_whole }
    }

    /// Returns weights under which no fault happens, and nothing is submitted.
    pub(super) fn stable() -> Weights {
        Weights {
            submit: 0,
            handshake: 1,
            message: 4,
            moves: 4,
            complete: 4,
            notice: 4,
            fault: 0,
            repair: 1,
            stalled: None,
            moves_whole: false,
        }
    }
}

impl MemoryWorld {
    /// Takes a random step. The probability of a possible step is proportional to its weight.
    pub(super) fn step(&mut self, weights: &Weights) {
        self.now += 1;
        let mut steps = self.steps(weights);
        steps.retain(|&(_, step)| fault_kind(step).is_none_or(|kind| self.knobs.allows(kind)));
        let mut remaining = self.rng.below(steps.iter().map(|(weight, _)| weight).sum());
        let drawn = steps.into_iter().find(|(weight, _)| {
            let drawn = remaining < *weight;
            remaining = remaining.saturating_sub(*weight);
            drawn
        });
        if let Some((_, step)) = drawn {
            self.faults += u32::from(fault_kind(step).is_some());
            self.apply(step);
        }
    }

    fn steps(&self, weights: &Weights) -> Vec<(u64, Step)> {
        let mut steps = Vec::new();
        for (at, life) in self.lives.iter().enumerate().filter(|(_, life)| !life.is_dead) {
            if life.is_suspended {
                steps.push((weights.repair, Step::Resume(at)));
                continue;
            }
            if life.may_submit() {
                steps.push((weights.submit, Step::Submit(at)));
            }
            let idle = life.attempt.is_none() && !life.client.is_connected() && !life.client.is_crashed();
            if idle {
                steps.push((weights.handshake, Step::Dial(at)));
            }
            if life.attempt.is_some() {
                steps.push((weights.fault, Step::GiveUp(at)));
            }
            steps.push((weights.fault, Step::Suspend(at)));
            if self.is_latest(at) {
                steps.push((weights.fault, Step::RestartProcess(at)));
            }
        }
        steps.extend((0..self.hellos.len()).map(|at| (weights.handshake, Step::DeliverHello(at))));
        steps.extend((0..self.welcomes.len()).map(|at| (weights.handshake, Step::DeliverWelcome(at))));
        for &qp in self.ends.keys() {
            self.steps_of_end(qp, weights, &mut steps);
        }
        if self.node.is_some() {
            steps.push((weights.fault, Step::StopNode));
        } else if !self.is_lost {
            steps.push((weights.repair * 4, Step::StartNode));
        }
        steps.extend([Step::Reboot, Step::FailDisk, Step::LosePower].map(|step| (weights.fault, step)));
        steps.push((weights.repair, Step::RepairDisk));
        let nic =
            if self.nic.hung { (weights.repair, Step::ResumeNic) } else { (weights.fault, Step::HangNic) };
        steps.push(nic);
        steps
    }

    fn steps_of_end(&self, qp: QpId, weights: &Weights, steps: &mut Vec<(u64, Step)>) {
        let (life, end) = &self.ends[&qp];
        let is_open = end.process_at(&self.nic).is_some() && self.node.is_some();
        let process_runs =
            !end.is_closed && self.lives[*life].runs() && self.lives[*life].client.is_connected();
        if is_open && !end.requests.is_empty() {
            steps.push((weights.message, Step::DeliverRequest(qp)));
        }
        let moves = if weights.stalled == Some(qp % 4) { 0 } else { weights.moves };
        let may_move = end.process_moving_at(&self.nic).is_some() && self.node.is_some();
        if may_move && !end.is_refused {
            let step = if weights.moves_whole { Step::MoveWhole } else { Step::Move };
            steps.extend((0..end.works.len()).map(|work| (moves, step(qp, work))));
        }
        if !process_runs {
            return;
        }
        if !end.replies.is_empty() {
            steps.push((weights.message, Step::DeliverReply(qp)));
        }
        let executed = (0..end.works.len()).filter(|&work| end.works[work].is_executed());
        steps.extend(executed.map(|work| (weights.complete, Step::Complete(qp, work))));
        let is_latest = end.process_at(&self.nic).is_some_and(|p| self.nic.connection(p) == end.peer);
        let broken = end.is_refused || !is_open || !is_latest;
        steps.push(if broken {
            (weights.notice, Step::NoticeBreak(qp))
        } else {
            (weights.fault, Step::Break(qp))
        });
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Submit(life) => {
                self.last_write += 1;
                let op = self.lives[life].random_operation(
                    &self.regions,
                    self.knobs.region,
                    super::PROCESSES,
                    self.last_write,
                    &mut self.rng,
                );
                if let Some(op) = op {
                    self.lives[life].submit(op, self.now);
                    self.handle(life, Vec::new());
                }
            }
            Step::Dial(life) => self.dial(life),
            Step::DeliverHello(at) => self.deliver_hello(at),
            Step::DeliverWelcome(at) => self.deliver_welcome(at),
            Step::GiveUp(life) => self.lives[life].attempt = None,
            Step::DeliverRequest(qp) => self.deliver_request(qp),
            Step::DeliverReply(qp) => {
                let Some((life, end)) = self.ends.get_mut(&qp) else { return };
                let (life, mut responses) = (*life, Vec::new());
                let Some(reply) = end.replies.pop_front() else { return };
                self.lives[life].client.on_message(&reply, end, &mut responses);
                self.handle(life, responses);
            }
            Step::Move(qp, work) => {
                let piece = self.rng.index(self.ends[&qp].1.works[work].pieces());
                self.move_piece(qp, work, piece);
            }
            Step::MoveWhole(qp, work) => {
                for piece in 0..self.ends[&qp].1.works[work].pieces() {
                    self.move_piece(qp, work, piece);
                }
            }
            Step::Complete(qp, work) => {
                let Some((life, end)) = self.ends.get_mut(&qp) else { return };
                let (life, work, mut responses) = (*life, end.works.remove(work), Vec::new());
                self.lives[life].client.on_completion(work.wr_id, Ended::Success, &work.data, &mut responses);
                self.handle(life, responses);
            }
            Step::NoticeBreak(qp) | Step::Break(qp) => self.break_end(qp),
            Step::StartNode => self.start_node(),
            Step::StopNode => self.stop_node(),
            Step::Reboot => self.reboot(),
            Step::FailDisk => self.disk.set_fault(WriteFault::Fail),
            Step::LosePower => {
                let bytes = self.rng.index(24);
                self.disk.set_fault(WriteFault::StopAfter(bytes));
            }
            Step::RepairDisk => self.disk.set_fault(WriteFault::None),
            Step::HangNic => self.nic.hung = true,
            Step::ResumeNic => self.nic.hung = false,
            Step::RestartProcess(life) => {
                // The earlier life has crashed, or it is only suspended.
                let is_dead = self.rng.below(2) == 0;
                let Life { is_dead: dead, is_suspended, process, .. } = &mut self.lives[life];
                (*dead, *is_suspended) = (is_dead, true);
                let process = *process;
                self.start_life(process);
            }
            Step::Suspend(life) => self.lives[life].is_suspended = true,
            Step::Resume(life) => self.lives[life].is_suspended = false,
        }
    }

    fn deliver_request(&mut self, qp: QpId) {
        let (Some((_, end)), Some(node)) = (self.ends.get_mut(&qp), &mut self.node) else { return };
        let (Some(p), Some(request)) = (end.process_at(&self.nic), end.requests.pop_front()) else { return };
        if self.nic.connection(p) != end.peer {
            return; // the memory node polls only the latest connection of a process
        }
        let reply = node.handle_request(p, &request, &mut self.nic);
        let change = match postcard::from_bytes(&request) {
            Ok(MemoryRequest::ChangePermissions { region, read, write }) => {
                Some((region, Permissions { read, write }))
            }
            _ => None,
        };
        if let (Some((region, permissions)), Some(_), Some(connection)) = (change, &reply, end.peer) {
            self.rights.change(p, connection, region, permissions);
        }
        end.replies.extend(reply);
        self.reboot_if_stopped();
    }

    fn move_piece(&mut self, qp: QpId, at: usize, piece: usize) {
        let Some((life, end)) = self.ends.get_mut(&qp) else { return };
        let (Some(p), Some(connection)) = (end.process_moving_at(&self.nic), end.peer) else { return };
        let work = &mut end.works[at];
        let buffer = work.buffer(&self.nic).cloned();
        let moved = work.move_piece(&self.nic, p, piece);
        self.nic.on_moved(connection);
        let is_update = !matches!(work.op, WorkOp::Read);
        // A compare-and-swap that finds a value other than 0 writes nothing.
        let has_swapped =
            !matches!(work.op, WorkOp::CompareSwap(..)) || work.data.iter().all(|&byte| byte == 0);
        end.is_refused |= work.refused;
        let operation = &self.lives[*life].operations[work.wr_id as usize - 1];
        let (is_done, target) = (operation.is_done, operation.target());
        let contents = self.node.as_ref().and_then(|node| {
            let buffer = buffer?;
            node.buffers().iter().position(|other| std::sync::Arc::ptr_eq(other, &buffer))
        });
        let (Some(region), true, Some((register, write))) = (contents, is_update, target) else {
            return self.reboot_if_stopped();
        };
        let Some(history) = self.histories.last_mut() else { return };
        match moved {
            Moved::Executed(executed) => {
                if executed && has_swapped {
                    history.execute(register, write, self.now);
                }
                let permitted = self.rights.permits(p, connection, region as u8);
                self.require(permitted, "a write is executed only by a process that holds the right");
                self.require(!is_done, "a write is not executed after its response");
            }
            Moved::Failed => history.fail(register, write, self.now),
            Moved::Refused => {}
        }
        self.reboot_if_stopped();
    }

    /// Ends the connection at the process's end. Requests that the memory node has received may
    /// still be executed.
    fn break_end(&mut self, qp: QpId) {
        let Some((life, end)) = self.ends.get_mut(&qp) else { return };
        let (life, mut responses) = (*life, Vec::new());
        let current = &mut self.lives[life];
        for work in &end.works {
            if let Some(outcome) = work.outcome_after_failure(end.is_refused, &mut self.rng) {
                current.client.on_completion(work.wr_id, outcome, &[], &mut responses);
            }
        }
        end.is_closed = true;
        current.client.on_disconnect();
        current.end = None;
        self.handle(life, responses);
    }
}

pub(super) const FAULT_KINDS: usize = 9;

/// Returns the kind of fault that a step is, below [`FAULT_KINDS`].
fn fault_kind(step: Step) -> Option<usize> {
    Some(match step {
        Step::GiveUp(_) => 0,
        Step::Break(_) => 1,
        Step::StopNode => 2,
        Step::Reboot => 3,
        Step::FailDisk => 4,
        Step::LosePower => 5,
        Step::HangNic => 6,
        Step::RestartProcess(_) => 7,
        Step::Suspend(_) => 8,
        _ => return None,
    })
}

// The longest write of these worlds moves in several pieces.
const _: () = assert!(REGISTER_CAPACITY >= 8);

impl super::process::Operation {
    /// Returns the register and the number of an update of a register.
    fn target(&self) -> Option<(Register, u64)> {
        use mitra_consensus::Op;
        match self.op {
            Op::Write { region, register, cell } | Op::WriteOnce { region, register, cell } => {
                Some(((region, register), cell))
            }
            Op::Read { .. } | Op::ChangePermissions { .. } => None,
        }
    }
}

//! The probe: whether the responder's PSN and the states of queue pairs can be read at all.

use std::fmt;
use std::time::Duration;

use mitra_verbs::{
    AtomicScope, Data, LocalAckTimeout, Provider, Psn, QpState, Result, SendOp, SendWr, WcStatus,
};

use crate::connection::{Deadline, End, Pair, PairConfig, RESPONDER_PSN};

/// The probe's 19 packets cross the end of the PSN space.
const FIRST_PSN: Psn = Psn::new(0xff_fff0);

const WRITES: u32 = 5;

/// The packets of each WRITE and of the READ.
const PACKETS: u32 = 3;

/// The whole probe takes milliseconds on a NIC that works.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The result of [`probe`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeReport {
    /// What the probe found wrong, in the order of its steps. Empty if nothing is wrong.
    pub findings: Vec<ProbeFinding>,
}

impl ProbeReport {
    /// Whether [`QpStatus::rq_psn`](mitra_verbs::QpStatus::rq_psn) counted all packets, in RTS and
    /// in ERR, and nothing else was wrong. A NIC that counts packets before their data is in memory
    /// passes, so this value alone does not permit
    /// [`psn_query`](mitra_verbs::Capabilities::psn_query).
    pub fn passed(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether each state that was queried was the real one.
    pub fn states_are_true(&self) -> bool {
        !self.findings.iter().any(|finding| matches!(finding, ProbeFinding::State { .. }))
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return f.write_str("the responder PSN counted every packet, in RTS and in ERR");
        }
        for (index, finding) in self.findings.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{finding}")?;
        }
        Ok(())
    }
}

/// Something that the probe found wrong with a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeFinding {
    /// The state of a queue pair is not the one to which it was changed.
    #[error("query_qp reports {found} for the {end} in {expected}")]
    State {
        /// "requester" or "responder".
        end: &'static str,
        /// The state of the last change.
        expected: QpState,
        /// The state that the NIC reports.
        found: QpState,
    },
    /// The next expected PSN of a queue pair is not the number after the last packet.
    #[error("rq_psn of the {end} in {state} is {found}, and the packets end before {expected}")]
    Psn {
        /// "requester" or "responder".
        end: &'static str,
        /// The state of the queue pair.
        state: QpState,
        /// The number after the last packet.
        expected: Psn,
        /// The number that the NIC reports.
        found: Psn,
    },
    /// A request between the two queue pairs failed.
    #[error("a {operation} between two queue pairs of the NIC ended with {status}")]
    Request {
        /// The operation.
        operation: &'static str,
        /// The status of its completion.
        status: WcStatus,
    },
    /// Something did not happen in time.
    #[error("{awaited} did not complete within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// What the probe waited for.
        awaited: &'static str,
    },
}

/// Sends requests between two queue pairs of the NIC, and compares the responder's PSN with the
/// number of packets: in RTS when all have completed, and in ERR behind the flushed markers. Also
/// compares the reported states.
///
/// The call polls for some milliseconds, or for 5 s if the NIC does not answer. It destroys all of
/// its objects, even if it fails.
///
/// # Errors
/// The error of a call. What the NIC answers wrongly is a [`ProbeFinding`].
pub fn probe(nic: &dyn Provider) -> Result<ProbeReport> {
    let config = PairConfig {
        memory: 8 + PACKETS as usize * 4096,
        first_psn: FIRST_PSN,
        local_ack_timeout: LocalAckTimeout::from_code(14),
        // 7 means "for ever" on some NICs.
        retry_cnt: 6,
    };
    let mut probe = Probe {
        pair: Pair::connect(nic, nic, &config)?,
        deadline: Deadline::after(nic, TIMEOUT),
        expected: FIRST_PSN,
        findings: Vec::new(),
    };
    if let Err(stop) = probe.run() {
        match stop {
            Stop::Finding(finding) => probe.findings.push(finding),
            Stop::Error(error) => return Err(error),
        }
    }
    let Probe { pair, findings, .. } = probe;
    pair.destroy()?;
    Ok(ProbeReport { findings })
}

struct Probe<'a> {
    pair: Pair<'a>,
    deadline: Deadline<'a>,
    /// The number after the last packet that the responder has received.
    expected: Psn,
    findings: Vec<ProbeFinding>,
}

/// Why a probe cannot go on.
enum Stop {
    Finding(ProbeFinding),
    Error(mitra_verbs::Error),
}

impl From<mitra_verbs::Error> for Stop {
    fn from(error: mitra_verbs::Error) -> Stop {
        Stop::Error(error)
    }
}

impl Probe<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let len = (PACKETS as usize * self.pair.path_mtu.bytes()) as u32;
        let (remote, word) = (self.pair.responder.mr.remote(8), self.pair.responder.mr.remote(0));
        for _ in 0..WRITES {
            self.execute("WRITE", SendOp::Write(remote), len, PACKETS)?;
        }
        // A READ takes as many PSNs as its response has packets (IBTA volume 1, 9.7.3).
        self.execute("READ", SendOp::Read(remote), len, PACKETS)?;
        if self.pair.responder.nic().attr().capabilities.atomic_scope != AtomicScope::None {
            self.execute("FETCH_ADD", SendOp::FetchAdd { remote: word, add: 1 }, 8, 1)?;
        }
        self.compare(QpState::Rts)?;

        // The requester first: its flushed requests then say nothing about the responder.
        for end in [&self.pair.requester, &self.pair.responder] {
            end.fence()?;
            end.post_send_marker()?;
        }
        while !(self.pair.requester.are_both_flushed() && self.pair.responder.are_both_flushed()) {
            self.check_time("a flushed marker in ERR")?;
            self.pair.poll()?;
        }
        self.compare(QpState::Err)?;
        Ok(())
    }

    /// Executes one operation of `len` bytes and `packets` packets.
    fn execute(&mut self, operation: &'static str, op: SendOp, len: u32, packets: u32) -> Result<(), Stop> {
        let requester = &self.pair.requester;
        requester.post(&[SendWr::new(0, op, Data::sge(requester.mr.sge(8, len)))])?;
        loop {
            if let Some(wc) = self.pair.poll()?.first() {
                self.expected = self.expected.add(packets);
                return match wc.status {
                    WcStatus::Success => Ok(()),
                    status => Err(Stop::Finding(ProbeFinding::Request { operation, status })),
                };
            }
            self.check_time(operation)?;
        }
    }

    fn check_time(&self, awaited: &'static str) -> Result<(), Stop> {
        match self.deadline.is_over() {
            true => Err(Stop::Finding(ProbeFinding::Timeout { awaited })),
            false => Ok(()),
        }
    }

    /// Compares what the NIC reports of both queue pairs.
    fn compare(&mut self, state: QpState) -> Result<()> {
        let ends: [(&str, &End<'_>, Psn); 2] = [
            ("requester", &self.pair.requester, RESPONDER_PSN),
            ("responder", &self.pair.responder, self.expected),
        ];
        for (end, queue_pair, expected) in ends {
            let status = queue_pair.query()?;
            if status.state != state {
                self.findings.push(ProbeFinding::State { end, expected: state, found: status.state });
            }
            if status.rq_psn != expected {
                self.findings.push(ProbeFinding::Psn { end, state, expected, found: status.rq_psn });
            }
        }
        Ok(())
    }
}

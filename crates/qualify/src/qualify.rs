//! The qualification: fences in the middle of messages.

use std::thread;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_verbs::{AtomicScope, Error, LocalAckTimeout, Provider, Psn, SendWr, WcStatus};

use crate::connection::{Deadline, Pair, PairConfig};
use crate::qualification::{FenceCounts, MAX_FENCES, Qualification};
use crate::stream::{MEMORY, Stream};

/// Half of the 24-bit PSN space. A PSN at this distance or more is an earlier one.
const HALF_PSN_SPACE: u32 = 1 << 23;

/// A stream reaches its fence in some milliseconds.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// After the marker, the requester retransmits for this time, and memory must not change.
const SETTLE_TIME: Duration = Duration::from_millis(10);

/// The size of a qualification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QualifyConfig {
    /// The fences that cut off a stream of WRITEs.
    pub write_fences: u32,
    /// The fences that cut off a stream of atomics, if the NIC has atomics.
    pub atomic_fences: u32,
    /// The time after which a marker counts as missing. It takes up to 20 ms on a busy machine.
    pub marker_timeout: Duration,
}

impl Default for QualifyConfig {
    /// Returns 60 fences under WRITEs and 20 under atomics, which take a few seconds.
    fn default() -> QualifyConfig {
        QualifyConfig { write_fences: 60, atomic_fences: 20, marker_timeout: Duration::from_secs(5) }
    }
}

/// Why a NIC could not be qualified.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QualifyError {
    /// A call failed.
    #[error(transparent)]
    Nic(#[from] Error),
    /// Requests failed before the fence, again and again.
    #[error(
        "requests between the two NICs end with {status} before any fence; check that their port is up and that they reach each other"
    )]
    Request {
        /// The status of the last one.
        status: WcStatus,
    },
    /// Requests did not complete.
    #[error("requests between the two NICs do not complete within {} s", STREAM_TIMEOUT.as_secs())]
    Stalled,
}

/// Fences the NIC as responder in the middle of streams of requests from `peer`, and compares its
/// PSN with its memory, packet by packet. Also observes whether memory changes behind the fence.
///
/// `peer` may be the same NIC. Another NIC of this host is better, because packets inside a NIC may
/// take a shorter way than packets from a cable. `progress` is called after each fence, with the
/// number of fences that cut a stream off and the number that is wanted. The call polls for some
/// seconds, or some minutes if few fences cut a stream off. It destroys all of its objects, even if
/// it fails.
///
/// # Errors
/// See [`QualifyError`].
pub fn qualify(
    nic: &dyn Provider,
    peer: &dyn Provider,
    config: QualifyConfig,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Qualification, QualifyError> {
    let has_atomics = [nic, peer].iter().all(|nic| nic.attr().capabilities.atomic_scope != AtomicScope::None);
    let atomic_fences = if has_atomics { config.atomic_fences } else { 0 };
    let total = config.write_fences + atomic_fences;
    let mut rng = Prng::new(nic.random_u64()?);
    let mut qualification = Qualification::default();
    for (stream, wanted) in [(Stream::Writes, config.write_fences), (Stream::Atomics, atomic_fences)] {
        for _ in 0..wanted.saturating_mul(MAX_FENCES) {
            let fence = fence_with_retries(nic, peer, stream, config.marker_timeout, &mut rng)?;
            let counts = match stream {
                Stream::Writes => &mut qualification.writes,
                Stream::Atomics => &mut qualification.atomics,
            };
            counts.add(&fence);
            let is_enough = counts.cut_off == wanted;
            progress(qualification.writes.cut_off + qualification.atomics.cut_off, total);
            if fence.is_marker_missing {
                return Ok(qualification); // Each further fence would wait for its marker as long.
            }
            if is_enough {
                break;
            }
        }
    }
    Ok(qualification)
}

/// What one fence showed.
#[derive(Clone, Copy, Debug, Default)]
struct Fence {
    is_marker_missing: bool,
    is_cut_off: bool,
    is_ahead: bool,
    is_behind: bool,
    has_psn_changed: bool,
    is_late_before_marker: bool,
    is_late_after_marker: bool,
}

impl FenceCounts {
    fn add(&mut self, fence: &Fence) {
        self.fences += 1;
        let is_equal = !(fence.is_marker_missing || fence.is_ahead || fence.is_behind);
        for (count, is_counted) in [
            (&mut self.cut_off, fence.is_cut_off),
            (&mut self.equal, is_equal),
            (&mut self.ahead, fence.is_ahead),
            (&mut self.behind, fence.is_behind),
            (&mut self.psn_changed, fence.has_psn_changed),
            (&mut self.late_before_marker, fence.is_late_before_marker),
            (&mut self.late_after_marker, fence.is_late_after_marker),
            (&mut self.missing_markers, fence.is_marker_missing),
        ] {
            *count += u32::from(is_counted);
        }
    }
}

/// On a busy machine, a request may fail before the fence. Its stream then starts anew.
fn fence_with_retries(
    nic: &dyn Provider,
    peer: &dyn Provider,
    stream: Stream,
    marker_timeout: Duration,
    rng: &mut Prng,
) -> Result<Fence, QualifyError> {
    let mut failed = Ok(());
    for _ in 0..5 {
        match fence_once(nic, peer, stream, marker_timeout, rng) {
            Err(QualifyError::Request { status }) => failed = Err(QualifyError::Request { status }),
            result => return result,
        }
    }
    failed.map(|()| Fence::default())
}

/// Starts a stream, fences the responder in its middle, and compares.
fn fence_once(
    nic: &dyn Provider,
    peer: &dyn Provider,
    stream: Stream,
    marker_timeout: Duration,
    rng: &mut Prng,
) -> Result<Fence, QualifyError> {
    let first_psn = Psn::new(rng.bits() as u32);
    let local_ack_timeout = LocalAckTimeout::from_duration(Duration::from_millis(4));
    let config = PairConfig { memory: MEMORY, first_psn, local_ack_timeout, retry_cnt: 6 };
    let mut pair = Pair::connect(peer, nic, &config)?;
    let (posted, usual_time) = warm_up(&mut pair, stream, rng)?;
    let (posted, sample) = fence_in_burst(&pair, stream, posted, usual_time, rng)?;
    let deadline = Deadline::after(nic, marker_timeout);
    while !pair.responder.is_receive_flushed() {
        if deadline.is_over() {
            pair.destroy()?;
            return Ok(Fence { is_marker_missing: true, ..Fence::default() });
        }
        pair.poll()?;
    }
    let psn = pair.responder.query()?.rq_psn;
    let (sample_at_marker, at_marker) = (stream.sample(&pair), stream.read(&pair));

    let settled = Deadline::after(nic, SETTLE_TIME);
    while !settled.is_over() {
        pair.poll()?;
    }
    let (memory, psn_later) = (stream.read(&pair), pair.responder.query()?.rq_psn);
    let path_mtu = pair.path_mtu.bytes();
    pair.destroy()?;

    let counted = psn.distance(first_psn);
    // A PSN before the first packet counts nothing.
    let counted = if counted < HALF_PSN_SPACE { counted } else { 0 };
    let comparison = stream.compare(&memory, path_mtu, u64::from(counted));
    Ok(Fence {
        is_marker_missing: false,
        is_cut_off: stream.is_cut_off(&memory, path_mtu, posted),
        is_ahead: comparison.is_ahead,
        is_behind: comparison.is_behind,
        has_psn_changed: psn != psn_later,
        is_late_before_marker: sample != sample_at_marker,
        is_late_after_marker: at_marker != memory,
    })
}

/// Executes a few bursts of requests. Returns the number of posted requests, and the time that a
/// burst takes.
fn warm_up(pair: &mut Pair<'_>, stream: Stream, rng: &mut Prng) -> Result<(u64, Duration), QualifyError> {
    let nic = pair.responder.nic();
    let stalled = Deadline::after(nic, STREAM_TIMEOUT);
    let mut posted = 0;
    // The first burst also warms up caches, so that the last measured time is the usual one.
    let mut usual_time = Duration::ZERO;
    for _ in 0..rng.between(2, 5) {
        let requests = burst(pair, stream, posted);
        let began = nic.now();
        pair.requester.post(&requests)?;
        posted += stream.burst();
        let mut completed = 0;
        while completed < stream.burst() {
            completed += poll_successes(pair)?;
            if stalled.is_over() {
                return Err(QualifyError::Stalled);
            }
        }
        usual_time = nic.now() - began;
    }
    Ok((posted, usual_time))
}

/// Fences the responder in the middle of a burst. Returns the number of posted requests, and the
/// sample of memory right behind the change to ERR.
///
/// Another thread posts the burst, because a NIC in software may execute it before the post
/// returns.
fn fence_in_burst(
    pair: &Pair<'_>,
    stream: Stream,
    posted: u64,
    usual_time: Duration,
    rng: &mut Prng,
) -> Result<(u64, Vec<u64>), QualifyError> {
    let nanos = u64::try_from(usual_time.as_nanos()).unwrap_or(u64::MAX);
    let delay = Duration::from_nanos(rng.below(nanos));
    let requests = burst(pair, stream, posted);
    thread::scope(|scope| {
        let posting = scope.spawn(|| pair.requester.post(&requests));
        let fence = Deadline::after(pair.responder.nic(), delay);
        while !fence.is_over() {
            thread::yield_now();
        }
        let fenced = pair.responder.fence();
        let sample = stream.sample(pair);
        posting.join().expect("a post does not panic")?;
        fenced?;
        Ok((posted + stream.burst(), sample))
    })
}

/// Returns the requests from number `first` on that are posted in one call, so that many packets
/// are under way.
fn burst(pair: &Pair<'_>, stream: Stream, first: u64) -> Vec<SendWr> {
    (first..first + stream.burst()).map(|index| stream.request(pair, index)).collect()
}

/// Polls, and returns the number of requests that completed.
fn poll_successes(pair: &mut Pair<'_>) -> Result<u64, QualifyError> {
    let completions = pair.poll()?;
    match completions.iter().find(|wc| wc.status != WcStatus::Success) {
        Some(failed) => Err(QualifyError::Request { status: failed.status }),
        None => Ok(completions.len() as u64),
    }
}

//! When the progress thread busy-polls the socket instead of sleeping on it.

use core::time::Duration;

use mitra_verbs::Time;

use super::thread_cpu_clock::ThreadCpuClock;

/// How long the progress thread spins after it has received a datagram. Peers of a passive process
/// then see the latency of a process that polls.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// The thread spins only after this many receives in a row, each at most [`DENSE_GAP`] after the
/// one before. Peers that send now and then would not find it spinning anyway.
const DENSE_RECEIVES: u32 = 8;
const DENSE_GAP: Duration = Duration::from_micros(200);
/// A process is passive if it has not called the NIC for this long. A process that waits for data
/// polls every microsecond. A process that polls now and then (UCX in a barrier: every millisecond)
/// is not waiting for data.
const PASSIVE_AFTER: Duration = Duration::from_micros(100);
/// How often the spinning thread checks its share of the CPU.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// With a smaller share of the CPU, the spinning thread competes with other threads and stops
/// spinning.
const MIN_CPU_SHARE: f64 = 0.75;
/// How long the progress thread does not spin after it has found that its share of the CPU is too
/// small.
const BACKOFF: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct SpinPolicy {
    last_receive: Time,
    /// The receives in a row with short gaps.
    dense_receives: u32,
    /// When the NIC last raised an event. The consumer that it wakes may need this CPU.
    last_event: Time,
    last_check: Time,
    /// The thread's CPU time at `last_check`.
    cpu_time_at_check: Duration,
    /// The end of the current back-off.
    not_before: Time,
}

impl SpinPolicy {
    pub(crate) fn record_receive(&mut self, now: Time) {
        let is_dense = now - self.last_receive <= DENSE_GAP;
        self.dense_receives = if is_dense { self.dense_receives.saturating_add(1) } else { 0 };
        self.last_receive = now;
    }

    pub(crate) fn record_event(&mut self, now: Time) {
        self.last_event = now;
    }

    /// Returns whether the calling progress thread polls again at once instead of sleeping. The
    /// thread does if it has just received the last of many datagrams, the process is passive and
    /// waits for none of them, and no other thread needs this CPU.
    pub(crate) fn should_spin(&mut self, now: Time, last_host_call: Time) -> bool {
        if self.dense_receives < DENSE_RECEIVES
            || now - self.last_receive >= SPIN_TIME
            || now - self.last_event < SPIN_TIME
            || now - last_host_call < PASSIVE_AFTER
            || now < self.not_before
        {
            return false;
        }
        let elapsed = now - self.last_check;
        if elapsed >= CHECK_INTERVAL {
            let cpu_time = ThreadCpuClock::current().cpu_time().unwrap_or_default();
            let used = cpu_time.saturating_sub(self.cpu_time_at_check);
            (self.last_check, self.cpu_time_at_check) = (now, cpu_time);
            // During a longer interval the thread has slept, so its share says nothing about
            // competition.
            if elapsed < 4 * CHECK_INTERVAL && used < elapsed.mul_f64(MIN_CPU_SHARE) {
                self.not_before = now + BACKOFF;
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_spins_after_receive_while_process_is_passive() {
        let at = |micros: u64| Time::from_nanos(micros * 1000);
        let mut policy = SpinPolicy::default();
        let receive = |policy: &mut SpinPolicy, last: u64| {
            (last - 8..=last).for_each(|micros| policy.record_receive(at(micros)));
        };
        assert!(!policy.should_spin(at(9_000), Time::ZERO));
        policy.record_receive(at(9_000));
        assert!(!policy.should_spin(at(9_001), Time::ZERO), "a lone receive");
        receive(&mut policy, 10_000);
        assert!(policy.should_spin(at(10_001), Time::ZERO) && policy.should_spin(at(10_049), Time::ZERO));
        assert!(!policy.should_spin(at(10_050), Time::ZERO), "the last receive is too long ago");
        receive(&mut policy, 20_000);
        assert!(!policy.should_spin(at(20_001), at(19_950)), "the process polls");
        policy.record_event(at(20_000));
        assert!(!policy.should_spin(at(20_001), Time::ZERO), "a consumer of events wakes");
    }
}

//! When the progress thread busy-polls the socket instead of sleeping on it.

use core::time::Duration;

use mitra_verbs::Time;

use super::thread_cpu_clock::ThreadCpuClock;

/// How long the progress thread spins after it has received a datagram. Peers of a passive process
/// then see the latency of a process that polls.
const SPIN_TIME: Duration = Duration::from_micros(50);
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
    last_check: Time,
    /// The thread's CPU time at `last_check`.
    cpu_time_at_check: Duration,
    /// The end of the current back-off.
    not_before: Time,
}

impl SpinPolicy {
    pub(crate) fn record_receive(&mut self, now: Time) {
        self.last_receive = now;
    }

    /// Returns whether the calling progress thread polls again at once instead of sleeping. The
    /// thread does if it has just received a datagram, the process is passive, and no other thread
    /// needs this CPU.
    pub(crate) fn should_spin(&mut self, now: Time, last_host_call: Time) -> bool {
        if now - self.last_receive >= SPIN_TIME
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
        assert!(!policy.should_spin(at(10_000), Time::ZERO));
        policy.record_receive(at(10_000));
        assert!(policy.should_spin(at(10_001), Time::ZERO) && policy.should_spin(at(10_049), Time::ZERO));
        assert!(!policy.should_spin(at(10_050), Time::ZERO), "the last receive is too long ago");
        policy.record_receive(at(20_000));
        assert!(!policy.should_spin(at(20_001), at(19_950)), "the process polls");
    }
}

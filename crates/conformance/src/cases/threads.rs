//! Calls of several threads.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mitra_verbs::{Provider, SendOp, SendWr, WcStatus};

use crate::endpoint::{Endpoint, Link, Options, connect, rc_pair};
use crate::{CaseResult, Fabric, Stop};

const THREADS: u64 = 4;

/// The fabric of a thread that has its NICs already.
struct OfThread {
    nics: [Arc<dyn Provider>; 2],
    wait: fn(),
    timeout: Duration,
}

impl Fabric for OfThread {
    fn name(&self) -> String {
        "threads".to_owned()
    }

    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        self.nics.clone()
    }

    fn wait(&self) {
        (self.wait)();
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

fn thread_wait(fabric: &dyn Fabric) -> CaseResult<fn()> {
    fabric.thread_wait().ok_or_else(|| Stop::refused("threads"))
}

/// Runs a function in each thread, and returns the first error.
fn in_threads(body: impl Fn(u64) -> CaseResult + Sync) -> CaseResult {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| (number, &body)).collect();
        let threads: Vec<_> =
            threads.into_iter().map(|(number, body)| scope.spawn(move || body(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread failed; see its panic"))
    })
}

/// Each thread has objects of its own.
pub(super) fn threads_share_nics(fabric: &dyn Fabric) -> CaseResult {
    let (wait, timeout) = (thread_wait(fabric)?, fabric.timeout());
    let nics = fabric.nics();
    in_threads(|_| {
        let own = OfThread { nics: nics.clone(), wait, timeout };
        let [a, b] = rc_pair(&own)?;
        a.needs_atomics()?;
        for i in 1..=300 {
            a.memory.store(0, i);
            a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8)?;
            a.post(i, SendOp::FetchAdd { remote: b.mr.remote(8), add: 1 }, 16, 8)?;
            a.wait_for(i, WcStatus::Success);
            a.wait_for(i, WcStatus::Success);
            b.wait_word(0, i);
            b.wait_word(8, i);
        }
        Ok(())
    })
}

/// All threads post to one queue pair, and poll its completion queue.
pub(super) fn threads_share_a_queue_pair(fabric: &dyn Fabric) -> CaseResult {
    const EACH: u64 = 200;
    let (wait, timeout) = (thread_wait(fabric)?, fabric.timeout());
    let own = OfThread { nics: fabric.nics(), wait, timeout };
    let [near, far] = own.nics.clone();
    let ends =
        [Endpoint::new(&own, near, Options::default())?, Endpoint::new(&own, far, Options::default())?];
    connect(&ends, Link::default())?;
    let [a, b] = &ends;
    a.needs_atomics()?;
    let (nic, qp, cq) = (&a.nic, a.qp, a.cq);
    let requests: Vec<Vec<SendWr>> = (0..THREADS)
        .map(|thread| {
            let add = SendOp::FetchAdd { remote: b.mr.remote(64), add: 1 };
            (0..EACH).map(|_| SendWr::new(thread, add, a.data(thread * 8, 8))).collect()
        })
        .collect();
    in_threads(|thread| {
        let mut wcs = Vec::new();
        for (i, request) in requests[thread as usize].iter().enumerate() {
            nic.post_send(qp, std::slice::from_ref(request))?;
            // As many completions as requests, of whatever thread.
            let deadline = nic.now() + timeout;
            while wcs.len() <= i {
                assert!(nic.now() < deadline, "timed out: a completion");
                if nic.poll_cq(cq, 1, &mut wcs)? == 0 {
                    wait();
                }
            }
        }
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success && wc.qpn == qp), "{wcs:?}");
        Ok(())
    })?;
    b.wait_word(64, THREADS * EACH);
    Ok(())
}

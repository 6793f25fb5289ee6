//! The endpoint of a program.

use std::cell::RefCell;
use std::rc::Rc;

use mitra_sim::workload::{Endpoint, EndpointCompletion, RECV_WR_FLAG, VqpEndpoint};
use mitra_verbs::{PostError, RecvWr, SendWr};

use super::windows::Windows;

/// An endpoint that checks that operations complete in the order in which they were posted.
pub struct OrderedEndpoint {
    pub inner: VqpEndpoint,
    posted: Vec<u64>,
    completed: usize,
    pub in_order: bool,
    end: usize,
    windows: Option<Rc<RefCell<Windows>>>,
}

impl OrderedEndpoint {
    pub fn new(inner: VqpEndpoint, end: usize, windows: Option<Rc<RefCell<Windows>>>) -> OrderedEndpoint {
        OrderedEndpoint { inner, posted: Vec::new(), completed: 0, in_order: true, end, windows }
    }

    /// Posts the next bind or invalidation of this end's window.
    fn advance_window(&mut self) {
        let Some(windows) = &self.windows else { return };
        let Some(wr) = windows.borrow_mut().advance(self.end) else { return };
        let wr_id = wr.wr_id;
        match self.inner.post(wr) {
            Ok(()) => self.posted.push(wr_id),
            Err(_) => windows.borrow_mut().take_back(self.end),
        }
    }
}

impl Endpoint for OrderedEndpoint {
    fn post(&mut self, mut wr: SendWr) -> Result<(), PostError> {
        if let Some(windows) = &self.windows {
            windows.borrow().replace_key(self.end, &mut wr, &mut self.inner.qp, self.completed);
        }
        let (wr_id, op) = (wr.wr_id, wr.op);
        self.inner.post(wr)?;
        self.posted.push(wr_id);
        if let Some(windows) = &self.windows {
            windows.borrow_mut().note_posted(self.end, wr_id, op, self.posted.len());
        }
        Ok(())
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.inner.post_recv(wr)
    }

    fn poll(&mut self, out: &mut Vec<EndpointCompletion>) {
        let first = out.len();
        self.inner.poll(out);
        for completion in out[first..].iter().filter(|c| c.wr_id & RECV_WR_FLAG == 0) {
            // Operations without the SIGNALED flag are skipped.
            let rest = &self.posted[self.completed..];
            match rest.iter().position(|&wr_id| wr_id == completion.wr_id) {
                Some(skipped) => self.completed += skipped + 1,
                None => self.in_order = false,
            }
        }
        if let Some(windows) = &self.windows {
            let is_closed = self.inner.qp.close_reason().is_some();
            let mut windows = windows.borrow_mut();
            out.retain(|completion| !windows.on_completion(self.end, completion, is_closed));
            windows.note_completed(self.end, self.completed);
        }
        self.advance_window();
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }
}

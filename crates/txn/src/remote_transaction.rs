//! Transactions of a coordinator's tasks.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::coordinator::{Core, Reply};
use crate::execution::Footprint;
use crate::lock_word::LockWord;
use crate::transaction::{Abort, Access, RecordKey, Transaction};

/// Runs the transactions of a task. Clones share the coordinator.
#[derive(Clone)]
pub struct Client {
    core: Rc<RefCell<Core>>,
}

/// A transaction over remote memory.
pub struct RemoteTransaction {
    core: Rc<RefCell<Core>>,
    slot: usize,
    lock: LockWord,
    /// Why the transaction has ended, if it has.
    failed: Option<NotCommitted>,
}

/// A committed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed<T> {
    /// The result of the program.
    pub value: T,
    /// The places that the transaction has read and written.
    pub footprint: Footprint,
    /// The number of times that the program ran.
    pub attempts: u32,
    /// The number of round trips to memory nodes for which the last attempt waited before the
    /// commit.
    pub round_trips: u32,
}

/// Why a transaction is not known to be committed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum NotCommitted {
    /// The transaction has no effect, and never will have one.
    #[error("aborted: {0}")]
    Aborted(#[from] Abort),
    /// The coordinator's life has ended during the write of the log entry. The recovery of the life
    /// decides.
    #[error("not known to be committed: the coordinator's life has ended while the log entry was written")]
    Unknown,
}

impl Client {
    pub(crate) fn new(core: Rc<RefCell<Core>>) -> Client {
        Client { core }
    }

    /// Waits for a time.
    ///
    /// # Errors
    /// [`Abort::LifeEnded`]: the life has ended, and runs no more transactions.
    pub async fn sleep(&self, time: Duration) -> Result<(), Abort> {
        let until = self.core.borrow().now() + time;
        poll_fn(|context| self.core.borrow_mut().wait_until(until, context)).await;
        if self.core.borrow().is_ended() { Err(Abort::LifeEnded) } else { Ok(()) }
    }

    /// Runs a transaction, and commits it if the program returns `Ok`. A transaction that another
    /// transaction has aborted runs again, after a random time of at most 2.56 ms.
    ///
    /// A committed transaction is strictly serializable: it takes effect at one moment between the
    /// call and the return. Before the commit, the program may read values that never existed
    /// together. The transaction then does not commit.
    ///
    /// # Errors
    /// The error of the program; an [`Abort`] of the store that is not retryable;
    /// [`NotCommitted::Unknown`].
    pub async fn run<T>(
        &self,
        mut program: impl AsyncFnMut(&mut RemoteTransaction) -> Result<T, Abort>,
    ) -> Result<Committed<T>, NotCommitted> {
        let mut attempts = 0;
        if self.core.borrow().is_ended() {
            yield_once().await;
        }
        loop {
            attempts += 1;
            let (slot, lock) = poll_fn(|context| self.core.borrow_mut().begin(context)).await?;
            let mut transaction = RemoteTransaction { core: Rc::clone(&self.core), slot, lock, failed: None };
            let result = match program(&mut transaction).await {
                Ok(value) => transaction.commit().await.map(|(footprint, round_trips)| Committed {
                    value,
                    footprint,
                    attempts,
                    round_trips,
                }),
                Err(why) => Err(transaction.refuse(why).await),
            };
            drop(transaction);
            match result {
                Err(NotCommitted::Aborted(why)) if why.is_retryable() => {}
                result => return result,
            }
            let until = self.core.borrow().back_off(attempts);
            poll_fn(|context| self.core.borrow_mut().wait_until(until, context)).await;
        }
    }
}

/// Lets other tasks run. Otherwise, a task that runs transactions in a loop would block its process
/// after the end of its life.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl RemoteTransaction {
    /// The lock word of the attempt, which no other attempt has.
    pub fn attempt(&self) -> LockWord {
        self.lock
    }

    async fn reply(&mut self) -> Reply {
        let reply = poll_fn(|context| self.core.borrow_mut().reply(self.slot, context)).await;
        if let Reply::NotCommitted(why) = &reply {
            self.failed = Some(why.clone());
        }
        reply
    }

    /// Waits for the end of reads that the program has begun and dropped.
    async fn settle(&mut self) {
        while self.core.borrow().is_busy(self.slot) {
            self.reply().await;
        }
    }

    async fn commit(&mut self) -> Result<(Footprint, u32), NotCommitted> {
        self.settle().await;
        if let Some(why) = self.failed.clone() {
            return Err(why);
        }
        self.core.borrow_mut().commit(self.slot);
        match self.reply().await {
            Reply::Committed(footprint, round_trips) => Ok((footprint, round_trips)),
            Reply::NotCommitted(why) => Err(why),
            Reply::Values(_) => unreachable!("a transaction that commits reads nothing"),
        }
    }

    async fn refuse(&mut self, why: Abort) -> NotCommitted {
        self.settle().await;
        if self.failed.is_none() {
            self.core.borrow_mut().refuse(self.slot, why.clone());
            self.reply().await;
        }
        self.failed.clone().unwrap_or(NotCommitted::Aborted(why))
    }
}

impl Transaction for RemoteTransaction {
    async fn get_all(&mut self, items: &[(RecordKey, Access)]) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        self.settle().await;
        if self.failed.is_none() {
            self.core.borrow_mut().get_all(self.slot, items);
            if let Reply::Values(values) = self.reply().await {
                return Ok(values);
            }
        }
        Err(match &self.failed {
            Some(NotCommitted::Aborted(why)) => why.clone(),
            _ => Abort::LifeEnded,
        })
    }

    fn put(&mut self, at: RecordKey, value: Vec<u8>) {
        self.core.borrow_mut().write(self.slot, |execution| execution.put(at, value));
    }

    fn insert(&mut self, at: RecordKey, value: Vec<u8>) {
        self.core.borrow_mut().write(self.slot, |execution| execution.insert(at, value));
    }

    fn delete(&mut self, at: RecordKey) {
        self.core.borrow_mut().write(self.slot, |execution| execution.delete(at));
    }
}

impl Drop for RemoteTransaction {
    fn drop(&mut self) {
        self.core.borrow_mut().release(self.slot);
    }
}

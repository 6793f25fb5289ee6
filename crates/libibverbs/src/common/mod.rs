//! Modules that `calls`, `rails` and `rdmacm` share. They import none of the three.

pub(crate) mod cancellation;
pub(crate) mod close_on_fork;
pub(crate) mod errno;
pub(crate) mod event_queue;
pub(crate) mod grh;
pub(crate) mod high_descriptor;
pub(crate) mod limit;
pub(crate) mod lock;
pub(crate) mod logging;
pub(crate) mod per_process;
pub(crate) mod poller_lock;
pub(crate) mod random;
pub(crate) mod refusal;
pub(crate) mod unacknowledged_events;

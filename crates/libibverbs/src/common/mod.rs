//! What the verbs, the rails and librdmacm share: nothing here knows any of them.

pub(crate) mod errno;
pub(crate) mod event_queue;
pub(crate) mod grh;
pub(crate) mod lock;
pub(crate) mod logging;
pub(crate) mod unacknowledged;

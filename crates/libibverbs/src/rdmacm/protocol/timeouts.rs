//! Timeouts that connections and service lookups have in common.

use std::time::Duration;

/// How long the peer's program may take to answer a request, and to confirm a reply. The kernel's
/// limit is about the same (`CMA_MAX_CM_RETRIES` times `CMA_CM_RESPONSE_TIMEOUT`).
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a request is retried while no program listens at the destination.
///
/// perftest's server listens anew for each connection. A request over a network arrives late enough
/// for the server; a request over loopback would arrive before the server listens. Programs that
/// connect in a loop until a server has started tolerate the delay.
pub const REFUSED_RETRY_PERIOD: Duration = Duration::from_millis(200);

//! Timeouts that connections and service lookups have in common.

use std::time::Duration;

/// How long the peer's program may take to answer a request, and to confirm a reply. The kernel's
/// connection manager gives up after about as long (`CMA_MAX_CM_RETRIES` times
/// `CMA_CM_RESPONSE_TIMEOUT`).
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a request is retried while no program listens at the destination.
///
/// On a real network a request takes a while to arrive, and some programs rely on that: the server
/// of perftest listens anew for each connection. Without retries a request over loopback would
/// arrive before the server listens. A program that connects until a server has started does not
/// notice the delay.
pub const REFUSED_RETRY_PERIOD: Duration = Duration::from_millis(200);

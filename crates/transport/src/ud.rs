//! Unreliable datagrams.

/// Bytes before the message in the receive buffer of a datagram, for the sender's addresses (IBTA volume 1, 11.4.1.2).
pub(crate) const GRH_LEN: usize = 40;

//! The checks of calls that every NIC makes in the same way, so that a program gets the same error
//! from each.

use crate::{
    Access, Capabilities, Data, Error, Limits, QpCap, QpInitAttr, QpState, QpType, Qpn, Result, SendWr, Srqn,
};

fn check_limit(attribute: &'static str, requested: u64, limit: u64) -> Result<()> {
    if requested > limit { Err(Error::Limit { attribute, requested, limit }) } else { Ok(()) }
}

/// Checks the capacities of a new queue pair against the limits of the device.
///
/// # Errors
/// `Limit`.
pub fn check_qp_cap(cap: &QpCap, limits: &Limits) -> Result<()> {
    for (attribute, requested, limit) in [
        ("send queue entries", cap.send_wrs, limits.wrs),
        ("receive queue entries", cap.recv_wrs, limits.wrs),
        ("gather entries of a send", cap.send_sges, limits.sges),
        ("scatter entries of a receive", cap.recv_sges, limits.sges),
        ("bytes of inline data", cap.inline, limits.inline),
    ] {
        check_limit(attribute, requested.into(), limit.into())?;
    }
    Ok(())
}

/// Checks the rights of a memory region: a peer can change memory only if the NIC may write it
/// (IBTA volume 1, 10.6.3.1).
///
/// # Errors
/// `Invalid`.
pub fn check_region_access(access: Access) -> Result<()> {
    let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if changes && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid(
            "remote write and atomic access need local write access; add LOCAL_WRITE",
        ));
    }
    Ok(())
}

/// Checks that a send can be posted in a state of the queue pair.
///
/// # Errors
/// `WrongState`.
pub fn check_send_state(qpn: Qpn, state: QpState) -> Result<()> {
    if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
        let needs = "RTS, SQD, SQE or ERR";
        return Err(Error::WrongState { call: "post_send", qpn, needs, state });
    }
    Ok(())
}

/// Checks that a receive can be posted in a state of the queue pair.
///
/// # Errors
/// `WrongState`.
pub fn check_recv_state(qpn: Qpn, state: QpState) -> Result<()> {
    if state == QpState::Reset {
        return Err(Error::WrongState { call: "post_recv", qpn, needs: "INIT or later", state });
    }
    Ok(())
}

/// Checks a send's operation and its local data against the transport service, the queue pair's
/// capacities and the limits of the device. The NIC checks keys and bounds later, when it executes
/// the send.
///
/// # Errors
/// `Invalid`, `Unsupported` and `Limit`.
pub fn check_send(
    init: &QpInitAttr,
    limits: &Limits,
    capabilities: &Capabilities,
    wr: &SendWr,
) -> Result<()> {
    let qp_type = init.qp_type;
    let fetches = wr.op.is_read_or_atomic();
    let local = wr.op.is_local();
    match qp_type {
        QpType::Ud | QpType::Gsi if local => {
            return Err(Error::Invalid(
                "memory windows belong to RC and UC queue pairs (IBTA table 38); use one of these",
            ));
        }
        QpType::Ud | QpType::Gsi if !wr.op.is_datagram() => {}
        QpType::Ud | QpType::Gsi if wr.ud.is_none() => {
            return Err(Error::Invalid("a UD send needs a destination; set `SendWr::ud`"));
        }
        QpType::XrcRecv(_) => {
            return Err(Error::Invalid(
                "an XRC receive queue pair sends nothing; post to an XRC send queue pair",
            ));
        }
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::Gsi if wr.remote_srq != Srqn::new(0) => {
            return Err(Error::Invalid(
                "only XRC sends name a shared receive queue; leave `SendWr::remote_srq` 0",
            ));
        }
        QpType::Rc | QpType::Uc | QpType::XrcSend if wr.ud.is_some() => {
            return Err(Error::Invalid("only UD sends have a destination; leave `SendWr::ud` empty"));
        }
        _ => {}
    }
    if local && !capabilities.windows {
        return Err(Error::Unsupported("memory windows"));
    }
    if local && !wr.data.is_empty() {
        return Err(Error::Invalid(
            "binding or invalidating a window takes no data; leave `SendWr::data` empty",
        ));
    }
    match &wr.data {
        Data::Inline(_) if fetches => {
            return Err(Error::Invalid("READ and atomics cannot use inline data; use registered memory"));
        }
        Data::Inline(bytes) => {
            check_limit("bytes of inline data", bytes.len() as u64, init.cap.inline.into())?
        }
        Data::Sges(sges) => {
            check_limit("gather entries of a send", sges.len() as u64, init.cap.send_sges.into())?
        }
    }
    check_limit("bytes of a message", wr.data.len(), limits.message_bytes.into())
}

//! Validation of sends when they are posted.

use mitra_verbs::{
    Capabilities, Data, DeviceAttr, Error, Limits, QpState, QpType, Result, SendOp, SendWr, Srqn, WcStatus,
};

use crate::IpPath;
use crate::nic::handle_table::HandleTable;
use crate::nic::shared_state::AddressHandle;
use crate::qp::{Qp, QpAttributes};

fn check_limit(attribute: &'static str, requested: u64, limit: u64) -> Result<()> {
    if requested > limit { Err(Error::Limit { attribute, requested, limit }) } else { Ok(()) }
}

/// The destination of a datagram at the time of the post.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Destination {
    pub(crate) path: IpPath,
    /// Whether the address handle belongs to the protection domain of the queue pair. If not, the
    /// send fails when the NIC begins to execute it (IBTA volume 1, C10-10).
    pub(crate) is_in_domain: bool,
}

/// Validates a send that is posted after `preceding` other sends of the same call. Returns the
/// destination of a datagram.
///
/// The NIC checks keys and bounds later, when it executes the send.
pub(crate) fn validate_send(
    qp: &Qp,
    device: &DeviceAttr,
    ahs: &HandleTable<AddressHandle>,
    wr: &SendWr,
    preceding: usize,
) -> Result<Option<Destination>> {
    let attrs = &qp.attrs;
    if matches!(attrs.state, QpState::Reset | QpState::Init | QpState::Rtr) {
        let needs = "RTS, SQD, SQE or ERR";
        return Err(Error::WrongState { call: "post_send", qpn: attrs.qpn, needs, state: attrs.state });
    }
    check_operation(attrs, &device.limits, &device.capabilities, wr)?;
    let depth = attrs.init.cap.send_wrs;
    if qp.outstanding_sends() + preceding >= depth as usize {
        return Err(Error::QueueFull { queue: "send queue", qpn: attrs.qpn, depth });
    }
    destination(attrs, ahs, wr)
}

/// Checks the operation and its local data against the transport service, the queue pair's
/// attributes and the limits.
fn check_operation(
    attrs: &QpAttributes,
    limits: &Limits,
    capabilities: &Capabilities,
    wr: &SendWr,
) -> Result<()> {
    let qp_type = attrs.init.qp_type;
    let fetches = wr.op.is_read_or_atomic();
    let local = matches!(wr.op, SendOp::BindWindow(_) | SendOp::LocalInvalidate(_));
    match qp_type {
        QpType::Ud | QpType::Gsi if local => {
            return Err(Error::Invalid(
                "memory windows belong to RC and UC queue pairs (IBTA table 38); use one of these",
            ));
        }
        QpType::Ud | QpType::Gsi if !is_datagram_op(&wr.op) => {}
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
            check_limit("bytes of inline data", bytes.len() as u64, attrs.init.cap.inline.into())?
        }
        Data::Sges(sges) => {
            check_limit("gather entries of a send", sges.len() as u64, attrs.init.cap.send_sges.into())?
        }
    }
    check_limit("bytes of a message", wr.data.len(), limits.message_bytes.into())
}

fn is_datagram_op(op: &SendOp) -> bool {
    matches!(op, SendOp::Send | SendOp::SendWithImm(_))
}

/// Returns the status with which a posted send fails when the NIC begins to execute it. The
/// transport service does not have the operation (IBTA volume 1, table 38), or the local memory of
/// the operation is too short. Linux's soft-RoCE fails in the same cases, see `docs/device.md`.
pub(crate) fn execution_error(attrs: &QpAttributes, wr: &SendWr) -> Option<WcStatus> {
    let fetches = wr.op.is_read_or_atomic();
    let has_operation = match attrs.init.qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv(_) => !fetches || attrs.max_rd_atomic() > 0,
        QpType::Uc => !fetches && !matches!(wr.op, SendOp::SendWithInvalidate(_)),
        QpType::Ud | QpType::Gsi => is_datagram_op(&wr.op),
    };
    if !has_operation {
        return Some(WcStatus::LocalQpOperation);
    }
    wr.is_short_atomic().then_some(WcStatus::LocalLength)
}

/// Returns the destination of a datagram, or `None` for a send of a connected service.
fn destination(
    attrs: &QpAttributes,
    ahs: &HandleTable<AddressHandle>,
    wr: &SendWr,
) -> Result<Option<Destination>> {
    let Some(to) = wr.ud else { return Ok(None) };
    let ah = ahs.get(to.ah.0)?;
    Ok(Some(Destination { path: ah.path, is_in_domain: ah.pd == attrs.init.pd }))
}

//! Validation of sends when they are posted.

use mitra_verbs::{
    DeviceAttr, Error, QpType, Result, SendOp, SendWr, WcStatus, check_send, check_send_state,
};

use crate::IpPath;
use crate::nic::handle_table::HandleTable;
use crate::nic::shared_state::AddressHandle;
use crate::qp::{Qp, QpAttributes};

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
    check_send_state(attrs.qpn, attrs.state)?;
    check_send(&attrs.init, &device.limits, &device.capabilities, wr)?;
    let depth = attrs.init.cap.send_wrs;
    if qp.outstanding_sends() + preceding >= depth as usize {
        return Err(Error::QueueFull { queue: "send queue", qpn: attrs.qpn, depth });
    }
    destination(attrs, ahs, wr)
}

/// Returns the status with which a posted send fails when the NIC begins to execute it. The
/// transport service does not have the operation (IBTA volume 1, table 38), or the local memory of
/// the operation is too short. Linux's soft-RoCE fails in the same cases, see `docs/device.md`.
pub(crate) fn execution_error(attrs: &QpAttributes, wr: &SendWr) -> Option<WcStatus> {
    let fetches = wr.op.is_read_or_atomic();
    let has_operation = match attrs.init.qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv(_) => !fetches || attrs.max_rd_atomic() > 0,
        QpType::Uc => !fetches && !matches!(wr.op, SendOp::SendWithInvalidate(_)),
        QpType::Ud | QpType::Gsi => wr.op.is_datagram(),
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

//! Send work requests that the NIC executes locally: binding and invalidating memory windows.

use mitra_verbs::{SendOp, WcStatus};

use crate::nic::shared_state::SharedState;
use crate::qp::attributes::QpAttributes;

/// Executes a window bind or a local invalidation. Returns `None` for any other operation.
pub(crate) fn execute_local(
    attrs: &QpAttributes,
    nic: &mut SharedState,
    op: &SendOp,
) -> Option<Result<(), WcStatus>> {
    let (qpn, pd) = (attrs.qpn, attrs.init.pd);
    match op {
        SendOp::BindWindow(bind) => Some(nic.keys.bind(qpn, pd, bind).map_err(|_| WcStatus::WindowBind)),
        SendOp::LocalInvalidate(key) => {
            Some(nic.keys.invalidate(qpn, pd, *key).map_err(|_| WcStatus::LocalQpOperation))
        }
        _ => None,
    }
}

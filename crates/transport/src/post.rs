//! Judging posted sends.

use mitra_verbs::{
    Capabilities, Data, DeviceAttr, Error, Gid, Limits, QpState, QpType, Result, SendOp, SendWr,
};

use crate::host::Ah;
use crate::qp::{Common, Qp};
use crate::table::Table;

fn limit(what: &'static str, asked: u64, limit: u64) -> Result<()> {
    if asked > limit { Err(Error::Limit { attribute: what, requested: asked, limit }) } else { Ok(()) }
}

/// Whether a send may be posted behind `ahead` others that are still to be; keys and bounds are judged when it is executed.
/// Says where a datagram goes.
pub(crate) fn admit(
    queue: &Qp,
    device: &DeviceAttr,
    ahs: &Table<Ah>,
    wr: &SendWr,
    ahead: usize,
) -> Result<Option<Gid>> {
    let c = &queue.common;
    if matches!(c.state, QpState::Reset | QpState::Init | QpState::Rtr) {
        let needs = "Rts, Sqd, Sqe or Err";
        return Err(Error::WrongState { call: "post_send", qpn: c.qpn, needs, state: c.state });
    }
    check(c, &device.limits, &device.capabilities, wr)?;
    let depth = c.init.cap.send_wrs;
    if queue.sends() + ahead >= depth as usize {
        return Err(Error::QueueFull { queue: "send queue", qpn: c.qpn, depth });
    }
    destination(c, ahs, wr)
}

fn check(c: &Common, limits: &Limits, capabilities: &Capabilities, wr: &SendWr) -> Result<()> {
    let qp_type = c.init.qp_type;
    let fetches = wr.op.is_read_or_atomic();
    let local = matches!(wr.op, SendOp::BindWindow(_) | SendOp::LocalInvalidate(_));
    match qp_type {
        QpType::Uc if fetches || matches!(wr.op, SendOp::SendWithInvalidate(_)) => {
            return Err(Error::Invalid(
                "UC has no READ, no atomics and no SEND with invalidate (IBTA table 38); use RC",
            ));
        }
        QpType::Ud | QpType::Gsi if !matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) => {
            return Err(Error::Invalid("UD has SEND and SEND with immediate only (IBTA table 38)"));
        }
        QpType::Ud | QpType::Gsi if wr.ud.is_none() => {
            return Err(Error::Invalid("a UD send needs a destination; set `SendWr::ud`"));
        }
        QpType::Rc | QpType::Uc if wr.ud.is_some() => {
            return Err(Error::Invalid("only UD sends have a destination; leave `SendWr::ud` empty"));
        }
        _ => {}
    }
    if local && !capabilities.windows {
        return Err(Error::Unsupported("memory windows"));
    }
    if local && !wr.data.is_empty() {
        return Err(Error::Invalid("binding and invalidating carry no data"));
    }
    if fetches && c.max_rd_atomic() == 0 {
        return Err(Error::Invalid("READ and atomics need a `max_rd_atomic` of at least 1"));
    }
    match &wr.data {
        Data::Inline(_) if fetches => {
            return Err(Error::Invalid("what is fetched needs registered memory to go to, not inline data"));
        }
        Data::Inline(bytes) => limit("bytes of inline data", bytes.len() as u64, c.init.cap.inline.into())?,
        Data::Sges(sges) if wr.op.is_atomic() => {
            if sges.len() != 1 || sges[0].len != 8 {
                return Err(Error::Invalid("an atomic needs exactly one local entry of 8 bytes"));
            }
        }
        Data::Sges(sges) => {
            limit("gather entries of a send", sges.len() as u64, c.init.cap.send_sges.into())?
        }
    }
    if qp_type.is_datagram() {
        limit("bytes of a datagram", wr.data.len(), c.mtu as u64)?;
    }
    limit("bytes of a message", wr.data.len(), limits.message_bytes.into())
}

/// Where a datagram goes.
fn destination(c: &Common, ahs: &Table<Ah>, wr: &SendWr) -> Result<Option<Gid>> {
    let Some(to) = wr.ud else { return Ok(None) };
    let ah = ahs.get(to.ah.0)?;
    if ah.pd != c.init.pd {
        return Err(Error::Invalid("the address handle belongs to another protection domain"));
    }
    Ok(Some(ah.destination))
}

//! From the names that the application uses (those of rail 0) to the names on another rail.

use mitra_verbs::{Data, Error, Key, QpCap, RemoteAddr, Result, SendOp, SendWr, SgeList};

use crate::domain::{Domain, RemoteRegion};

const NO_LOCAL: Error =
    Error::Invalid("a scatter/gather entry names memory that is not registered with the domain");
const NO_REMOTE: Error =
    Error::Invalid("the remote key is not of an imported region: import it before posting");

/// The peer's regions, by their key on rail 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteKeys(Vec<RemoteRegion>);

impl RemoteKeys {
    pub(crate) fn insert(&mut self, region: RemoteRegion) {
        let at = self.0.partition_point(|r| r.rails[0].rkey < region.rails[0].rkey);
        if self.0.get(at).is_some_and(|r| r.rails[0].rkey == region.rails[0].rkey) {
            self.0[at] = region;
        } else {
            self.0.insert(at, region);
        }
    }

    fn find(&self, rkey: Key) -> Option<&RemoteRegion> {
        let at = self.0.binary_search_by_key(&rkey, |r| r.rails[0].rkey).ok()?;
        Some(&self.0[at])
    }

    fn on(&self, named: RemoteAddr, rail: usize) -> Option<RemoteAddr> {
        let region = self.find(named.rkey)?;
        let offset = named.addr.wrapping_sub(region.rails[0].addr);
        let here = region.rails[rail];
        Some(RemoteAddr { addr: here.addr.wrapping_add(offset), rkey: here.rkey })
    }
}

/// Refuses what exceeds a limit of the rails.
pub(crate) fn within(what: &'static str, asked: u64, limit: u64) -> Result<()> {
    if asked > limit { Err(Error::Limit { attribute: what, requested: asked, limit }) } else { Ok(()) }
}

/// Refuses a request that no rail's queue pair would take: posted later, with others, it could only end everything.
pub(crate) fn limits(wr: &SendWr, cap: &QpCap, longest: u64) -> Result<()> {
    if wr.ud.is_some() {
        return Err(Error::Invalid("only UD sends have a destination; leave `SendWr::ud` empty"));
    }
    match &wr.data {
        Data::Inline(_) if wr.op.is_read_or_atomic() => {
            return Err(Error::Invalid("what is fetched needs registered memory to go to, not inline data"));
        }
        Data::Sges(list) if wr.op.is_atomic() && (list.len() != 1 || list[0].len != 8) => {
            return Err(Error::Invalid("an atomic needs exactly one local entry of 8 bytes"));
        }
        Data::Inline(bytes) => within("inline bytes", bytes.len() as u64, cap.inline.into())?,
        Data::Sges(list) => within("scatter/gather entries", list.len() as u64, cap.send_sges.into())?,
    }
    within("bytes of a message", wr.data.len(), longest)
}

/// The local key that was found last: most requests have the same, and need not ask the domain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    key: Option<Key>,
    /// [`Domain::revocations`] before it was found.
    revocations: u64,
}

impl Known {
    /// Refuses entries that do not name registered memory.
    pub(crate) fn check(&mut self, list: &SgeList, domain: &Domain) -> Result<()> {
        let revocations = domain.revocations();
        for sge in list {
            if self.key == Some(sge.key) && self.revocations == revocations {
                continue;
            }
            if !domain.has(sge.key) {
                return Err(NO_LOCAL);
            }
            *self = Known { key: Some(sge.key), revocations };
        }
        Ok(())
    }
}

/// Refuses a request whose keys do not have a name on every rail: it could not be replayed.
pub(crate) fn check(wr: &SendWr, domain: &Domain, known: &mut Known, remote: &RemoteKeys) -> Result<()> {
    if let Data::Sges(list) = &wr.data {
        known.check(list, domain)?;
    }
    match wr.op.remote() {
        Some(r) if remote.find(r.rkey).is_none() => Err(NO_REMOTE),
        _ => Ok(()),
    }
}

/// The request in a rail's names.
pub(crate) fn request(wr: &SendWr, rail: usize, domain: &Domain, remote: &RemoteKeys) -> Result<SendWr> {
    let mut out = wr.clone();
    if rail == 0 {
        return Ok(out);
    }
    if let Data::Sges(list) = &mut out.data {
        *list = entries(list, rail, domain)?;
    }
    match &mut out.op {
        SendOp::Write(r)
        | SendOp::WriteWithImm(r, _)
        | SendOp::Read(r)
        | SendOp::CompareSwap { remote: r, .. }
        | SendOp::FetchAdd { remote: r, .. } => *r = remote.on(*r, rail).ok_or(NO_REMOTE)?,
        _ => {}
    }
    Ok(out)
}

/// A scatter/gather list in a rail's names.
pub(crate) fn entries(list: &SgeList, rail: usize, domain: &Domain) -> Result<SgeList> {
    list.iter().map(|&sge| domain.local(sge, rail).ok_or(NO_LOCAL)).collect()
}

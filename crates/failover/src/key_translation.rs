//! The checks of a work request before the vQP accepts it, and the translation from rail 0, whose
//! addresses and keys the application uses, to another rail.

use mitra_mutants::Mutant;
use mitra_verbs::{Data, Error, Key, RemoteAddr, Result, SendOp, SendWr, SgeList};

use crate::config::Config;
use crate::domain::Domain;
use crate::memory_region::RemoteRegion;

const UNKNOWN_RKEY: Error =
    Error::Invalid("the remote key is not of an imported region: import it before posting");

/// The imported regions of the peer, sorted by their rkey on rail 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteKeys(Vec<(Key, RemoteRegion)>);

impl RemoteKeys {
    /// Replaces an earlier region with the same rkey on rail 0.
    pub(crate) fn insert(&mut self, region: RemoteRegion) {
        let key = region.at(0).rkey;
        match self.position(key) {
            Ok(at) => self.0[at] = (key, region),
            Err(at) => self.0.insert(at, (key, region)),
        }
    }

    pub(crate) fn remove(&mut self, rkey: Key) {
        if let Ok(at) = self.position(rkey) {
            self.0.remove(at);
        }
    }

    fn position(&self, rkey: Key) -> core::result::Result<usize, usize> {
        self.0.binary_search_by_key(&rkey, |&(key, _)| key)
    }

    fn translate(&self, addr: RemoteAddr, rail: usize) -> Option<RemoteAddr> {
        let (_, region) = &self.0[self.position(addr.rkey).ok()?];
        let rail = if Mutant::RemoteKeysOfFirstRail.is_on() { 0 } else { rail };
        Some(region.on_rail(rail, addr.addr.wrapping_sub(region.at(0).addr)))
    }
}

pub(crate) fn check_limit(attribute: &'static str, requested: u64, limit: u64) -> Result<()> {
    if requested > limit { Err(Error::Limit { attribute, requested, limit }) } else { Ok(()) }
}

/// Checks a request against the rules and limits of the rails' queue pairs. If a queue pair refused
/// the request later, the vQP would close.
pub(crate) fn check_shape(wr: &SendWr, config: &Config, max_message: u64) -> Result<()> {
    if wr.ud.is_some() {
        return Err(Error::Invalid("only UD sends have a destination; leave `SendWr::ud` empty"));
    }
    if wr.op.is_local() && !wr.data.is_empty() {
        return Err(Error::Invalid(
            "binding or invalidating a window takes no data; leave `SendWr::data` empty",
        ));
    }
    match &wr.data {
        Data::Inline(_) if wr.op.is_read_or_atomic() => {
            return Err(Error::Invalid(
                "a READ or atomic needs registered memory for its result, not inline data",
            ));
        }
        Data::Sges(list) if wr.op.is_atomic() && (list.len() != 1 || list[0].len != 8) => {
            return Err(Error::Invalid(
                "an atomic needs local memory of 8 bytes; pass one entry of this length",
            ));
        }
        Data::Inline(bytes) => check_limit("inline bytes", bytes.len() as u64, config.inline.into())?,
        Data::Sges(list) => {
            check_limit("scatter/gather entries", list.len() as u64, config.send_sges.into())?;
        }
    }
    check_limit("bytes of a message", wr.data.len(), max_message)
}

/// Checks that the remote key belongs to an imported region. No other key can be translated to
/// another rail.
#[inline]
pub(crate) fn check_rkey(wr: &SendWr, remote: &RemoteKeys) -> Result<()> {
    match wr.op.remote_key() {
        Some(key) if remote.position(key).is_err() => Err(UNKNOWN_RKEY),
        _ => Ok(()),
    }
}

/// Translates the addresses and keys of a request from rail 0 to `rail`.
pub(crate) fn translate_send(
    wr: &mut SendWr,
    rail: usize,
    domain: &Domain,
    remote: &RemoteKeys,
) -> Result<()> {
    if rail == 0 {
        return Ok(());
    }
    if let Data::Sges(list) = &mut wr.data
        && !Mutant::LocalKeysNotTranslated.is_on()
    {
        list.iter_mut().for_each(|sge| *sge = domain.translate(*sge, rail));
    }
    match &mut wr.op {
        SendOp::Write(r)
        | SendOp::WriteWithImm(r, _)
        | SendOp::Read(r)
        | SendOp::CompareSwap { remote: r, .. }
        | SendOp::FetchAdd { remote: r, .. } => *r = remote.translate(*r, rail).ok_or(UNKNOWN_RKEY)?,
        SendOp::SendWithInvalidate(key) => {
            let named = RemoteAddr { addr: 0, rkey: *key };
            *key = remote.translate(named, rail).ok_or(UNKNOWN_RKEY)?.rkey;
        }
        op @ (SendOp::BindWindow(_) | SendOp::LocalInvalidate(_)) => {
            *op = domain.translate_window_op(op, rail)
        }
        SendOp::Send | SendOp::SendWithImm(_) => {}
    }
    Ok(())
}

/// Translates the addresses and keys of receives from rail 0 to `rail`.
pub(crate) fn translate_sges(list: &SgeList, rail: usize, domain: &Domain) -> SgeList {
    if rail == 0 {
        return SgeList::from_slice(list);
    }
    list.iter().map(|&sge| domain.translate(sge, rail)).collect()
}

#[cfg(test)]
mod tests {
    use mitra_verbs::{Error, Key, RemoteAddr, SendOp, SendWr, Sge, SgeList};
    use smallvec::smallvec;

    use super::*;

    const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: Key(7) };

    fn wr(op: SendOp, lens: &[u32]) -> SendWr {
        let list: SgeList = lens.iter().map(|&len| Sge { addr: 0, len, key: Key(2) }).collect();
        SendWr::new(1, op, Data::Sges(list))
    }

    fn remote_keys() -> RemoteKeys {
        let mut remote = RemoteKeys::default();
        for rkey in [9, 7, 8] {
            let on_rail =
                |rail: u32| RemoteAddr { addr: 0x1000 * u64::from(rail + 1), rkey: Key(rkey + 10 * rail) };
            remote.insert(RemoteRegion::new(64, smallvec![on_rail(0), on_rail(1)]));
        }
        remote
    }

    #[test]
    fn request_that_a_queue_pair_would_refuse_is_refused() {
        let config = Config { send_sges: 2, inline: 4, ..Config::default() };
        let check = |wr: SendWr| check_shape(&wr, &config, 100);
        let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
        let inline = |op, len| SendWr { data: Data::Inline(vec![0; len].into()), ..wr(op, &[]) };
        let ok = [
            wr(SendOp::Write(REMOTE), &[50, 50]),
            wr(SendOp::Read(REMOTE), &[100]),
            wr(add, &[8]),
            wr(SendOp::LocalInvalidate(Key(3)), &[]),
            inline(SendOp::Write(REMOTE), 4),
        ];
        for wr in ok {
            assert_eq!(check(wr.clone()), Ok(()), "{wr:?}");
        }
        let malformed = [
            wr(SendOp::LocalInvalidate(Key(3)), &[8]),
            inline(SendOp::Read(REMOTE), 4),
            wr(add, &[4]),
            wr(add, &[8, 8]),
            wr(add, &[]),
        ];
        for wr in malformed {
            assert!(matches!(check(wr.clone()), Err(Error::Invalid(_))), "{wr:?}");
        }
        let too_large = [
            wr(SendOp::Write(REMOTE), &[50, 51]),
            wr(SendOp::Write(REMOTE), &[1, 1, 1]),
            inline(SendOp::Write(REMOTE), 5),
        ];
        for wr in too_large {
            assert!(matches!(check(wr.clone()), Err(Error::Limit { .. })), "{wr:?}");
        }
    }

    #[test]
    fn request_needs_the_key_of_an_imported_region() {
        let mut remote = remote_keys();
        assert_eq!(check_rkey(&wr(SendOp::Write(REMOTE), &[8]), &remote), Ok(()));
        assert_eq!(check_rkey(&wr(SendOp::Send, &[8]), &remote), Ok(()));
        let at = |addr, rkey| RemoteAddr { addr, rkey: Key(rkey) };
        assert_eq!(remote.translate(at(0x1010, 7), 1), Some(at(0x2010, 17)));
        assert_eq!(remote.translate(at(0x1010, 9), 1), Some(at(0x2010, 19)));
        remote.remove(Key(7));
        assert_eq!(check_rkey(&wr(SendOp::Write(REMOTE), &[8]), &remote), Err(UNKNOWN_RKEY));
        assert_eq!(remote.translate(at(0x1010, 7), 1), None);
        assert_eq!(remote.translate(at(0x1010, 8), 1), Some(at(0x2010, 18)));
    }
}

//! Gathering from and scattering to a request's local memory.

use mitra_verbs::{Access, Data, PdId, Sge};

use crate::Memory;
use crate::keys::Keys;

/// A local key, bound or right is wrong, or the memory behind it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalFault;

/// Calls `touch(key's sge, addr, range of the message)` for each piece of `sges` that the bytes
/// `offset .. offset + len` of a message fall on.
fn pieces(
    sges: &[Sge],
    offset: u64,
    len: usize,
    mut touch: impl FnMut(&Sge, u64, core::ops::Range<usize>) -> Result<(), LocalFault>,
) -> Result<(), LocalFault> {
    let (mut skip, mut done) = (offset, 0);
    for sge in sges {
        if done == len {
            break;
        }
        let sge_len = u64::from(sge.len);
        if skip >= sge_len {
            skip -= sge_len;
            continue;
        }
        let n = (len - done).min((sge_len - skip) as usize);
        touch(sge, sge.addr.wrapping_add(skip), done..done + n)?;
        skip = 0;
        done += n;
    }
    if done == len { Ok(()) } else { Err(LocalFault) }
}

/// Copies the bytes of a request's data from `offset` on into `out`.
pub(crate) fn gather(
    keys: &Keys,
    pd: PdId,
    data: &Data,
    offset: u64,
    out: &mut [u8],
    memory: &mut dyn Memory,
) -> Result<(), LocalFault> {
    match data {
        Data::Inline(bytes) => {
            let from = usize::try_from(offset).map_err(|_| LocalFault)?;
            let end = from.checked_add(out.len()).ok_or(LocalFault)?;
            out.copy_from_slice(bytes.get(from..end).ok_or(LocalFault)?);
            Ok(())
        }
        Data::Sges(sges) => pieces(sges, offset, out.len(), |sge, addr, range| {
            let span =
                keys.local(pd, sge.key, addr, range.len() as u64, Access::empty()).map_err(|_| LocalFault)?;
            memory.fetch(span.region, span.offset, &mut out[range]).map_err(|_| LocalFault)
        }),
    }
}

/// Copies `data` to the bytes from `offset` on of what the entries name.
pub(crate) fn scatter(
    keys: &Keys,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    data: &[u8],
    memory: &mut dyn Memory,
) -> Result<(), LocalFault> {
    // All pieces are judged before the first is touched.
    pieces(sges, offset, data.len(), |sge, addr, range| {
        keys.local(pd, sge.key, addr, range.len() as u64, Access::LOCAL_WRITE)
            .map(drop)
            .map_err(|_| LocalFault)
    })?;
    pieces(sges, offset, data.len(), |sge, addr, range| {
        let span =
            keys.local(pd, sge.key, addr, range.len() as u64, Access::LOCAL_WRITE).map_err(|_| LocalFault)?;
        memory.place(span.region, span.offset, &data[range]).map_err(|_| LocalFault)
    })
}

/// Bytes that the entries hold.
pub(crate) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

//! Gathers a request's data from its local scatter/gather entries, and scatters received data to
//! them.

use mitra_mutants::Mutant;
use mitra_verbs::{Access, Data, PdId, Sge};

use crate::Memory;
use crate::nic::key_table::KeyTable;

/// The local data of a request cannot be accessed. The entries are too short, or an entry has a
/// wrong key, lies out of bounds or lacks an access right, or its memory no longer exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalFault;

/// Calls `visit(entry, address, range)` for each part of an entry that holds some of the message
/// bytes `offset .. offset + len`. `address` is the address of the part's first byte. `range` is
/// the place of the part among the `len` bytes.
fn for_each_part(
    sges: &[Sge],
    offset: u64,
    len: usize,
    mut visit: impl FnMut(&Sge, u64, core::ops::Range<usize>) -> Result<(), LocalFault>,
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
        visit(sge, sge.addr.wrapping_add(skip), done..done + n)?;
        if !Mutant::EntrySkipKept.is_on() {
            skip = 0;
        }
        done += n;
    }
    if done == len { Ok(()) } else { Err(LocalFault) }
}

/// Fills `out` with the message bytes from `offset` on.
pub(crate) fn gather(
    keys: &KeyTable,
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
        Data::Sges(sges) => for_each_part(sges, offset, out.len(), |sge, addr, range| {
            let span = keys
                .check_local(pd, sge.key, addr, range.len() as u64, Access::empty())
                .map_err(|_| LocalFault)?;
            memory.fetch(span.region, span.offset, &mut out[range]).map_err(|_| LocalFault)
        }),
    }
}

/// Copies `data` to the entries, beginning at message byte `offset`. If the keys permit to write
/// only a part of the data, the function writes nothing.
pub(crate) fn scatter(
    keys: &KeyTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    data: &[u8],
    memory: &mut dyn Memory,
) -> Result<(), LocalFault> {
    for_each_part(sges, offset, data.len(), |sge, addr, range| {
        keys.check_local(pd, sge.key, addr, range.len() as u64, Access::LOCAL_WRITE)
            .map(drop)
            .map_err(|_| LocalFault)
    })?;
    for_each_part(sges, offset, data.len(), |sge, addr, range| {
        let span = keys
            .check_local(pd, sge.key, addr, range.len() as u64, Access::LOCAL_WRITE)
            .map_err(|_| LocalFault)?;
        memory.place(span.region, span.offset, &data[range]).map_err(|_| LocalFault)
    })
}

pub(crate) fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

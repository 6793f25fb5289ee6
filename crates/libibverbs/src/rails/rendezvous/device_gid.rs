//! The GID of a device, and those that it had before.
//!
//! Programs know a device by the GID of its rail 0. When that address changes, the programs of other devices may still have the old one. A device
//! therefore states both.

use mitra_verbs::Gid;

/// The maximum number of former GIDs. The oldest is forgotten first.
const MAX_FORMER: usize = 8;

/// The GID of rail 0, and the former ones, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) struct DeviceGid {
    pub(in crate::rails) current: Gid,
    former: Vec<Gid>,
}

impl DeviceGid {
    /// Returns the GID of a device that had no other before.
    pub(in crate::rails) fn new(current: Gid) -> DeviceGid {
        DeviceGid { current, former: Vec::new() }
    }

    /// Changes the GID.
    pub(in crate::rails) fn set(&mut self, gid: Gid) {
        if gid != self.current {
            self.former.retain(|former| *former != gid && *former != self.current);
            if self.former.len() == MAX_FORMER {
                self.former.remove(0);
            }
            self.former.push(std::mem::replace(&mut self.current, gid));
        }
    }

    /// Returns whether the device has this GID, or had it.
    pub(in crate::rails) fn includes(&self, gid: Gid) -> bool {
        self.current == gid || self.former.contains(&gid)
    }

    /// Returns the former GIDs.
    pub(in crate::rails) fn former(&self) -> &[Gid] {
        &self.former
    }

    /// Appends the encoding: the GID, the number of former GIDs (8 bits), and these.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.current.0);
        out.push(self.former.len() as u8);
        self.former.iter().for_each(|gid| out.extend_from_slice(&gid.0));
    }

    /// Decodes the value at the beginning of `bytes`. Returns it with the rest, or `None` if it is malformed.
    pub(super) fn take(bytes: &[u8]) -> Option<(DeviceGid, &[u8])> {
        let (current, rest) = bytes.split_first_chunk::<16>()?;
        let (count, rest) = rest.split_first()?;
        let (former, rest) = rest.split_at_checked(usize::from(*count) * 16)?;
        let (former, _) = former.as_chunks::<16>();
        (former.len() <= MAX_FORMER).then(|| {
            (DeviceGid { current: Gid(*current), former: former.iter().map(|gid| Gid(*gid)).collect() }, rest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_gids_are_kept_once_and_bounded() {
        let mut device = DeviceGid::new(Gid([0; 16]));
        for gid in [1, 2, 1] {
            device.set(Gid([gid; 16]));
        }
        assert_eq!((device.current, device.former()), (Gid([1; 16]), &[Gid([0; 16]), Gid([2; 16])][..]));
        for gid in 3..3 + MAX_FORMER as u8 {
            device.set(Gid([gid; 16]));
        }
        assert_eq!(device.former().len(), MAX_FORMER);
        assert!(
            !device.includes(Gid([0; 16]))
                && device.includes(Gid([3; 16]))
                && device.includes(device.current)
        );
        let mut bytes = Vec::new();
        device.put(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(DeviceGid::take(&bytes[..len]), None);
        }
        bytes.push(9);
        assert_eq!(DeviceGid::take(&bytes), Some((device, &[9][..])));
        bytes[16] = MAX_FORMER as u8 + 1;
        bytes.extend([0; 16]);
        assert_eq!(DeviceGid::take(&bytes), None, "more than a device keeps");
    }
}

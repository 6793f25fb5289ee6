//! The present and the former GIDs of a device.
//!
//! Programs know a device by the GID of its rail 0. When that address changes, the programs of
//! other devices may still have the old one. A device therefore states both.

use mitra_verbs::{Codec, Gid, Malformed, Reader};

/// The maximum number of former GIDs. The oldest is forgotten first.
const MAX_FORMER: usize = 8;

/// The GID of rail 0, and its former GIDs, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) struct DeviceGid {
    pub(in crate::rails) current: Gid,
    pub(in crate::rails) former: Vec<Gid>,
}

impl DeviceGid {
    /// Returns the GID of a device without former GIDs.
    pub(in crate::rails) fn new(current: Gid) -> DeviceGid {
        DeviceGid { current, former: Vec::new() }
    }

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
}

/// The GID, the number of former GIDs (8 bits), and the former GIDs.
impl Codec<'_> for DeviceGid {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.current.put(out);
        (self.former.len() as u8).put(out);
        self.former.iter().for_each(|gid| gid.put(out));
    }

    fn take(reader: &mut Reader<'_>) -> Result<DeviceGid, Malformed> {
        let (current, former) = (Codec::take(reader)?, usize::from(u8::take(reader)?));
        if former > MAX_FORMER {
            return Err(Malformed::Field);
        }
        Ok(DeviceGid { current, former: reader.list(former)? })
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
        assert_eq!((device.current, &device.former[..]), (Gid([1; 16]), &[Gid([0; 16]), Gid([2; 16])][..]));
        for gid in 3..3 + MAX_FORMER as u8 {
            device.set(Gid([gid; 16]));
        }
        assert_eq!(device.former.len(), MAX_FORMER);
        assert!(
            !device.includes(Gid([0; 16]))
                && device.includes(Gid([3; 16]))
                && device.includes(device.current)
        );
        let mut bytes = device.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(DeviceGid::from_bytes(&bytes[..len]), Err(Malformed::Short));
        }
        assert_eq!(DeviceGid::from_bytes(&bytes), Ok(device));
        bytes[16] = MAX_FORMER as u8 + 1;
        bytes.extend([0; 16]);
        assert_eq!(DeviceGid::from_bytes(&bytes), Err(Malformed::Field), "more than a device keeps");
    }
}

//! The emulated files and directories, by path.

use crate::calls::device::{CHAR_DEVICE_NAME, DEVICE_NAME};
use crate::calls::gid_table::GID_COUNT;
use crate::rails::network_interface::interface_of_rail_0;

/// An emulated file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum EmulatedFile {
    /// The character device.
    Device,
    /// A file with this content, which can be read.
    Text(String),
    /// A directory of directories with these names.
    Directory(Vec<String>),
}

/// Returns the emulated file at a path. As in the kernel, slashes may follow the name of a directory.
pub(super) fn find(path: &str) -> Option<EmulatedFile> {
    if path.strip_prefix("/dev/infiniband/") == Some(CHAR_DEVICE_NAME) {
        return Some(EmulatedFile::Device);
    }
    let within = path.strip_prefix("/sys/class/infiniband/")?.strip_prefix(DEVICE_NAME)?.strip_prefix('/')?;
    if let Some(attribute) = within.strip_prefix("ports/1/gid_attrs/") {
        let (attribute, index) = attribute.split_once('/')?;
        (0..GID_COUNT).find(|at| at.to_string() == index)?;
        return match attribute {
            // `gid_attr_show_type` in drivers/infiniband/core/sysfs.c.
            "types" => Some(EmulatedFile::Text("RoCE v2\n".to_owned())),
            // `gid_attr_show_ndev` there.
            "ndevs" => Some(EmulatedFile::Text(format!("{}\n", interface_of_rail_0()?.name))),
            _ => None,
        };
    }
    let name = || interface_of_rail_0().map(|interface| interface.name);
    match within.trim_end_matches('/') {
        "device" => Some(EmulatedFile::Directory(vec!["net".to_owned()])),
        "device/net" => Some(EmulatedFile::Directory(vec![name()?])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> Option<EmulatedFile> {
        find(&format!("/sys/class/infiniband/mitra0/{path}"))
    }

    #[test]
    fn attributes_exist_for_each_gid() {
        for index in ["0", "1"] {
            let attribute = |name| text(&format!("ports/1/gid_attrs/{name}/{index}"));
            assert_eq!(attribute("types"), Some(EmulatedFile::Text("RoCE v2\n".to_owned())));
            assert_eq!(attribute("ndevs"), Some(EmulatedFile::Text("lo\n".to_owned())));
            assert_eq!(attribute("other"), None);
        }
        for path in ["types/2", "types/00", "types/0/", "types/", "types", "ndevs/-1", "ndevs/0x0"] {
            assert_eq!(text(&format!("ports/1/gid_attrs/{path}")), None, "{path}");
        }
        assert_eq!(text("ports/2/gid_attrs/types/0"), None);
    }

    #[test]
    fn network_device_is_the_interface_of_rail_0() {
        for path in ["device/net", "device/net/"] {
            assert_eq!(text(path), Some(EmulatedFile::Directory(vec!["lo".to_owned()])));
        }
        assert_eq!(text("device"), Some(EmulatedFile::Directory(vec!["net".to_owned()])));
        assert_eq!(find("/sys/class/infiniband/mitra1/device/net"), None);
        assert_eq!(find("/sys/class/infiniband/mitra0device/net"), None);
    }
}

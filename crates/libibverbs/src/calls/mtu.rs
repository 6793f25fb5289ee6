//! The conversion of path MTUs from and to `enum ibv_mtu`.

use mitra_verbs::{Error, Mtu, Result};

use mitra_verbs_abi::*;

pub(crate) fn mtu_code(mtu: Mtu) -> ibv_mtu {
    match mtu {
        Mtu::M256 => IBV_MTU_256,
        Mtu::M512 => IBV_MTU_512,
        Mtu::M1024 => IBV_MTU_1024,
        Mtu::M2048 => IBV_MTU_2048,
        Mtu::M4096 => IBV_MTU_4096,
    }
}

/// # Errors
/// `Invalid` for a value that is not in the enumeration.
pub(crate) fn mtu_from_code(code: ibv_mtu) -> Result<Mtu> {
    Mtu::ALL
        .into_iter()
        .find(|mtu| mtu_code(*mtu) == code)
        .ok_or(Error::Invalid("no path MTU has this code; use one of IBV_MTU_256 to IBV_MTU_4096"))
}

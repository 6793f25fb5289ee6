//! Unpredictable numbers from the operating system.

/// Returns an unpredictable number.
pub fn random_u64() -> u64 {
    // getrandom(2) does not fail for eight bytes once the kernel has booted.
    mitra_os_util::random::random_u64().unwrap_or_default()
}

/// Returns an unpredictable first PSN, 24 bits.
pub fn random_psn() -> u32 {
    random_u64() as u32 & 0x00ff_ffff
}

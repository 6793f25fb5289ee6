//! What `mitra run` preloads: a shared library that exports the calls of `mitra-libibverbs`, and the archive that the
//! replacement library is linked from. It has no code of its own.

// Its exported functions come along when it is linked.
use mitra_libibverbs as _;

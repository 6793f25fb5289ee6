//! The subcommands of `mitra`, one file each with its `Args` and its `run`.

pub(crate) mod bench;
pub(crate) mod decode;
pub(crate) mod devices;
pub(crate) mod pair;

use std::io;

/// Whether the reader of our output went away, as `| head` does: the end of our work, not a failure.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

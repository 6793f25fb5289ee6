//! The rows of fio's engine `rdma`.

use super::table::{Section, Shape};

/// A client that posts more messages than the server has receives waits forever on any device. This
/// happens, for instance, if the server is slow and its `--iodepth` is smaller than the number of
/// messages. `engines/rdma.c` passes the RNR retry count 0 to `rdma_accept`, so the message fails
/// with `IBV_WC_RNR_RETRY_EXC_ERR`. After an error, `fio_rdmaio_getevents` waits for a further
/// completion event. The rows with `--verb=send` therefore send 512 messages to 512 receives.
const ABOUT: &str = "fio sends 512 requests of 4 KiB, and the server has `--iodepth=512`, fio's maximum. With `--verb=send` the server's \
                     `--iodepth` must not be less than the number of messages (`--size` divided by `--bs`). fio sets the RNR retry count to 0, so a \
                     message that finds no receive fails with `RNR retry counter exceeded`. Then the client and the server wait forever, on any \
                     device.";

pub(crate) static SECTIONS: &[Section] = &[
    Section {
        title: "fio, engine rdma",
        about: ABOUT,
        under: &[],
        fault: None,
        shape: Shape::Fio,
        works: &[
            "fio --thread --verb=write --bs=4k --size=2m",
            "fio --thread --verb=write --bs=4k --size=2m --iodepth=16",
            "fio --thread --verb=read --bs=4k --size=2m",
            "fio --thread --verb=read --bs=4k --size=2m --iodepth=16",
            "fio --thread --verb=send --bs=4k --size=2m",
            "fio --thread --verb=send --bs=4k --size=2m --iodepth=16",
        ],
        fails: &[],
    },
    Section {
        title: "fio, engine rdma: two rails",
        about: "",
        under: &["--rails", "2"],
        fault: None,
        shape: Shape::Fio,
        works: &[
            "fio --thread --verb=write --bs=4k --size=2m --iodepth=16",
            "fio --thread --verb=read --bs=4k --size=2m --iodepth=16",
            "fio --thread --verb=send --bs=4k --size=2m --iodepth=16",
        ],
        fails: &[],
    },
    Section {
        title: "fio, engine rdma: two rails, of which one fails",
        about: "The link of the server's first rail goes down after the server's NIC has executed the 200th request.",
        under: &["--rails", "2"],
        fault: Some("rail0 link-down@5:200"),
        shape: Shape::Fio,
        works: &[
            "fio --thread --verb=write --bs=4k --size=2m",
            "fio --thread --verb=read --bs=4k --size=2m",
            "fio --thread --verb=send --bs=4k --size=2m",
            "fio --thread --verb=send --bs=4k --size=2m --iodepth=16",
        ],
        fails: &[],
    },
];

//! The rows of Rust programs.

use super::table::{Section, Shape};

const SIDEWAY: &str = "The examples of the crate `sideway` 0.4.3. The crate loads libibverbs and librdmacm with `dlopen`. `cargo xtask setup` builds them.";
const IBVERBS: &str = "`show_gids` belongs to `sideway`, and `loopback` to the crate `ibverbs` 0.9.2, which is linked with libibverbs.";

pub(crate) static SECTIONS: &[Section] = &[
    Section {
        title: "Rust: sideway",
        about: SIDEWAY,
        under: &[],
        fault: None,
        shape: Shape::Pair,
        works: &["rc_pingpong", "rc_pingpong -s 65536 -n 100", "rc_pingpong_split"],
        fails: &[],
    },
    Section {
        title: "Rust: sideway, two rails",
        about: "",
        under: &["--rails", "2"],
        fault: None,
        shape: Shape::Pair,
        works: &["rc_pingpong", "rc_pingpong_split"],
        fails: &[],
    },
    Section {
        title: "Rust: programs without a peer",
        about: IBVERBS,
        under: &[],
        fault: None,
        shape: Shape::Alone,
        works: &["show_gids", "loopback"],
        fails: &[],
    },
];

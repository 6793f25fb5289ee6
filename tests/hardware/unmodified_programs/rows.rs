//! The programs, and how long they run.

use crate::link_faults::Fault;

/// A program of which a server and a client run.
pub struct Row {
    /// The name of the test.
    pub name: &'static str,
    /// The words of both ends: variables, the program and its options.
    pub line: &'static str,
    pub shape: Shape,
    /// The option that gives the length of the run.
    pub length: &'static str,
    /// How rail 0 fails, after the run alone.
    pub fault: Option<Fault>,
    /// The length of the run alone, and of the one through the failure.
    pub short: u32,
    pub long: u32,
    /// Whether an operation may end with `ValueLost`: no verb reads the saved results of atomics.
    pub may_lose_value: bool,
}

/// How the ends differ.
#[derive(Clone, Copy)]
pub enum Shape {
    /// `-p` gives the port, and the client's last word is the server's address.
    Pair,
    /// rping: `-s` or `-c` selects the role, `-a` gives the server's address.
    Rping,
    /// fi_pingpong: `-B` gives the server's port, `-P` the port to which the client connects.
    Fabric,
}

impl Row {
    /// The variables of the environment.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
        self.line.split(' ').take_while(|word| is_variable(word)).filter_map(|word| word.split_once('='))
    }

    /// The program.
    pub fn program(&self) -> &'static str {
        self.words().next().expect("a row has a program")
    }

    /// The program and its options.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.line.split(' ').skip_while(|word| is_variable(word))
    }
}

fn is_variable(word: &str) -> bool {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

const fn row(name: &'static str, line: &'static str, length: &'static str, short: u32, long: u32) -> Row {
    Row { name, line, shape: Shape::Pair, length, fault: None, short, long, may_lose_value: false }
}

/// `-D` is in seconds, the other options are in iterations.
pub static ROWS: [Row; 10] = [
    row("ibv_rc_pingpong", "ibv_rc_pingpong -g 0 -c", "-n", 100, 20_000),
    Row { fault: Some(Fault::LinkDown), ..row("ib_write_bw", "ib_write_bw -F", "-D", 1, 8) },
    Row { fault: Some(Fault::Blackhole), ..row("ib_read_lat", "ib_read_lat -F", "-D", 1, 8) },
    Row {
        fault: Some(Fault::AddressRemoved),
        may_lose_value: true,
        ..row("ib_atomic_lat", "ib_atomic_lat -F", "-D", 1, 8)
    },
    row("ib_send_bw", "ib_send_bw -F -e", "-n", 200, 2_000),
    Row { shape: Shape::Rping, ..row("rping", "rping -V", "-C", 20, 4_000) },
    row("ucx_am", "ucx_perftest -d mitra0:1 -x rc_verbs -w 10 -t am_lat", "-n", 100, 20_000),
    row("ucx_put", "ucx_perftest -d mitra0:1 -x rc_verbs -w 10 -t put_lat", "-n", 100, 20_000),
    Row {
        may_lose_value: true,
        ..row("ucx_fadd", "ucx_perftest -d mitra0:1 -x rc_verbs -w 10 -t fadd", "-n", 100, 20_000)
    },
    // Without the variable, libfabric asks for a longer completion queue than soft-RoCE has.
    Row {
        shape: Shape::Fabric,
        ..row(
            "fi_pingpong",
            "FI_UNIVERSE_SIZE=1 fi_pingpong -p verbs;ofi_rxm -e rdm -m tagged -c -S 64",
            "-I",
            20,
            5_000,
        )
    },
];

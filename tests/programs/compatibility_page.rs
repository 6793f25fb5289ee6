//! Generates `docs/compatibility.md` from the table, from the expected outcomes of rdma-core's
//! suite, and from `suites_run_by_hand.md`.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use super::rdma_core_suite;
use super::table::sections;

const BEGINNING: &str = "\
# Unmodified programs that run on Mitra

`cargo test --test programs` runs these programs with Debian 12's packages and the preloaded library. Each row is a test, and this
page is generated from the table of the tests. A row that gives a reason is tested to fail.

Most rows are a server and a client, each under `mitra run`. The options that pass an address and a port are omitted here.

`cargo xtask compatibility` runs the rows of [downloaded programs](#downloaded-programs), which need a gigabyte or minutes. The last run was of ";

const STORE_CLIENTS: &str = "
## Clients of `mitra kv`

Clients of Redis, with their defaults, in the versions of `xtask/src/setup.rs`: setting, reading and deleting keys, `SET … NX`, pipelines of 1000 commands, and what each sends when it connects.
The [table of commands](consensus.md#commands) says what the store does not have, such as expiry and transactions. Each client is a test of
[`redis_protocol.rs`](../tests/it/kv/redis_protocol.rs), and reads its refusals as errors.

| client | |
|---|---|
| redis-py (RESP3 and RESP2) | works |
| redis-py, `redis.asyncio` | works |
| node-redis | works |
| ioredis | works |
| `redis-cli -c`, `redis-benchmark` | works |
";

fn document() -> Result<String, String> {
    let mut text = format!("{BEGINNING}{}.\n", include_str!("downloads_last_run.txt").trim());
    for section in sections() {
        let _ = writeln!(text, "\n## {}\n", section.title);
        if !section.about.is_empty() {
            let _ = writeln!(text, "{}\n", section.about);
        }
        let options = section.under.iter().map(|option| format!("{option} ")).collect::<String>();
        if let Some(fault) = section.fault {
            let _ = writeln!(
                text,
                "The first (or only) process runs under `mitra run {options}--fault '{fault}' --`.\n"
            );
        }
        let _ = writeln!(text, "| `mitra run {options}--` | |\n|---|---|");
        for command in section.works {
            let _ = writeln!(text, "| `{command}` | works |");
        }
        for failure in section.fails {
            let _ = writeln!(text, "| `{}` | no: {} |", failure.command, failure.because);
        }
    }
    text.push_str(STORE_CLIENTS);
    text.push_str(&rdma_core_suite::section()?);
    text.push_str(include_str!("suites_run_by_hand.md"));
    Ok(text)
}

/// Checks that the page matches the table, or writes the page if `MITRA_WRITE_DOCS` is set.
pub(crate) fn compare() -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    if env::var_os("MITRA_WRITE_DOCS").is_some() {
        return fs::write(&path, document()?).map_err(|error| format!("{}: {error}", path.display()));
    }
    if fs::read_to_string(&path).unwrap_or_default() == document()? {
        return Ok(());
    }
    Err("docs/compatibility.md differs from the table; run MITRA_WRITE_DOCS=1 cargo test --test programs document".to_owned())
}

//! Compares the symbol table with the installed library.

use mitra_libibverbs::symbols::{NODES, symbols};
use mitra_test_process::command;

/// Returns the symbol table in the form of `readelf`.
fn table() -> Vec<(String, String)> {
    let mut table: Vec<_> = symbols()
        .map(|symbol| {
            let at = if symbol.is_default { "@@" } else { "@" };
            let kind = if symbol.is_object { "OBJECT" } else { "FUNC" };
            (format!("{}{at}{}", symbol.name, symbol.node), kind.to_owned())
        })
        .collect();
    table.sort();
    table
}

/// Checks that a library exports exactly the symbols of the table.
fn assert_exports_the_table(library: &str) {
    let (table, exported) = (table(), crate::rdma_core::definitions(library));
    let missing: Vec<_> = table.iter().filter(|symbol| !exported.contains(symbol)).collect();
    let extra: Vec<_> = exported.iter().filter(|symbol| !table.contains(symbol)).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{library} does not export {missing:#?}; it exports {extra:#?}, which are not in the table"
    );
    assert_eq!(table.len(), exported.len(), "the table has duplicates");
    assert_eq!(expected_nodes(), nodes(library));
}

/// Returns the version nodes of a library with their parents, in order.
fn nodes(library: &str) -> Vec<(String, Option<String>)> {
    let output = crate::rdma_core::output_of(command("readelf").args(["-V", "-W"]).arg(library));
    let definitions = output.split("Version needs section").next().unwrap_or_default();
    let mut nodes: Vec<(String, Option<String>)> = Vec::new();
    for line in definitions.lines() {
        if let Some((_, name)) = line.split_once("  Name: ") {
            // The base definition is the library itself.
            if !line.contains("Flags: BASE") {
                nodes.push((name.trim().to_owned(), None));
            }
        } else if let Some((_, parent)) = line.split_once(": Parent 1: ")
            && line.trim_start().starts_with("0x")
        {
            nodes.last_mut().expect("a parent follows its node").1 = Some(parent.trim().to_owned());
        } else if let Some((_, parent)) = line.split_once("Parent 1: ") {
            nodes.last_mut().expect("a parent follows its node").1 = Some(parent.trim().to_owned());
        }
    }
    nodes
}

fn expected_nodes() -> Vec<(String, Option<String>)> {
    NODES.iter().map(|node| (node.name.to_owned(), node.parent.map(str::to_owned))).collect()
}

/// The library calls cancellation points of the C library only while cancellation is held off.
#[test]
fn no_cancellation_point_is_imported() {
    let output = crate::rdma_core::output_of(
        command("nm").args(["--dynamic", "--undefined-only"]).arg(crate::c_program::preload()),
    );
    // The cancellation points of pthreads(7) in glibc, without the functions that the library calls
    // in `held_off`, such as `getaddrinfo`.
    let points = "accept accept4 clock_nanosleep close connect creat creat64 epoll_pwait epoll_wait fdatasync fsync getrandom \
        msgrcv msgsnd msync nanosleep open_by_handle_at openat openat64 poll ppoll pread pread64 preadv preadv2 preadv64 pselect \
        pwrite pwrite64 pwritev pwritev2 pwritev64 read readv recv recvfrom recvmmsg recvmsg select send sendmmsg sendmsg sendto sleep splice \
        sync_file_range system tcdrain tee usleep vmsplice wait wait4 waitid waitpid write writev";
    let imported: Vec<&str> = (output.lines())
        .filter_map(|line| line.split_whitespace().last()?.split('@').next())
        .filter(|name| points.split_whitespace().any(|point| point == *name))
        .collect();
    assert!(imported.is_empty(), "{imported:?}: give them a place in `without_cancellation`");
}

#[test]
fn table_matches_the_installed_library() {
    assert_exports_the_table(&crate::rdma_core::installed_library());
}

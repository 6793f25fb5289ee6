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

#[test]
fn table_matches_the_installed_library() {
    assert_exports_the_table(&crate::rdma_core::installed_library());
}

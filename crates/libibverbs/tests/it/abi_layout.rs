//! Compares the Rust definitions of the C ABI with the installed headers.
//!
//! The test generates a C program from the lists of the `mirror` macro, so that every field is
//! compared. The debug information of that program shows whether C has a member or an enumerator
//! that the Rust definitions lack.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use mitra_test_process::command;
use mitra_verbs_abi::{Structure, all_constants, enumerations, opaque_types, structures};

fn type_in_c(structure: &Structure) -> String {
    match structure.c_path {
        None => format!("{} {}", structure.kind, structure.name),
        Some(path) => {
            let path: String = path.split_whitespace().collect();
            let (outer, member) = path.split_once('.').expect("a path has a member");
            let outer = structures().find(|other| other.name == outer).expect("the outer type is mirrored");
            format!("__typeof__((({} *)0)->{member})", type_in_c(outer))
        }
    }
}

fn names_in_c<'a>(name: &'a &'static str, c_names: &'a [&'static str]) -> Vec<&'a str> {
    if c_names.is_empty() { vec![name.trim_start_matches("r#")] } else { c_names.to_vec() }
}

/// Returns the C type of a Rust type in the signature of a function pointer.
fn signature_type(rust: &str) -> String {
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{} *", signature_type(to));
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("const {} *", signature_type(to));
    }
    let known = match rust {
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_void" => "void",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        _ => {
            let enumeration = format!("enum {rust}");
            let is_enumeration = enumerations().any(|(name, _)| *name == enumeration);
            return if is_enumeration { enumeration } else { format!("struct {rust}") };
        }
    };
    known.to_owned()
}

/// Returns the C type of a function pointer field, or `None` for other fields.
fn slot_type(rust: &str) -> Option<String> {
    let rust = rust.split_whitespace().collect::<Vec<_>>().join(" ");
    if rust == "unused_slot" {
        return Some("void *(*)(void)".to_owned());
    }
    if !rust.contains("fn(") {
        return None;
    }
    let signature =
        rust.strip_prefix("Option<unsafe extern \"C\" fn(").and_then(|rest| rest.strip_suffix('>'));
    let signature =
        signature.unwrap_or_else(|| panic!("a slot is `Option<unsafe extern \"C\" fn(…)>`, not {rust}"));
    let (arguments, result) = signature.rsplit_once(')').expect("a signature has its arguments in brackets");
    let result = result.trim().strip_prefix("-> ").map_or("void".to_owned(), signature_type);
    let arguments: Vec<String> = arguments
        .split(',')
        .filter(|argument| !argument.trim().is_empty())
        .map(|argument| {
            let (_, argument) = argument.split_once(": ").expect("arguments are named");
            signature_type(argument.trim())
        })
        .collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    Some(format!("{result} (*)({arguments})"))
}

/// Returns the C program and its expected output, line by line.
fn program() -> (String, Vec<String>) {
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <time.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    let mut expected = Vec::new();
    let mut compare = |what: String, c: String, rust: i64| {
        let _ = writeln!(source, "    printf(\"{what} = %lld\\n\", (long long)({c}));");
        expected.push(format!("{what} = {rust}"));
    };
    for structure in structures() {
        let (name, c) = (structure.name, type_in_c(structure));
        compare(format!("sizeof {name}"), format!("sizeof({c})"), structure.size as i64);
        compare(format!("alignof {name}"), format!("_Alignof({c})"), structure.align as i64);
        for field in structure.fields {
            let names = names_in_c(&field.name, field.c_names);
            for member in &names {
                let offset = format!("offsetof({c}, {member})");
                compare(format!("offsetof {name}.{member}"), offset, field.offset as i64);
            }
            if let Some(slot) = slot_type(field.rust_type) {
                let same =
                    format!("__builtin_types_compatible_p(__typeof__((({c} *)0)->{}), {slot})", names[0]);
                compare(format!("signature of {name}.{}", names[0]), same, 1);
            }
            // The size of an anonymous union is the size of the largest member.
            let size = names.iter().fold("(size_t)0".to_owned(), |largest, member| {
                let size = format!("sizeof((({c} *)0)->{member})");
                format!("({largest} > {size} ? {largest} : {size})")
            });
            compare(format!("sizeof {name}.{}", names.join("|")), size, field.size as i64);
        }
    }
    for constant in all_constants() {
        compare(constant.name.to_owned(), constant.name.to_owned(), constant.value);
    }
    for (name, size) in enumerations() {
        if name.starts_with("enum ") {
            compare(format!("sizeof {name}"), format!("sizeof({name})"), *size as i64);
        }
    }
    source.push_str("    return 0;\n}\n");
    (source, expected)
}

#[test]
fn sizes_offsets_and_values_match_the_headers() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let (source, expected) = program();
    let path = directory.path().join("layout");
    crate::rdma_core::compile(&source, &path, &["-std=gnu11"]);
    let output = crate::rdma_core::output_of(&mut command(&path));
    let output: Vec<&str> = output.lines().collect();
    let differences: Vec<String> = output
        .iter()
        .zip(&expected)
        .filter(|(c, rust)| c != rust)
        .map(|(c, rust)| format!("C: {c}; Rust: {rust}"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(output.len(), expected.len());
    assert!(output.len() > 1000, "only {} values compared; are the lists complete?", output.len());
}

/// A type that is defined without the macro would not be compared.
#[test]
fn every_c_type_is_defined_by_the_macro() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-abi/src");
    for entry in std::fs::read_dir(directory).expect("the sources are readable") {
        let path = entry.expect("the sources are readable").path();
        let text = std::fs::read_to_string(&path).expect("the sources are readable");
        assert!(
            path.ends_with("mirror.rs") || !text.contains("#[repr("),
            "{} defines a C type without the macro",
            path.display()
        );
    }
}

/// An entry of the debug information, with the tags and names of its children.
struct Entry {
    tag: String,
    name: Option<String>,
    children: Vec<(String, Option<String>)>,
}

/// Returns the structures, unions and enumerations in the debug information of an object file.
/// Anonymous types have no name.
fn debug_entries(object: &std::path::Path) -> Vec<Entry> {
    let dump = crate::rdma_core::output_of(command("readelf").args(["--debug-dump=info", "-W"]).arg(object));
    let mut entries: Vec<Entry> = Vec::new();
    let mut depth = 0;
    for line in dump.lines().map(str::trim_start) {
        // " <1><2e>: Abbrev Number: 3 (DW_TAG_structure_type)", then " <2f>   DW_AT_name : (…): ibv_x" for each attribute.
        if let Some((_, tag)) = line.split_once(" (DW_TAG_") {
            depth = line[1..]
                .split('>')
                .next()
                .and_then(|depth| depth.parse().ok())
                .expect("an entry has a depth");
            let tag = tag.trim_end_matches(')').to_owned();
            match depth {
                1 => entries.push(Entry { tag, name: None, children: Vec::new() }),
                2 => entries.last_mut().expect("a child has a parent").children.push((tag, None)),
                _ => {}
            }
        } else if let Some((_, name)) = line.split_once("DW_AT_name") {
            // The name follows ": (string) " or "(indirect string, offset: 0x…): ".
            let name = name.split_whitespace().next_back().map(str::to_owned);
            match (depth, entries.last_mut()) {
                (1, Some(entry)) => entry.name = name,
                (2, Some(entry)) => entry.children.last_mut().expect("a name belongs to an entry").1 = name,
                _ => {}
            }
        }
    }
    entries
}

/// Enumerations of verbs that Mitra does not offer.
const NOT_MIRRORED: &[&str] = &[
    "ibv_counter_description",
    "ibv_dm_mask",
    "ibv_flow_action_esp_mask",
    "ibv_flow_attr_type",
    "ibv_flow_flags",
    "ibv_flow_spec_type",
    "ibv_ind_table_init_attr_mask",
    "ibv_read_counters_flags",
    "ibv_wq_attr_mask",
    "ibv_wq_flags",
    "ibv_wq_init_attr_mask",
    "ibv_wq_state",
    "ibv_wq_type",
    "rdma_driver_id",
];

#[test]
fn headers_have_no_member_beyond_the_rust_definitions() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let object = directory.path().join("all.o");
    let source = "#include <rdma/rdma_cma.h>\n";
    let every_type = "-fno-eliminate-unused-debug-types";
    crate::rdma_core::compile(
        source,
        &object,
        &["-std=gnu11", "-g", "-c", every_type, "-fno-eliminate-unused-debug-symbols"],
    );
    let entries = debug_entries(&object);
    let mut missing = Vec::new();

    let mirrored: BTreeMap<&str, &Structure> =
        structures().map(|structure| (structure.name, structure)).collect();
    let opaque: BTreeSet<&str> = opaque_types().collect();
    let constants: BTreeSet<&str> = all_constants().map(|constant| constant.name).collect();
    let ours = |name: &str| {
        (name.contains("ibv_") || name.starts_with("rdma_"))
            && !name.starts_with("ibv_flow_")
            && !name.starts_with("ib_")
    };
    let mut seen = BTreeSet::new();
    for entry in &entries {
        // An anonymous structure is part of another type. Its size and offset are compared, but not
        // the names of its members.
        let name = entry.name.as_deref().unwrap_or("ibv_ without a name");
        match entry.tag.as_str() {
            "structure_type" | "union_type" if entry.name.is_some() => {
                let Some(structure) = mirrored.get(name) else {
                    if ours(name) && !opaque.contains(name) {
                        missing.push(format!("type {name}"));
                    }
                    continue;
                };
                seen.insert(name);
                let known: BTreeSet<&str> = structure
                    .fields
                    .iter()
                    .flat_map(|field| names_in_c(&field.name, field.c_names))
                    .collect();
                // A member without a name is an anonymous union. Its members are compared by name,
                // and its size by the offsets of the later members.
                for member in entry.children.iter().filter_map(|(_, name)| name.as_deref()) {
                    if !known.contains(member) {
                        missing.push(format!("{name}.{member}"));
                    }
                }
            }
            "enumeration_type" if ours(name) && !NOT_MIRRORED.contains(&name) => {
                for value in entry.children.iter().filter_map(|(_, name)| name.as_deref()) {
                    if (value.starts_with("IBV_") || value.starts_with("RDMA_")) && !constants.contains(value)
                    {
                        missing.push(format!("{name}: {value}"));
                    }
                }
            }
            _ => {}
        }
    }
    for structure in structures().filter(|structure| structure.c_path.is_none()) {
        assert!(seen.contains(structure.name), "the debug information does not show {}", structure.name);
    }
    assert!(missing.is_empty(), "the mirror lacks:\n{}", missing.join("\n"));
}

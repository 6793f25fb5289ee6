//! What the built program and the library in it need of the system.

use std::fs;
use std::path::Path;

use mitra_test_process::{command, output};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

/// docs/run.md promises that this version of glibc is enough.
const PROMISED: [u32; 2] = [2, 34];

/// Returns the versions of glibc of which an ELF file needs functions.
fn needed_versions(file: &Path) -> Vec<[u32; 2]> {
    let data = &*fs::read(file).unwrap();
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (needed, strings) = sections.gnu_verneed(endian, data).unwrap().expect("a dynamic file");
    let strings = sections.strings(endian, data, strings).unwrap();
    let mut versions = Vec::new();
    for library in needed {
        for version in library.unwrap().1 {
            let name = str::from_utf8(version.unwrap().name(endian, strings).unwrap()).unwrap();
            let Some(numbers) = name.strip_prefix("GLIBC_") else { continue };
            let mut numbers = numbers.split('.').map(|number| number.parse().expect("a public version"));
            versions.push([numbers.next().unwrap(), numbers.next().unwrap_or(0)]);
        }
    }
    versions
}

/// A function of a newer glibc, such as `hypot` of Debian 12, would make the loader refuse the
/// whole program on an older system.
#[test]
fn glibc_2_34() {
    let dir = tempfile::tempdir().unwrap();
    let mitra = Path::new(env!("CARGO_BIN_EXE_mitra"));
    let mut run = command(mitra);
    run.args(["run", "--quiet", "--", "true"]).env("XDG_RUNTIME_DIR", dir.path()).env_remove("MITRA_RUN_DIR");
    assert!(output(run.env_remove("MITRA_PRELOAD")).status.success());
    let written = fs::read_dir(dir.path().join("mitra")).unwrap().map(|entry| entry.unwrap().path());
    let libraries: Vec<_> = written.filter(|path| path.extension().is_some_and(|end| end == "so")).collect();
    assert_eq!(libraries.len(), 1, "{libraries:?}");
    for file in [mitra, &libraries[0]] {
        let newest = needed_versions(file).into_iter().max().expect("the file uses glibc");
        assert!(
            newest <= PROMISED,
            "{} needs glibc {newest:?}; `objdump -T` names the function",
            file.display()
        );
    }
}

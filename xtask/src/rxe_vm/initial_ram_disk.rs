//! The initial RAM disk of the machine: `busybox`, the kernel modules, the scripts of
//! `xtask/rxe-vm`, and the command.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;

use super::Args;
use super::cache::{Cache, list};

/// Returns the archive that the kernel unpacks and whose `init` it runs.
pub(super) fn initial_ram_disk(cache: &Cache, args: &Args) -> Result<Vec<u8>> {
    let mut disk = Cpio::default();
    for dir in ["bin", "mods", "job", "proc", "sys", "dev", "host", "tools", "scratch", "root"] {
        disk.add(dir, Cpio::DIRECTORY, &[]);
    }
    disk.add(
        "bin/busybox",
        Cpio::PROGRAM,
        &fs::read(cache.tool("usr/bin/busybox").or(cache.tool("bin/busybox"))?)?,
    );
    disk.add("init", Cpio::PROGRAM, include_bytes!("../../rxe-vm/init"));
    disk.add("order", Cpio::FILE, &fs::read(cache.path("order"))?);
    for module in list(&cache.path("mods"))? {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        disk.add(&format!("mods/{name}"), Cpio::FILE, &fs::read(&module)?);
    }
    disk.add("job/guest", Cpio::FILE, include_bytes!("../../rxe-vm/guest"));
    disk.add("job/links", Cpio::FILE, args.topo.links().as_bytes());
    disk.add("job/mtu", Cpio::FILE, args.mtu.to_string().as_bytes());
    disk.add("job/command", Cpio::FILE, &script(args)?);
    Ok(disk.finish())
}

/// Returns the command as a shell script that restores the environment and the directory of this
/// process.
fn script(args: &Args) -> Result<Vec<u8>> {
    let mut script = Vec::new();
    for (name, value) in std::env::vars_os() {
        let name = name.as_bytes();
        let plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        if plain && name.first().is_some_and(|first| !first.is_ascii_digit()) {
            script.extend_from_slice(b"export ");
            script.extend_from_slice(name);
            script.push(b'=');
            quote(value.as_bytes(), &mut script);
            script.push(b'\n');
        }
    }
    // `ip` and similar tools are not on every user's path.
    script.extend_from_slice(b"PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin\ncd ");
    quote(std::env::current_dir()?.as_os_str().as_bytes(), &mut script);
    script.extend_from_slice(b"\nexec");
    for word in &args.command {
        script.push(b' ');
        quote(word.as_bytes(), &mut script);
    }
    script.push(b'\n');
    Ok(script)
}

/// Appends `text` as one shell word.
fn quote(text: &[u8], script: &mut Vec<u8>) {
    script.push(b'\'');
    for &byte in text {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            _ => script.push(byte),
        }
    }
    script.push(b'\'');
}

/// A cpio archive in the format that the kernel unpacks
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    const DIRECTORY: u32 = 0o040_755;
    const FILE: u32 = 0o100_644;
    const PROGRAM: u32 = 0o100_755;

    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let mut header = String::from("070701");
        // The fields: inode, mode, uid, gid, links, mtime, size, device, special device, name
        // length, checksum.
        let fields =
            [self.entries, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        for field in fields {
            write!(header, "{field:08x}").expect("writing to a string does not fail");
        }
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

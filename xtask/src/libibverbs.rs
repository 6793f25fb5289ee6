//! `cargo xtask libibverbs`: builds the replacement library for programs that open libibverbs with `dlopen`, which
//! preloading does not intercept.
//!
//! rustc cannot assign symbol versions. The C compiler therefore links the archive of `mitra-preload` again, with the
//! version script of `mitra_libibverbs::symbols`.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use mitra_libibverbs::symbols::{SONAME, symbols, version_script};

use crate::root;

/// Build the replacement libibverbs.so.1, which `mitra run --replace` puts on LD_LIBRARY_PATH
///
/// The library is in the directory mitra-libibverbs, next to the `mitra` of the same profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build with the release profile
    #[arg(long)]
    release: bool,
    /// Target directory of cargo [default: CARGO_TARGET_DIR, or target]
    #[arg(long)]
    target_dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let target = args.target_dir.clone().or_else(|| env::var_os("CARGO_TARGET_DIR").map(PathBuf::from));
    let target = target.unwrap_or_else(|| root().join("target"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "mitra-preload", "--target-dir"]).arg(&target);
    let profile = if args.release {
        cargo.arg("--release");
        "release"
    } else {
        "debug"
    };
    run_step(cargo.current_dir(root()))?;

    let dir = target.join(profile).join("mitra-libibverbs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (script, superseded, library) = (dir.join("version.map"), dir.join("superseded.c"), dir.join(SONAME));
    fs::write(&script, version_script())?;
    fs::write(&superseded, superseded_source())?;
    run_step(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(&superseded)
            .arg("-Wl,--whole-archive")
            .arg(target.join(profile).join("libmitra_preload.a"))
            .arg("-Wl,--no-whole-archive")
            .arg(format!("-Wl,--version-script={}", script.display()))
            .arg(format!("-Wl,-soname,{SONAME}"))
            // `-z defs` makes an undefined symbol a link error.
            .args(["-Wl,-z,defs", "-lgcc_s", "-lpthread", "-lm", "-ldl"]),
    )?;
    let unversioned = dir.join("libibverbs.so");
    if unversioned.symlink_metadata().is_err() {
        symlink(SONAME, &unversioned).with_context(|| format!("cannot create {}", unversioned.display()))?;
    }
    println!("{}", library.display());
    Ok(())
}

/// Returns C source for the functions of the libibverbs 1.0 ABI, whose structures differ from those of later versions. Each
/// function fails with ENOSYS.
fn superseded_source() -> String {
    let mut source = String::from("#include <errno.h>\n");
    for symbol in symbols().filter(|symbol| !symbol.is_default) {
        let (name, node) = (symbol.name, symbol.node);
        // Functions that create or find something return NULL; the others return a status.
        let returns_pointer = ["create_", "alloc_", "open_", "reg_mr", "get_device_"];
        let returns_pointer = name
            .strip_prefix("ibv_")
            .is_some_and(|call| returns_pointer.iter().any(|begin| call.starts_with(begin)));
        let answer = if returns_pointer { "0" } else { "ENOSYS" };
        let _ = writeln!(
            source,
            "long mitra_old_{name}(void) {{ errno = ENOSYS; return {answer}; }}\n\
             __asm__(\".symver mitra_old_{name}, {name}@{node}, remove\");"
        );
    }
    source
}

fn run_step(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

//! `cargo xtask libibverbs`: the replacement library, for programs that `dlopen` libibverbs, which no preloading catches.
//!
//! rustc cannot give symbols versions, so the archive of `mitra-preload` is linked once more, by the C compiler, with the
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
/// It lies in mitra-libibverbs beside the `mitra` of the same profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// As cargo's: of the release profile
    #[arg(long)]
    release: bool,
    /// As cargo's [default: CARGO_TARGET_DIR, or target]
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
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
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
            // All that the library refers to is there, as far as the linker can tell.
            .args(["-Wl,-z,defs", "-lgcc_s", "-lpthread", "-lm", "-ldl"]),
    )?;
    let unversioned = dir.join("libibverbs.so");
    if unversioned.symlink_metadata().is_err() {
        symlink(SONAME, &unversioned).with_context(|| format!("cannot make {}", unversioned.display()))?;
    }
    println!("{}", library.display());
    Ok(())
}

/// Functions that only programs of before 2007 ask for, whose structures were others: each refuses.
fn superseded_source() -> String {
    let mut source = String::from("#include <errno.h>\n");
    for symbol in symbols().filter(|symbol| !symbol.is_default) {
        let (name, node) = (symbol.name, symbol.node);
        // Those that make or find something return it, or NULL; the others a status.
        let makes = ["create_", "alloc_", "open_", "reg_mr", "get_device_"];
        let makes =
            name.strip_prefix("ibv_").is_some_and(|call| makes.iter().any(|begin| call.starts_with(begin)));
        let answer = if makes { "0" } else { "ENOSYS" };
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

//! `cargo xtask rxe`: runs a command on a Linux kernel with soft-RoCE (`rdma_rxe`) devices, in a
//! machine that QEMU emulates. The task needs neither root nor KVM, and installs nothing. It
//! unpacks Debian packages into a cache.
//!
//! The machine mounts the files of this host read-only, with a scratch layer on top. A program that
//! is built on the host therefore runs in the machine at the same path. `xtask/rxe-vm/guest`
//! describes the links, addresses and devices.

mod cache;
mod initial_ram_disk;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use cache::{Cache, list, remove_dir};
use initial_ram_disk::initial_ram_disk;

/// Run a command on a kernel with soft-RoCE devices, in an emulated machine
///
/// Exits with the status of the command; 124 on a timeout, 125 if the machine failed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// MTU of the links in bytes; 4200 allows the largest RoCE MTU, 4096
    #[arg(long, default_value_t = DEFAULT_MTU, value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// Seconds after which the machine is stopped, boot included
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Wiring of the devices
    #[arg(long, value_enum, default_value_t = Topology::Rails)]
    topo: Topology,
    /// Only download what the machine needs (about 90 MB, once)
    #[arg(long)]
    prepare: bool,
    /// Fail instead of downloading
    #[arg(long, conflicts_with = "prepare")]
    no_fetch: bool,
    /// Print the kernel console to standard error at the end
    #[arg(long)]
    console: bool,
    /// Command and its arguments
    #[arg(last = true, required_unless_present = "prepare")]
    command: Vec<OsString>,
}

/// See [`Args::mtu`].
const DEFAULT_MTU: u32 = 4200;

impl Args {
    /// Returns the arguments for a command on the devices of two rails.
    pub(crate) fn rails(timeout: u32, command: Vec<OsString>) -> Args {
        let topo = Topology::Rails;
        Args { mtu: DEFAULT_MTU, timeout, topo, prepare: false, no_fetch: false, console: false, command }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Topology {
    /// rxe0 and rxe1, each wired to its own network namespace (peer0, peer1)
    Ns,
    /// rxe0 wired to rxe0b
    Pair,
    /// Two pairs: rxe0 and rxe0b, rxe1 and rxe1b
    Rails,
    /// rxe0 wired to the namespace peer0, and the pair rxe1 and rxe1b
    Interop,
}

impl Topology {
    /// Returns the kind of the far end of each link, as `rxe-vm/guest` reads it.
    fn links(self) -> &'static str {
        match self {
            Self::Ns => "peer peer",
            Self::Pair => "rxe",
            Self::Rails => "rxe rxe",
            Self::Interop => "peer rxe",
        }
    }
}

const STATUS_TIMEOUT: u8 = 124;
const STATUS_MACHINE_FAILED: u8 = 125;

/// Downloads the packages that the machine needs, unless the cache is filled.
pub(crate) fn prepare() -> Result<()> {
    Cache::locate()?.fill()
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match boot_and_run(args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("rxe-vm: {error:#}");
            ExitCode::from(STATUS_MACHINE_FAILED)
        }
    }
}

fn boot_and_run(args: &Args) -> Result<u8> {
    if !args.no_fetch {
        prepare()?;
    }
    if args.prepare {
        return Ok(0);
    }
    let cache = Cache::locate()?;
    cache.check()?;
    boot(&cache, args)
}

/// Boots the machine, runs the command, and returns its status.
fn boot(cache: &Cache, args: &Args) -> Result<u8> {
    let job = Job::create(cache)?;
    let initrd = job.path("initrd");
    fs::write(&initrd, initial_ram_disk(cache, args)?)?;
    let file = |name: &str| job.path(name).display().to_string();
    let share = |tag: &str, path: &Path| {
        let fsdev =
            format!("local,id={tag},path={},security_model=none,readonly=on,multidevs=remap", path.display());
        let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
        ["-fsdev".into(), fsdev, "-device".into(), device]
    };
    let port = |name: &str, path: String| {
        let chardev = format!("file,id={name},path={path},append=on");
        let device = format!("virtserialport,chardev={name},name={name}");
        ["-chardev".into(), chardev, "-device".into(), device]
    };

    let root = cache.path("root");
    // QEMU's libraries may be in the cache only.
    let libraries = [root.join("usr/lib/x86_64-linux-gnu"), "/usr/lib/x86_64-linux-gnu".into()];
    // `timeout` survives a killed xtask, so the machine always stops.
    let mut qemu = Command::new("timeout");
    qemu.args(["--foreground", "--kill-after=5", &args.timeout.to_string()])
        .arg(cache.tool("usr/bin/qemu-system-x86_64")?)
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?)
        .env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"))
        .args(["-machine", "q35,sata=off,smbus=off,usb=off", "-accel", "tcg,thread=multi"])
        .args(["-cpu", "qemu64", "-smp", "2", "-m", "1024", "-nodefaults", "-no-user-config"])
        .args(["-display", "none", "-no-reboot"])
        // The firmware is where QEMU was installed: in the cache or on the host.
        .arg("-L")
        .arg(root.join("usr/share/qemu"))
        .arg("-L")
        .arg(root.join("usr/share/seabios"))
        .args(["-L", "/usr/share/qemu", "-L", "/usr/share/seabios"])
        .arg("-kernel")
        .arg(cache.path("vmlinux"))
        .arg("-initrd")
        .arg(&initrd)
        .args(["-append", "console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable mitigations=off nokaslr"])
        .args([
            "-chardev",
            &format!("file,id=console,path={}", file("console")),
            "-serial",
            "chardev:console",
        ])
        .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
        .args(share("host", Path::new("/")))
        .args(share("tools", &root))
        .args(port("out", "/dev/stdout".into()))
        .args(port("err", "/dev/stderr".into()))
        .args(port("status", file("status")))
        .stdin(Stdio::null())
        // QEMU opens /dev/stdout and /dev/stderr by path, which works only if they are pipes or
        // files.
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());

    let mut machine = qemu.spawn().context("cannot start QEMU under `timeout`")?;
    let (out, err) = (machine.stdout.take(), machine.stderr.take());
    let ended = thread::scope(|scope| {
        scope.spawn(|| out.map(|mut out| io::copy(&mut out, &mut io::stdout())));
        scope.spawn(|| err.map(|mut err| io::copy(&mut err, &mut io::stderr())));
        machine.wait()
    })?;

    let console = fs::read(job.path("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    if args.console {
        eprint!("{console}");
    }
    let status = fs::read_to_string(job.path("status")).unwrap_or_default();
    match (status.trim().parse(), ended.code()) {
        (Ok(status), _) => Ok(status),
        (_, Some(124 | 137)) => {
            eprintln!("rxe-vm: stopped after {} s; --timeout allows more", args.timeout);
            Ok(STATUS_TIMEOUT)
        }
        _ => {
            let last: Vec<_> = console.lines().rev().take(8).collect();
            for line in last.iter().rev() {
                eprintln!("{line}");
            }
            bail!("the machine ended without a status (QEMU: {ended}); --console shows its output")
        }
    }
}

/// The files of one run. Dropping the value removes them.
struct Job {
    dir: PathBuf,
}

impl Job {
    fn create(cache: &Cache) -> Result<Self> {
        remove_abandoned_jobs(cache)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let dir = cache.path(&format!("job-{}-{now}", std::process::id()));
        fs::create_dir(&dir)
            .with_context(|| format!("cannot write to {}; set MITRA_RXE_CACHE", dir.display()))?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Removes the files of runs that were killed.
fn remove_abandoned_jobs(cache: &Cache) -> Result<()> {
    for dir in list(&cache.dir)? {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let process = name.strip_prefix("job-").and_then(|it| it.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            remove_dir(&dir)?;
        }
    }
    Ok(())
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

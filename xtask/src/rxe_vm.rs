//! `cargo xtask rxe-vm`: runs a command on a Linux kernel with soft-RoCE (`rdma_rxe`) devices, in a machine that QEMU
//! emulates. The task needs neither root nor KVM, and installs nothing. It unpacks Debian packages into a cache.
//!
//! The machine mounts the files of this host read-only, with a scratch layer on top. A program that is built on the host
//! therefore runs in the machine at the same path. `xtask/rxe-vm/guest` describes the links, addresses and devices.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::root;

/// Run a command on a kernel with soft-RoCE devices, in an emulated machine
///
/// Exits with the status of the command; 124 on a timeout, 125 if the machine failed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// MTU of the links in bytes; 4200 allows the largest RoCE MTU, 4096
    #[arg(long, default_value_t = 4200, value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// Seconds after which the machine is stopped, boot included
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Wiring of the devices
    #[arg(long, value_enum, default_value_t = Topology::Ns)]
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

/// The Debian packages that the machine needs. Those that the host lacks are downloaded with their dependencies.
const TOOLS: [&str; 7] = [
    "qemu-system-x86",
    "busybox-static",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "tcpdump",
];
/// The kernel package. The cloud kernels lack `rdma_rxe`.
const KERNEL: &str = "linux-image-amd64";
/// The kernel modules that the machine loads, in addition to their dependencies. rdma_rxe requests the two CRC modules
/// by name at run time.
const MODULES: [&str; 11] = [
    "virtio_pci",
    "virtio_console",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "crc32c_generic",
    "veth",
    "sch_netem",
    "rdma_rxe",
];
/// The version of the cache layout. A cache with another version is filled again.
const LAYOUT: &str = "1";

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

/// The cache of unpacked packages: `root` (tools), `mods` and `order` (kernel modules), `vmlinux`.
struct Cache {
    dir: PathBuf,
}

impl Cache {
    fn locate() -> Result<Self> {
        let dir = match std::env::var_os("MITRA_RXE_CACHE") {
            Some(dir) => std::path::absolute(dir)?,
            None => root().join(".cache/rxe-vm"),
        };
        // QEMU separates options by commas.
        ensure!(
            !dir.as_os_str().as_bytes().contains(&b','),
            "the path of the cache {} has a comma; set MITRA_RXE_CACHE to a path without a comma",
            dir.display()
        );
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn contents() -> String {
        format!("{LAYOUT} {} {KERNEL} {}\n", TOOLS.join(" "), MODULES.join(" "))
    }

    fn is_filled(&self) -> bool {
        fs::read_to_string(self.path("filled")).is_ok_and(|it| it == Self::contents())
    }

    fn check(&self) -> Result<()> {
        ensure!(
            self.is_filled(),
            "the cache {} is empty; run `cargo xtask rxe-vm --prepare`",
            self.dir.display()
        );
        Ok(())
    }

    fn fill(&self) -> Result<()> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot create {}; set MITRA_RXE_CACHE", self.dir.display()))?;
        let lock = File::create(self.path("lock"))?;
        lock.lock()?;
        if self.is_filled() {
            return Ok(());
        }
        eprintln!("rxe-vm: downloading a kernel and QEMU into {} (about 90 MB, once)", self.dir.display());
        for leftover in ["root", "mods", "debs", "kernel"] {
            remove_dir(&self.path(leftover))?;
        }
        refresh_package_lists()?;
        self.fetch_tools()?;
        self.fetch_kernel()?;
        fs::write(self.path("filled"), Self::contents())?;
        Ok(())
    }

    fn fetch_tools(&self) -> Result<()> {
        let debs = self.path("debs");
        let root = self.path("root");
        // Debian links /bin to /usr/bin. A package that ships /bin/ip must not replace the link.
        for dir in ["bin", "sbin", "lib"] {
            fs::create_dir_all(root.join("usr").join(dir))?;
            std::os::unix::fs::symlink(Path::new("usr").join(dir), root.join(dir))?;
        }
        let plan = apt_get()
            .args(["install", "--print-uris", "-qq", "--no-install-recommends"])
            .args(TOOLS)
            .stdout_text()?;
        // The format of a line: 'https://…/name_version_arch.deb' name_version_arch.deb size hash
        let packages = plan.lines().filter_map(|line| line.split(' ').nth(1)?.split('_').next());
        download(packages, &debs)?;
        for deb in list(&debs)? {
            unpack(&deb, &root)?;
        }
        remove_dir(&debs)?;
        for docs in ["doc", "man", "locale"] {
            remove_dir(&root.join("usr/share").join(docs))?;
        }
        Ok(())
    }

    fn fetch_kernel(&self) -> Result<()> {
        let dir = self.path("kernel");
        let depends = Command::new("apt-cache").args(["depends", KERNEL]).stdout_text()?;
        let package = depends
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "))
            .with_context(|| format!("apt does not find {KERNEL}; only Debian is supported"))?;
        download([package], &dir)?;
        for deb in list(&dir)? {
            unpack(&deb, &dir)?;
        }

        let boot = list(&dir.join("boot"))?;
        let image = boot.iter().find(|file| file.to_string_lossy().contains("vmlinuz"));
        let image = image.with_context(|| format!("the package {package} contains no kernel"))?;
        fs::write(self.path("vmlinux"), decompressed(image)?)?;

        fs::create_dir_all(self.path("mods"))?;
        let mut shipped = Vec::new();
        find_modules(&dir.join("lib/modules"), &mut shipped)?;
        let mut order = Vec::new();
        for module in MODULES {
            self.add_module(module, &shipped, &mut order)?;
        }
        fs::write(self.path("order"), order.join("\n") + "\n")?;
        remove_dir(&dir)
    }

    /// Copies a module after its dependencies. `order` is the order in which the machine loads the modules.
    fn add_module(&self, name: &str, shipped: &[PathBuf], order: &mut Vec<String>) -> Result<()> {
        if order.iter().any(|it| it == name) {
            return Ok(());
        }
        let has_name = |file: &&PathBuf| {
            let file = file.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
            file.split('.').next() == Some(name)
        };
        let file = shipped
            .iter()
            .find(has_name)
            .with_context(|| format!("the kernel package has no module {name}"))?;
        let module = match file.extension() {
            Some(xz) if xz == "xz" => Command::new("xz").arg("-dc").arg(file).output()?.stdout,
            _ => fs::read(file)?,
        };
        let depends = module.split(|&byte| byte == 0).find_map(|it| it.strip_prefix(b"depends="));
        let depends = String::from_utf8_lossy(depends.unwrap_or_default());
        for needed in depends.split(',').filter(|it| !it.is_empty()) {
            self.add_module(&needed.replace('-', "_"), shipped, order)?;
        }
        fs::write(self.path("mods").join(format!("{name}.ko")), module)?;
        order.push(name.to_owned());
        Ok(())
    }

    /// Returns a tool from the cache or, if it is not there, from the host. The cache lacks the tools that the host had when the
    /// cache was filled.
    fn tool(&self, path: &str) -> Result<PathBuf> {
        let host = Path::new("/").join(path);
        [self.path("root").join(path), host.clone()].into_iter().find(|file| file.exists()).with_context(
            || {
                format!(
                    "{} is missing; remove {} to download it again",
                    host.display(),
                    self.path("filled").display()
                )
            },
        )
    }
}

fn apt_get() -> Command {
    let mut apt = Command::new("apt-get");
    apt.args(["-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"]);
    apt
}

/// Makes sure that apt has package lists. Mirrors drop the versions that an old list names, so the lists are refreshed
/// if the user may do that.
fn refresh_package_lists() -> Result<()> {
    let refreshed = Command::new("apt-get").args(["update", "-qq"]).output();
    let refreshed =
        refreshed.context("cannot run apt-get, which rxe-vm needs to download Debian packages")?;
    let known = Command::new("apt-cache").args(["show", "qemu-system-x86"]).output()?;
    ensure!(
        known.status.success(),
        "apt has no package lists and cannot download them: {}; run `sudo apt-get update`",
        String::from_utf8_lossy(&refreshed.stderr).trim()
    );
    Ok(())
}

fn download<'a>(packages: impl IntoIterator<Item = &'a str>, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    apt_get().args(["download", "-qq"]).args(packages).current_dir(into).stdout_text()?;
    Ok(())
}

fn unpack(deb: &Path, into: &Path) -> Result<()> {
    let mut tar = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(deb).stdout(Stdio::piped()).spawn()?;
    let files = tar.stdout.take().context("dpkg-deb has no output")?;
    Command::new("tar")
        .args(["-x", "--keep-directory-symlink", "-C"])
        .arg(into)
        .stdin(files)
        .stdout_text()?;
    ensure!(tar.wait()?.success(), "cannot unpack {}", deb.display());
    fs::remove_file(deb)?;
    Ok(())
}

fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(files.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?)
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn find_modules(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for path in list(dir)? {
        if path.is_dir() && !path.is_symlink() {
            find_modules(&path, found)?;
        } else if path.to_string_lossy().contains(".ko") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the ELF kernel inside a bzImage (Documentation/arch/x86/boot.rst). The emulated CPU would take seconds to
/// decompress it. A kernel that is not compressed with xz is returned unchanged.
fn decompressed(image: &Path) -> Result<Vec<u8>> {
    let whole = fs::read(image)?;
    let field = |at: usize| whole.get(at..at + 4)?.try_into().ok().map(|it| u32::from_le_bytes(it) as usize);
    let payload = || {
        let start = (usize::from(*whole.get(0x1f1)?) + 1) * 512 + field(0x248)?;
        // The last four bytes are the decompressed size, not part of the xz stream.
        let payload = whole.get(start..(start + field(0x24c)?).checked_sub(4)?)?;
        payload.starts_with(b"\xfd7zXZ").then_some(payload)
    };
    let Some(payload) = payload() else { return Ok(whole) };
    let packed = image.with_extension("xz");
    fs::write(&packed, payload)?;
    let elf = Command::new("xz").arg("-dc").arg(&packed).output().context("cannot run xz")?;
    ensure!(
        elf.status.success(),
        "cannot decompress the kernel: {}",
        String::from_utf8_lossy(&elf.stderr).trim()
    );
    Ok(elf.stdout)
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
        // QEMU opens /dev/stdout and /dev/stderr by path, which works only if they are pipes or files.
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

fn initial_ram_disk(cache: &Cache, args: &Args) -> Result<Vec<u8>> {
    let mut disk = Cpio::default();
    for dir in ["bin", "mods", "job", "proc", "sys", "dev", "host", "tools", "scratch", "root"] {
        disk.add(dir, Cpio::DIRECTORY, &[]);
    }
    disk.add(
        "bin/busybox",
        Cpio::PROGRAM,
        &fs::read(cache.tool("usr/bin/busybox").or(cache.tool("bin/busybox"))?)?,
    );
    disk.add("init", Cpio::PROGRAM, include_bytes!("../rxe-vm/init"));
    disk.add("order", Cpio::FILE, &fs::read(cache.path("order"))?);
    for module in list(&cache.path("mods"))? {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        disk.add(&format!("mods/{name}"), Cpio::FILE, &fs::read(&module)?);
    }
    disk.add("job/guest", Cpio::FILE, include_bytes!("../rxe-vm/guest"));
    disk.add("job/links", Cpio::FILE, args.topo.links().as_bytes());
    disk.add("job/mtu", Cpio::FILE, args.mtu.to_string().as_bytes());
    disk.add("job/command", Cpio::FILE, &script(args)?);
    Ok(disk.finish())
}

/// Returns the command as a shell script that restores the environment and the directory of this process.
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

/// A cpio archive in the format that the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format.rst).
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
        // The fields: inode, mode, uid, gid, links, mtime, size, device, special device, name length, checksum.
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

trait StdoutText {
    /// Runs the command to its end and returns its standard output. A failure is an error with the standard error
    /// output.
    fn stdout_text(&mut self) -> Result<String>;
}

impl StdoutText for Command {
    fn stdout_text(&mut self) -> Result<String> {
        let name = self.get_program().to_string_lossy().into_owned();
        let output = self.output().with_context(|| format!("cannot run {name}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name} failed ({}): {}", output.status, errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

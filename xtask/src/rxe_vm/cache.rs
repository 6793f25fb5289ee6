//! The cache of `cargo xtask rxe`: Debian packages with QEMU, a kernel and its modules,
//! downloaded and unpacked once.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use mitra_test_process::setup_dir;

/// The Debian packages that the machine needs. Packages that the host lacks are downloaded with
/// their dependencies.
const TOOLS: [&str; 8] = [
    "qemu-system-x86",
    "busybox-static",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "rdmacm-utils",
    "tcpdump",
];
/// The kernel package. The cloud kernels lack `rdma_rxe`.
const KERNEL: &str = "linux-image-amd64";
/// The kernel modules that the machine loads, in addition to their dependencies. rdma_rxe requests
/// the two CRC modules by name at run time.
const MODULES: [&str; 12] = [
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
    "rdma_ucm",
];
/// The version of the cache layout. A cache with another version is filled again.
const LAYOUT: &str = "2";

/// The cache of unpacked packages: `root` (tools), `mods` and `order` (kernel modules), `vmlinux`.
pub(super) struct Cache {
    pub(super) dir: PathBuf,
}

impl Cache {
    pub(super) fn locate() -> Result<Self> {
        let dir = match std::env::var_os("MITRA_RXE_CACHE") {
            Some(dir) => std::path::absolute(dir)?,
            None => setup_dir().join("rxe-vm"),
        };
        // QEMU separates options by commas.
        ensure!(
            !dir.as_os_str().as_bytes().contains(&b','),
            "the path of the cache {} has a comma; set MITRA_RXE_CACHE to a path without a comma",
            dir.display()
        );
        Ok(Self { dir })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn contents() -> String {
        format!("{LAYOUT} {} {KERNEL} {}\n", TOOLS.join(" "), MODULES.join(" "))
    }

    fn is_filled(&self) -> bool {
        fs::read_to_string(self.path("filled")).is_ok_and(|it| it == Self::contents())
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.is_filled(),
            "the cache {} is empty; run `cargo xtask rxe --prepare`",
            self.dir.display()
        );
        Ok(())
    }

    pub(super) fn fill(&self) -> Result<()> {
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

    /// Copies a module after its dependencies. `order` is the order in which the machine loads the
    /// modules.
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

    /// Returns a tool from the cache or, if it is not there, from the host. The cache lacks the
    /// tools that the host had when the cache was filled.
    pub(super) fn tool(&self, path: &str) -> Result<PathBuf> {
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

/// Makes sure that apt has package lists. Mirrors drop the versions that an old list names, so the
/// lists are refreshed if the user may do that.
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

pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(files.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?)
}

pub(super) fn remove_dir(dir: &Path) -> Result<()> {
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

/// Returns the ELF kernel inside a bzImage (Documentation/arch/x86/boot.rst). The emulated CPU
/// would take seconds to decompress it. A kernel that is not compressed with xz is returned
/// unchanged.
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

trait StdoutText {
    /// Runs the command to its end and returns its standard output. A failure is an error with the
    /// standard error output.
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

//! Finds the program to run, and checks that the dynamic loader will add Mitra's library to it.

use std::env;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{AccessFlags, access, getgid, getuid};
use object::elf::{FileHeader64, Machine, SHT_DYNSYM, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, FileKind, ReadCache};

use super::library::LD_PRELOAD;
use super::sanitizers::Sanitizer;

/// The exit codes that `env` and shells use for the same failures.
const NO_SUCH_PROGRAM: u8 = 127;
pub(super) const CANNOT_RUN: u8 = 126;

/// The machine that this program and the library are built for.
const MACHINE: Machine =
    if cfg!(target_arch = "x86_64") { object::elf::EM_X86_64 } else { object::elf::EM_AARCH64 };

/// Libraries that only verbs programs link with.
const VERBS_LIBRARIES: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// The reason why a program cannot be run.
#[derive(Debug)]
pub(super) struct RunError {
    /// The exit code of `mitra run`.
    pub(super) code: u8,
    pub(super) reason: String,
}

fn cannot_run(reason: String) -> RunError {
    RunError { code: CANNOT_RUN, reason }
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// The ELF file that the kernel loads: the program, or the interpreter of a script.
    image: PathBuf,
    /// The dynamic loader of the image.
    loader: PathBuf,
}

/// What the dynamic loader says of the libraries of a program.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    /// The list of those that it finds.
    pub(super) found: String,
    /// What it writes to standard error.
    errors: String,
}

impl Program {
    /// Finds a program as a shell does, and checks that its loader accepts a preloaded library.
    pub(super) fn find(name: &OsStr) -> Result<Program, RunError> {
        let path = look_up(name)?;
        let image = match script_interpreter(&path)? {
            Some(interpreter) => look_up(interpreter.as_os_str()).map_err(|error| {
                cannot_run(format!("the interpreter of {}: {}", path.display(), error.reason))
            })?,
            None => path.clone(),
        };
        let file = open(&image)?;
        let metadata = file.metadata().map_err(|error| unreadable(&image, &error))?;
        let has_capabilities = xattr::get(&image, "security.capability").is_ok_and(|found| found.is_some());
        if let Some(privilege) = privilege(&metadata, has_capabilities, getuid().as_raw(), getgid().as_raw())
        {
            return Err(cannot_run(format!(
                "{} {privilege}, and the dynamic loader ignores preloaded libraries for such a program; run a copy \
                 without this privilege",
                image.display()
            )));
        }
        let loader = loader(&image, &file)?;
        Ok(Program { path, image, loader })
    }

    /// Returns the libraries that the loader finds with this value of [`LD_PRELOAD`]. Without a
    /// working loader, there are none.
    pub(super) fn libraries(&self, preloaded: &OsStr) -> Libraries {
        // The method of ldd(1): the loader lists the libraries without running the program.
        let mut loader = Command::new(&self.loader);
        loader.arg("--list").arg(&self.image).env(LD_PRELOAD, preloaded).stdin(Stdio::null());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        loader.output().map_or_else(
            |_| Libraries::default(),
            |listed| Libraries { found: text(&listed.stdout), errors: text(&listed.stderr) },
        )
    }

    /// Returns a note for the user if the program, whose libraries are given, is not linked with
    /// libibverbs, or cannot be loaded without it.
    pub(super) fn note(&self, libraries: &Libraries) -> Option<String> {
        let is_named = |text: &str| VERBS_LIBRARIES.iter().any(|library| text.contains(library));
        if is_named(&libraries.errors) {
            return Some(
                "the dynamic loader needs the files libibverbs.so.1 and librdmacm.so.1 of rdma-core, although Mitra's library answers the calls; install them (Debian: libibverbs1, librdmacm1)"
                    .to_owned(),
            );
        }
        if is_named(&libraries.found) {
            return None;
        }
        let interpreter_note = if self.image == self.path {
            String::new()
        } else {
            format!(" is a script, and {}", self.image.display())
        };
        Some(format!(
            "{}{interpreter_note} is not linked with libibverbs; unless the program loads it later, it only sees the files of mitra0 in /sys and /dev",
            self.path.display()
        ))
    }

    /// Returns the sanitizer with which the program, whose libraries are given, was built.
    pub(super) fn sanitizer(&self, libraries: &Libraries) -> Option<Sanitizer> {
        Sanitizer::among(&libraries.found).or_else(|| {
            let exports = exports(&File::open(&self.image).ok()?, Sanitizer::THREAD_FUNCTION);
            exports.is_ok_and(|exports| exports).then_some(Sanitizer::Thread)
        })
    }
}

/// Returns the path of a program, found as `execvp(3)` does.
fn look_up(name: &OsStr) -> Result<PathBuf, RunError> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Some(true) => Ok(path),
            Some(false) => Err(not_executable(&path)),
            None => Err(missing(format!("there is no program {}; check its path", path.display()))),
        };
    }
    let dirs = env::var_os("PATH").unwrap_or_default();
    let mut refused = None;
    for path in env::split_paths(&dirs).map(|dir| dir.join(name)).filter(|_| !name.is_empty()) {
        match executable(&path) {
            Some(true) => return Ok(path),
            Some(false) => refused = refused.or(Some(path)),
            None => {}
        }
    }
    let name = name.display();
    Err(match refused {
        Some(path) => not_executable(&path),
        None => missing(format!("there is no program \"{name}\" on the PATH; install it, or give its path")),
    })
}

fn missing(reason: String) -> RunError {
    RunError { code: NO_SUCH_PROGRAM, reason }
}

fn not_executable(path: &Path) -> RunError {
    let path_text = path.display();
    cannot_run(match path.is_dir() {
        true => format!("{path_text} is a directory; give the path of a program"),
        false => format!("{path_text} is not executable; chmod +x it"),
    })
}

/// Returns whether a file is executable, or `None` if it does not exist.
fn executable(path: &Path) -> Option<bool> {
    let metadata = path.metadata().ok()?;
    Some(metadata.is_file() && access(path, AccessFlags::X_OK).is_ok())
}

fn open(path: &Path) -> Result<File, RunError> {
    File::open(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> RunError {
    cannot_run(format!("cannot read {} to see how it is linked ({error}); chmod +r it", path.display()))
}

/// Returns the interpreter of a script, as the kernel finds it (`execve(2)`). A script without an
/// interpreter line belongs to the shell (`execvp(3)`).
fn script_interpreter(path: &Path) -> Result<Option<PathBuf>, RunError> {
    let mut beginning = Vec::new();
    // The kernel reads this many bytes (BINPRM_BUF_SIZE).
    open(path)?.take(256).read_to_end(&mut beginning).map_err(|error| unreadable(path, &error))?;
    if beginning.starts_with(&object::elf::ELFMAG) {
        return Ok(None);
    }
    let line = beginning.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.strip_prefix(b"#!").unwrap_or_default().split(u8::is_ascii_whitespace);
    let interpreter = words.find(|word| !word.is_empty()).unwrap_or(b"/bin/sh");
    Ok(Some(PathBuf::from(OsStr::from_bytes(interpreter))))
}

/// Returns the privilege for which the loader ignores preloaded libraries (`AT_SECURE` in
/// `getauxval(3)`).
fn privilege(file: &Metadata, has_capabilities: bool, uid: u32, gid: u32) -> Option<&'static str> {
    const SET_UID: u32 = 0o4000;
    // Without group execute permission, the set-group-ID bit has another meaning (`inode(7)`).
    const SET_GID: u32 = 0o2010;
    if file.mode() & SET_UID != 0 && file.uid() != uid {
        Some("is set-uid")
    } else if file.mode() & SET_GID == SET_GID && file.gid() != gid {
        Some("is set-gid")
    } else if has_capabilities && uid != 0 {
        Some("has file capabilities")
    } else {
        None
    }
}

/// Returns the dynamic loader that an ELF file names (`PT_INTERP` in `elf(5)`).
fn loader(path: &Path, file: &File) -> Result<PathBuf, RunError> {
    let data = ReadCache::new(file);
    let shown = path.display();
    let damaged = |error| cannot_run(format!("{shown} is a damaged program ({error}); reinstall it"));
    let foreign = || {
        cannot_run(format!(
            "{shown} is built for another machine than this `mitra`; use a program for the same machine"
        ))
    };
    if FileKind::parse(&data).map_err(damaged)? != FileKind::Elf64 {
        return Err(foreign());
    }
    let header = FileHeader64::<Endianness>::parse(&data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    if header.e_machine(endian) != MACHINE {
        return Err(foreign());
    }
    for segment in header.program_headers(endian, &data).map_err(damaged)? {
        if let Some(loader) = segment.interpreter(endian, &data).map_err(damaged)? {
            let loader = PathBuf::from(OsStr::from_bytes(loader));
            return if is_of_musl(&loader) {
                Err(cannot_run(format!(
                    "{shown} is linked with musl, and Mitra's library needs glibc; use a program that is linked with glibc"
                )))
            } else {
                Ok(loader)
            };
        }
    }
    Err(cannot_run(format!(
        "{shown} is statically linked, so no library can be preloaded; link it with libibverbs.so"
    )))
}

fn is_of_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"))
}

/// Whether an ELF file exports a symbol to its libraries.
fn exports(file: &File, symbol: &str) -> object::Result<bool> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data)?;
    let endian = header.endian()?;
    let symbols = header.sections(endian, &data)?.symbols(endian, &data, SHT_DYNSYM)?;
    let is_exported = |found: &Sym64<Endianness>| {
        !found.is_undefined(endian) && symbols.symbol_name(endian, found) == Ok(symbol.as_bytes())
    };
    Ok(symbols.iter().any(is_exported))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn privilege_is_reported_only_if_the_user_lacks_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "").unwrap();
        let with = |mode| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path.metadata().unwrap()
        };
        let file = with(0o4755);
        let (uid, gid) = (file.uid(), file.gid());
        assert_eq!(privilege(&file, false, uid, gid), None, "the user's own program adds no privilege");
        assert_eq!(privilege(&file, false, uid + 1, gid), Some("is set-uid"));
        let file = with(0o2755);
        assert_eq!(privilege(&file, false, uid, gid), None);
        assert_eq!(privilege(&file, false, uid, gid + 1), Some("is set-gid"));
        assert_eq!(privilege(&with(0o2745), false, uid, gid + 1), None, "a file under mandatory locks");
        let file = with(0o755);
        assert_eq!(privilege(&file, false, uid + 1, gid + 1), None);
        assert_eq!(privilege(&file, true, 1000, gid), Some("has file capabilities"));
        assert_eq!(privilege(&file, true, 0, gid), None, "root has them anyway");
    }
}

use core::mem::zeroed;
use std::fs;
use std::path::Path;

use super::*;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn empty_stat() -> libc::stat {
    // SAFETY: `struct stat` consists of integers, for which zeros are valid.
    unsafe { zeroed() }
}

#[test]
fn character_device_is_one_to_all_calls() {
    let path = c"/dev/infiniband/uverbs0".as_ptr();
    // `_STAT_VER` of bits/stat.h, until glibc 2.33.
    let version = if cfg!(target_arch = "x86_64") { 1 } else { 0 };
    let calls: [&dyn Fn(*mut c_void) -> c_int; 6] = [
        // SAFETY, for all: `path` is a C string, and each call gets a local variable to write.
        &|found| unsafe { stat(path, found) },
        &|found| unsafe { stat64(path, found) },
        &|found| unsafe { lstat(path, found) },
        &|found| unsafe { fstatat(libc::AT_FDCWD, path, found, 0) },
        &|found| unsafe { __xstat(version, path, found) },
        &|found| unsafe { __lxstat64(version, path, found) },
    ];
    for call in calls {
        let mut found = empty_stat();
        assert_eq!(call((&raw mut found).cast()), 0);
        assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFCHR);
    }
    // SAFETY: the paths are C strings, and the descriptor belongs to the test.
    unsafe {
        assert_eq!(access(path, libc::R_OK | libc::W_OK), 0);
        assert_eq!((access(path, libc::X_OK), errno()), (-1, libc::EACCES));
        let file = open(path, libc::O_RDWR, 0);
        assert!(file >= 0);
        libc::close(file);
        assert_eq!((access(c"/dev/infiniband/uverbs0/x".as_ptr(), 0), errno()), (-1, libc::ENOTDIR));
        assert_eq!((access(c"/dev/infiniband/uverbs1".as_ptr(), 0), errno()), (-1, libc::ENOENT));
    }
}

#[test]
fn files_are_read_only() {
    let path = c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/0".as_ptr();
    // SAFETY: the paths and modes are C strings.
    unsafe {
        for flags in [libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY | libc::O_TRUNC] {
            assert_eq!((open(path, flags, 0), errno()), (-1, libc::EACCES));
        }
        let new = c"/sys/class/infiniband/new".as_ptr();
        assert_eq!((open64(new, libc::O_CREAT | libc::O_WRONLY, 0o600), errno()), (-1, libc::EACCES));
        for mode in [c"w", c"r+", c"a", c"rb+"] {
            assert!(fopen(path, mode.as_ptr()).is_null());
            assert_eq!(errno(), libc::EACCES);
        }
    }
    assert_eq!(
        fs::read_to_string("/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/0").unwrap(),
        "RoCE v2\n"
    );
}

#[test]
fn paths_in_the_tree_are_never_seen() {
    let device = Path::new("/sys/devices/virtual/infiniband/mitra0");
    assert_eq!(fs::canonicalize("/sys/class/infiniband/mitra0").unwrap(), device);
    assert_eq!(
        fs::canonicalize("/sys/class/infiniband/mitra0/../..").unwrap(),
        Path::new("/sys/devices/virtual")
    );
    assert_eq!(
        fs::read_link("/sys/class/infiniband/mitra0").unwrap(),
        Path::new("../../devices/virtual/infiniband/mitra0")
    );
    let file = fs::File::open(device).unwrap();
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    assert_eq!(fs::read_link(link).unwrap(), device);
}

#[test]
fn open_passes_the_mode_of_a_new_file() {
    let dir = tempfile::tempdir().expect("the temporary directory is writable");
    let name = dir.path().join("file").into_os_string().into_string().expect("the path is UTF-8");
    let path = std::ffi::CString::new(name).expect("the path contains no zero byte");
    // SAFETY: the path is a C string, and the buffer is a local variable.
    unsafe {
        let file = open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o640);
        assert!(file >= 0);
        libc::close(file);
        let mut found = empty_stat();
        assert_eq!(stat(path.as_ptr(), (&raw mut found).cast()), 0);
        assert_eq!(found.st_mode & 0o700, 0o600);
    }
}

#[test]
fn other_files_and_errors_come_from_the_c_library() {
    // SAFETY: each path is a C string or an address at which nothing is mapped, which only the
    // kernel reads.
    unsafe {
        let mut found = empty_stat();
        let to = (&raw mut found).cast();
        assert_eq!(stat(c"/dev/null".as_ptr(), to), 0);
        assert_eq!((access(c"/dev/null/uverbs0".as_ptr(), 0), errno()), (-1, libc::ENOTDIR));
        for address in [0, 8] {
            assert_eq!((stat(ptr::without_provenance(address), to), errno()), (-1, libc::EFAULT));
            assert_eq!((access(ptr::without_provenance(address), 0), errno()), (-1, libc::EFAULT));
        }
    }
}

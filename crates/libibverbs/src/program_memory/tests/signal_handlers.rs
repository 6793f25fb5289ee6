//! SIGSEGV and SIGBUS in programs that install actions of their own. Each test runs again in a
//! child process, which is the program under test.

use core::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::AtomicI32;

use libc::{
    SA_ONSTACK, SA_RESETHAND, SA_SIGINFO, SIG_DFL, SIG_ERR, SIG_IGN, SIGBUS, SIGSEGV, SIGUSR1, c_int, c_void,
    siginfo_t,
};

use super::*;

const CHILD: &str = "MITRA_TEST_CHILD";
/// The exit code of a child that passed all its checks.
const SUCCESS: i32 = 42;

/// The child writes this line directly before the access that is expected to end the child. The
/// line shows that no earlier check ended the child.
const CHECKS_PASSED: &str = "checks passed";

/// Runs the named test of this module again in a child process, where [`is_child`] is true.
fn run_child(test: &str) -> ExitStatus {
    let mut command = mitra_test_process::command(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        &format!("{}::{test}", module_path!().split_once("::").unwrap().1),
        "--nocapture",
    ]);
    let output = mitra_test_process::output(command.env(CHILD, "1"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(CHECKS_PASSED), "{}: {stderr}", output.status);
    output.status
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Accesses registered memory that is unmapped, which must not crash, and returns the pages.
fn access_unmapped_memory() -> Pages {
    let pages = Pages::new(1);
    let memory = pages.buffer(0);
    pages.unmap(0);
    assert_eq!(memory.try_load(0), Err(Unmapped));
    assert_eq!(memory.try_write_at(8, &[1; 100]), Err(Unmapped));
    pages
}

/// Maps an empty file. An access causes SIGBUS.
fn map_empty_file() -> Pages {
    let file = tempfile::tempfile().unwrap();
    Pages::map(1, MAP_SHARED, file.as_raw_fd())
}

/// Causes a fault of the program itself.
fn fault(pages: &Pages) {
    // SAFETY: the pages belong to the test, and no Rust reference points into them.
    unsafe { pages.start.write_volatile(1) };
}

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: zeros are a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn install(signal: c_int, handler: usize, flags: c_int) -> libc::sigaction {
    let (new, mut old) = (action(handler, flags), MaybeUninit::zeroed());
    // SAFETY: both actions are local variables, and every handler that the tests install has the
    // required signature.
    unsafe {
        assert_eq!(libc::sigaction(signal, &raw const new, old.as_mut_ptr()), 0);
        old.assume_init()
    }
}

/// The sum of the signal numbers that [`make_accessible`] was called with.
static HANDLED: AtomicI32 = AtomicI32::new(0);

/// A handler that makes the page accessible, as a garbage collector does.
extern "C" fn make_accessible(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: `info` comes from the kernel, and the faulting page belongs to the test.
    unsafe {
        let page = (*info).si_addr().map_addr(|address| address & !(PAGE - 1));
        libc::mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    }
    HANDLED.fetch_add(signal, Ordering::Relaxed);
}

fn take_handled() -> i32 {
    HANDLED.swap(0, Ordering::Relaxed)
}

extern "C" fn exit_successfully(_: c_int) {
    std::process::exit(SUCCESS);
}

fn address_of_make_accessible() -> usize {
    make_accessible as *const () as usize
}

fn address_of_exit() -> usize {
    exit_successfully as *const () as usize
}

#[test]
fn handler_installed_before_registration_gets_program_faults() {
    if !is_child() {
        return assert_eq!(
            run_child("handler_installed_before_registration_gets_program_faults").code(),
            Some(SUCCESS)
        );
    }
    install(SIGSEGV, address_of_make_accessible(), SA_SIGINFO);
    let pages = access_unmapped_memory();
    assert_eq!(take_handled(), 0, "the program's handler is not called for faults of the library");
    fault(&pages);
    assert_eq!(take_handled(), SIGSEGV);
    access_unmapped_memory();
    eprintln!("{CHECKS_PASSED}");
    std::process::exit(SUCCESS);
}

#[test]
fn handler_installed_after_registration_gets_program_faults_only() {
    if !is_child() {
        let status = run_child("handler_installed_after_registration_gets_program_faults_only");
        return assert_eq!(status.code(), Some(SUCCESS));
    }
    access_unmapped_memory();
    for (signal, flags) in [(SIGSEGV, SA_SIGINFO | SA_ONSTACK), (SIGBUS, SA_SIGINFO)] {
        install(signal, address_of_make_accessible(), flags);
        let returned = install(signal, address_of_make_accessible(), flags);
        assert_eq!((returned.sa_sigaction, returned.sa_flags), (address_of_make_accessible(), flags));
    }
    let pages = access_unmapped_memory();
    let empty = map_empty_file();
    assert_eq!(empty.buffer(0).try_load(0), Err(Unmapped));
    assert_eq!(take_handled(), 0);
    fault(&pages);
    assert_eq!(take_handled(), SIGSEGV);

    // SAFETY: the handler has the required signature.
    let previous = unsafe { libc::signal(SIGBUS, address_of_exit()) };
    assert_eq!(previous, address_of_make_accessible());
    assert_eq!(empty.buffer(0).try_load(0), Err(Unmapped));
    eprintln!("{CHECKS_PASSED}");
    fault(&empty);
    unreachable!("the handler exits");
}

#[test]
fn handler_with_resethand_is_called_once() {
    if !is_child() {
        return assert_eq!(run_child("handler_with_resethand_is_called_once").signal(), Some(SIGSEGV));
    }
    access_unmapped_memory();
    install(SIGSEGV, address_of_make_accessible(), SA_SIGINFO | SA_RESETHAND);
    let pages = access_unmapped_memory();
    fault(&pages);
    assert_eq!(take_handled(), SIGSEGV);
    let pages = access_unmapped_memory();
    eprintln!("{CHECKS_PASSED}");
    fault(&pages);
}

#[test]
fn program_fault_without_handler_kills_process() {
    if !is_child() {
        let status = run_child("program_fault_without_handler_kills_process");
        return assert_eq!(status.signal(), Some(SIGSEGV));
    }
    install(SIGSEGV, SIG_DFL, 0);
    let pages = access_unmapped_memory();
    eprintln!("{CHECKS_PASSED}");
    fault(&pages);
}

#[test]
fn ignored_signal_kills_process_only_by_a_fault() {
    if !is_child() {
        let status = run_child("ignored_signal_kills_process_only_by_a_fault");
        return assert_eq!(status.signal(), Some(SIGBUS));
    }
    install(SIGSEGV, SIG_IGN, 0);
    install(SIGBUS, SIG_IGN, 0);
    access_unmapped_memory();
    // SAFETY: `raise` has no preconditions.
    unsafe { libc::raise(SIGSEGV) };
    eprintln!("{CHECKS_PASSED}");
    fault(&map_empty_file());
}

#[test]
fn sent_signal_without_handler_kills_process() {
    if !is_child() {
        let status = run_child("sent_signal_without_handler_kills_process");
        return assert_eq!(status.signal(), Some(SIGSEGV));
    }
    install(SIGSEGV, SIG_DFL, 0);
    access_unmapped_memory();
    eprintln!("{CHECKS_PASSED}");
    // SAFETY: `raise` has no preconditions.
    unsafe { libc::raise(SIGSEGV) };
}

#[test]
fn other_signals_are_left_to_the_c_library() {
    if !is_child() {
        return assert_eq!(run_child("other_signals_are_left_to_the_c_library").code(), Some(SUCCESS));
    }
    access_unmapped_memory();
    let ignore = action(SIG_IGN, 0);
    // SAFETY: the handler has the required signature, and the action is a local variable.
    unsafe {
        assert_eq!(libc::signal(SIGUSR1, address_of_exit()), SIG_DFL);
        assert_eq!(libc::signal(-1, SIG_DFL), SIG_ERR);
        assert_eq!(libc::sigaction(libc::SIGKILL, &raw const ignore, ptr::null_mut()), -1);
        eprintln!("{CHECKS_PASSED}");
        libc::raise(SIGUSR1);
    }
    unreachable!("the handler exits");
}

#[test]
fn faults_are_handled_in_threads_that_block_all_signals() {
    if !is_child() {
        return assert_eq!(
            run_child("faults_are_handled_in_threads_that_block_all_signals").code(),
            Some(SUCCESS)
        );
    }
    for block in [libc::pthread_sigmask, libc::sigprocmask] {
        let thread = thread::spawn(move || {
            let (mut all, mut blocked) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            // SAFETY: the sets are local variables.
            let blocked = unsafe {
                libc::sigfillset(all.as_mut_ptr());
                assert_eq!(block(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut()), 0);
                assert_eq!(block(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr()), 0);
                blocked.assume_init()
            };
            // SAFETY: `blocked` is an initialised set.
            let is_blocked = |signal| unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
            assert!(is_blocked(SIGUSR1) && !is_blocked(SIGSEGV) && !is_blocked(SIGBUS));
            access_unmapped_memory();
            assert_eq!(map_empty_file().buffer(0).try_load(0), Err(Unmapped));
        });
        thread.join().unwrap();
    }
    eprintln!("{CHECKS_PASSED}");
    std::process::exit(SUCCESS);
}

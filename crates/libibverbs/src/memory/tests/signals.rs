//! Programs have their own SIGSEGV and SIGBUS. Each test runs again in a child process, which plays the program.

use core::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicI32;

use libc::{
    SA_ONSTACK, SA_RESETHAND, SA_SIGINFO, SIG_DFL, SIG_ERR, SIG_IGN, SIGBUS, SIGSEGV, SIGUSR1, c_int, c_void,
    siginfo_t,
};

use super::*;

const CHILD: &str = "MITRA_TEST_CHILD";
/// What a child exits with that did all that it should.
const WELL: i32 = 42;

/// What a child says before the deed that shall end it: nothing before must.
const ALL_WELL: &str = "all is well so far";

/// Runs the named test of this module again, in a child that takes the other branch.
fn child(test: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        &format!("{}::{test}", module_path!().split_once("::").unwrap().1),
        "--nocapture",
    ]);
    let output = command.env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(ALL_WELL), "{}: {said}", output.status);
    output.status
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Memory that was lent and is gone: it has been touched, and that was survived.
fn a_lent_fault_survived() -> Pages {
    let pages = Pages::new(1);
    let memory = pages.lend(0);
    pages.unmap(0);
    assert_eq!(memory.try_load(0), Err(Unmapped));
    assert_eq!(memory.try_write_at(8, &[1; 100]), Err(Unmapped));
    pages
}

/// A mapping of a file that is empty: what touches it gets SIGBUS.
fn an_empty_file() -> Pages {
    let file = tempfile::tempfile().unwrap();
    Pages::map(1, MAP_SHARED, file.as_raw_fd())
}

/// A fault of the program's own.
fn fault(pages: &Pages) {
    // SAFETY: the place is the test's, and nothing is there that could be broken.
    unsafe { pages.start.write_volatile(1) };
}

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: zeroes are an action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn install(signal: c_int, handler: usize, flags: c_int) -> libc::sigaction {
    let (new, mut old) = (action(handler, flags), MaybeUninit::zeroed());
    // SAFETY: both actions are ours; the handlers below are handlers.
    unsafe {
        assert_eq!(libc::sigaction(signal, &raw const new, old.as_mut_ptr()), 0);
        old.assume_init()
    }
}

/// The signals that `mend` was called with, added up.
static MENDED: AtomicI32 = AtomicI32::new(0);

/// A program's handler that maps what is missing, as a garbage collector may.
extern "C" fn mend(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives it; the place is a page of the test's.
    unsafe {
        let page = (*info).si_addr().map_addr(|address| address & !(PAGE - 1));
        libc::mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    }
    MENDED.fetch_add(signal, Ordering::Relaxed);
}

fn mended() -> i32 {
    MENDED.swap(0, Ordering::Relaxed)
}

extern "C" fn simple(_: c_int) {
    std::process::exit(WELL);
}

fn address_of_mend() -> usize {
    mend as *const () as usize
}

fn address_of_simple() -> usize {
    simple as *const () as usize
}

#[test]
fn a_handler_installed_before_gets_the_programs_faults() {
    if !is_child() {
        return assert_eq!(child("a_handler_installed_before_gets_the_programs_faults").code(), Some(WELL));
    }
    install(SIGSEGV, address_of_mend(), SA_SIGINFO);
    let pages = a_lent_fault_survived();
    assert_eq!(mended(), 0, "a fault of ours is not shown to the program");
    fault(&pages);
    assert_eq!(mended(), SIGSEGV);
    a_lent_fault_survived();
    eprintln!("{ALL_WELL}");
    std::process::exit(WELL);
}

#[test]
fn a_handler_installed_later_gets_the_programs_faults_and_ours_stays() {
    if !is_child() {
        let status = child("a_handler_installed_later_gets_the_programs_faults_and_ours_stays");
        return assert_eq!(status.code(), Some(WELL));
    }
    a_lent_fault_survived();
    for (signal, flags) in [(SIGSEGV, SA_SIGINFO | SA_ONSTACK), (SIGBUS, SA_SIGINFO)] {
        install(signal, address_of_mend(), flags);
        let given_back = install(signal, address_of_mend(), flags);
        assert_eq!((given_back.sa_sigaction, given_back.sa_flags), (address_of_mend(), flags));
    }
    let pages = a_lent_fault_survived();
    let empty = an_empty_file();
    assert_eq!(empty.lend(0).try_load(0), Err(Unmapped));
    assert_eq!(mended(), 0);
    fault(&pages);
    assert_eq!(mended(), SIGSEGV);

    // SAFETY: the handler is one.
    let before = unsafe { libc::signal(SIGBUS, address_of_simple()) };
    assert_eq!(before, address_of_mend());
    assert_eq!(empty.lend(0).try_load(0), Err(Unmapped));
    eprintln!("{ALL_WELL}");
    fault(&empty);
    unreachable!("the handler exits");
}

#[test]
fn a_handler_for_once_is_called_once() {
    if !is_child() {
        return assert_eq!(child("a_handler_for_once_is_called_once").signal(), Some(SIGSEGV));
    }
    a_lent_fault_survived();
    install(SIGSEGV, address_of_mend(), SA_SIGINFO | SA_RESETHAND);
    let pages = a_lent_fault_survived();
    fault(&pages);
    assert_eq!(mended(), SIGSEGV);
    let pages = a_lent_fault_survived();
    eprintln!("{ALL_WELL}");
    fault(&pages);
}

#[test]
fn a_program_without_a_handler_dies_by_its_own_fault() {
    if !is_child() {
        let status = child("a_program_without_a_handler_dies_by_its_own_fault");
        return assert_eq!(status.signal(), Some(SIGSEGV));
    }
    install(SIGSEGV, SIG_DFL, 0);
    let pages = a_lent_fault_survived();
    eprintln!("{ALL_WELL}");
    fault(&pages);
}

#[test]
fn a_program_that_ignores_it_dies_by_its_own_fault_but_not_by_what_is_sent() {
    if !is_child() {
        let status = child("a_program_that_ignores_it_dies_by_its_own_fault_but_not_by_what_is_sent");
        return assert_eq!(status.signal(), Some(SIGBUS));
    }
    install(SIGSEGV, SIG_IGN, 0);
    install(SIGBUS, SIG_IGN, 0);
    a_lent_fault_survived();
    // SAFETY: it takes only a number.
    unsafe { libc::raise(SIGSEGV) };
    eprintln!("{ALL_WELL}");
    fault(&an_empty_file());
}

#[test]
fn what_is_sent_to_a_program_without_a_handler_ends_it() {
    if !is_child() {
        let status = child("what_is_sent_to_a_program_without_a_handler_ends_it");
        return assert_eq!(status.signal(), Some(SIGSEGV));
    }
    install(SIGSEGV, SIG_DFL, 0);
    a_lent_fault_survived();
    eprintln!("{ALL_WELL}");
    // SAFETY: it takes only a number.
    unsafe { libc::raise(SIGSEGV) };
}

#[test]
fn other_signals_are_the_c_librarys() {
    if !is_child() {
        return assert_eq!(child("other_signals_are_the_c_librarys").code(), Some(WELL));
    }
    a_lent_fault_survived();
    let ignore = action(SIG_IGN, 0);
    // SAFETY: the handler is one; the action is ours.
    unsafe {
        assert_eq!(libc::signal(SIGUSR1, address_of_simple()), SIG_DFL);
        assert_eq!(libc::signal(-1, SIG_DFL), SIG_ERR);
        assert_eq!(libc::sigaction(libc::SIGKILL, &raw const ignore, ptr::null_mut()), -1);
        eprintln!("{ALL_WELL}");
        libc::raise(SIGUSR1);
    }
    unreachable!("the handler exits");
}

#[test]
fn threads_that_block_all_signals_survive_too() {
    if !is_child() {
        return assert_eq!(child("threads_that_block_all_signals_survive_too").code(), Some(WELL));
    }
    for block in [libc::pthread_sigmask, libc::sigprocmask] {
        let thread = thread::spawn(move || {
            let (mut all, mut blocked) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            // SAFETY: the sets are ours.
            let blocked = unsafe {
                libc::sigfillset(all.as_mut_ptr());
                assert_eq!(block(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut()), 0);
                assert_eq!(block(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr()), 0);
                blocked.assume_init()
            };
            // SAFETY: it is a set.
            let is_blocked = |signal| unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
            assert!(is_blocked(SIGUSR1) && !is_blocked(SIGSEGV) && !is_blocked(SIGBUS));
            a_lent_fault_survived();
            assert_eq!(an_empty_file().lend(0).try_load(0), Err(Unmapped));
        });
        thread.join().unwrap();
    }
    eprintln!("{ALL_WELL}");
    std::process::exit(WELL);
}

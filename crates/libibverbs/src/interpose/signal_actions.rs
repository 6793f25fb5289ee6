//! `sigaction` and `signal`: the library's handler of SIGSEGV and SIGBUS stays installed when the
//! program installs its own.
//!
//! For these two signals, the functions store the program's action, and return the stored action
//! when the program queries it. The library's handler carries out the stored action for a fault
//! that the library did not cause. The handler is installed with the flags and the mask of the
//! program's action, so the kernel sets up the stack and the mask and restarts system calls as the
//! program requested. Calls for other signals go to the C library, like all calls before the
//! library's handler is installed.

use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

use libc::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_ERR, SIG_IGN, SIG_SETMASK,
    SIGBUS, SIGSEGV, c_int, c_void, sighandler_t, siginfo_t,
};

use super::NextFunction;
use super::signal_masks::PTHREAD_SIGMASK;

/// A handler that was installed without SA_SIGINFO ignores the last two arguments.
pub(crate) type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

#[derive(Clone, Copy)]
struct ProgramAction {
    handler: sighandler_t,
    flags: c_int,
    /// The blocked signals. The kernel has 64, although the C library's `sigset_t` has 1024 bits.
    mask: u64,
}

/// The program's action for a signal that the library handles.
///
/// A signal handler may read the action while another thread changes it. A change therefore writes
/// the slot that is not in use, and then switches the slots.
struct InterceptedSignal {
    signal: c_int,
    /// Whether the library's handler is installed.
    installed: AtomicBool,
    /// The number of changes. Its lowest bit selects the slot to read.
    version: AtomicUsize,
    slots: [Slot; 2],
    /// The spin lock for changes, true while a thread holds the lock.
    changing: AtomicBool,
}

struct Slot {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static INTERCEPTED: [InterceptedSignal; 2] =
    [InterceptedSignal::new(SIGSEGV), InterceptedSignal::new(SIGBUS)];
/// The address of the library's handler of both signals.
static LIBRARY_HANDLER: AtomicUsize = AtomicUsize::new(SIG_DFL);

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

// SAFETY: `Sigaction` is the type of sigaction(2).
static SIGACTION: NextFunction<Sigaction> = unsafe { NextFunction::new(c"sigaction") };
// SAFETY: `Signal` is the type of signal(2).
static SIGNAL: NextFunction<Signal> = unsafe { NextFunction::new(c"signal") };

/// # Safety
/// The rules of sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(intercepted) = intercepted(signal) else {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        return unsafe { next_sigaction(signal, new, old) };
    };
    // The read may fault, so it comes before the change, which a fault must not interrupt.
    // SAFETY: the caller passes null or a valid action.
    let new = unsafe { new.as_ref() }.copied();
    let mut before = MaybeUninit::zeroed();
    let result = intercepted.change(|| {
        if !intercepted.installed.load(Ordering::Relaxed) {
            let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: `new` is null or a local copy, and `before` is a local variable.
            return unsafe { next_sigaction(signal, new, before.as_mut_ptr()) };
        }
        before.write(intercepted.program_action().to_c());
        new.map_or(0, |new| intercepted.set(ProgramAction::from_c(&new)))
    });
    if result == 0 && !old.is_null() {
        // SAFETY: zeros are a valid action, and so is the action that replaced them. The caller
        // passes a valid `old`.
        unsafe { old.write(before.assume_init()) };
    }
    result
}

/// Has the BSD meaning that the C library gives signal(2).
///
/// # Safety
/// The rules of signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if intercepted(signal).is_none() || handler == SIG_ERR {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        return SIGNAL.get().map_or(SIG_ERR, |next| unsafe { next(signal, handler) });
    }
    let new = ProgramAction { handler, flags: SA_RESTART, mask: 1 << (signal - 1) }.to_c();
    let mut old = MaybeUninit::zeroed();
    // SAFETY: both actions are local variables. The caller passes a valid handler.
    match unsafe { sigaction(signal, &raw const new, old.as_mut_ptr()) } {
        // SAFETY: zeros are a valid action, and `sigaction` has overwritten them.
        0 => unsafe { old.assume_init() }.sa_sigaction,
        _ => SIG_ERR,
    }
}

/// Installs the library's handler for both signals if it is not installed yet, and stores the
/// program's actions.
///
/// # Panics
/// If the C library has no `sigaction` or the call fails.
pub(crate) fn install_library_handler(handler: Handler) {
    LIBRARY_HANDLER.store(handler as usize, Ordering::Release);
    for intercepted in &INTERCEPTED {
        let result = intercepted.change(|| {
            if intercepted.installed.load(Ordering::Relaxed) {
                return 0;
            }
            let mut action = MaybeUninit::zeroed();
            // SAFETY: a null action changes nothing. `action` is a local variable, and zeros are a
            // valid action.
            let (result, action) = unsafe {
                let result = next_sigaction(intercepted.signal, ptr::null(), action.as_mut_ptr());
                (result, action.assume_init())
            };
            if result != 0 {
                return result;
            }
            intercepted.installed.store(true, Ordering::Relaxed);
            intercepted.set(ProgramAction::from_c(&action))
        });
        assert_eq!(result, 0, "the C library has no sigaction, or it refuses signal {}", intercepted.signal);
    }
}

/// Carries out the program's action for a signal that the library's handler received.
///
/// # Safety
/// The caller is the library's handler, and passes the arguments of the kernel.
pub(crate) unsafe fn forward_to_program(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(intercepted) = intercepted(signal) else { return };
    let action = intercepted.program_action();
    // A code of 0 or less means that a process sent the signal (sigaction(2)).
    // SAFETY: `info` comes from the kernel (`# Safety` above).
    let sent = unsafe { (*info).si_code } <= 0;
    match action.handler {
        // For SIG_IGN the kernel ignores a signal that a process sent, but not a fault (signal(7)).
        SIG_IGN if sent => {}
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        SIG_DFL | SIG_IGN => unsafe { intercepted.kill_process(info) },
        handler => {
            if action.flags & SA_RESETHAND != 0 {
                intercepted.change(|| intercepted.set(ProgramAction { handler: SIG_DFL, ..action }));
            }
            // SAFETY: the program installed it as a handler of this signal.
            let handler: Handler = unsafe { transmute(handler) };
            // SAFETY: the arguments come from the kernel, and the library's handler was installed
            // with the flags and the mask of the program's action.
            unsafe { handler(signal, info, context) };
        }
    }
}

impl InterceptedSignal {
    const fn new(signal: c_int) -> InterceptedSignal {
        InterceptedSignal {
            signal,
            installed: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            slots: [Slot::new(), Slot::new()],
            changing: AtomicBool::new(false),
        }
    }

    fn program_action(&self) -> ProgramAction {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let slot = &self.slots[version % 2];
            let action = ProgramAction {
                handler: slot.handler.load(Ordering::Relaxed),
                flags: slot.flags.load(Ordering::Relaxed),
                mask: slot.mask.load(Ordering::Relaxed),
            };
            // If a later change wrote the slot during the reads, the next load sees its version.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return action;
            }
        }
    }

    /// Stores the program's action and installs the library's handler with the action's flags and
    /// mask. Only the closures of [`InterceptedSignal::change`] may call this method.
    fn set(&self, action: ProgramAction) -> c_int {
        let version = self.version.load(Ordering::Relaxed);
        let slot = &self.slots[(version + 1) % 2];
        fence(Ordering::Release);
        slot.handler.store(action.handler, Ordering::Relaxed);
        slot.flags.store(action.flags, Ordering::Relaxed);
        slot.mask.store(action.mask, Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);

        let handler = LIBRARY_HANDLER.load(Ordering::Acquire);
        let installed = match action.handler {
            SIG_DFL | SIG_IGN => {
                ProgramAction { handler, flags: SA_SIGINFO | SA_ONSTACK | SA_RESTART, mask: 0 }
            }
            _ => ProgramAction {
                handler,
                flags: SA_SIGINFO | action.flags & (SA_ONSTACK | SA_RESTART | SA_NODEFER),
                mask: action.mask,
            },
        };
        // SAFETY: the action is a local variable, and its handler is the library's.
        unsafe { next_sigaction(self.signal, ptr::from_ref(&installed.to_c()), ptr::null_mut()) }
    }

    /// Runs `change` under the spin lock. Signals are blocked, because a signal handler of this
    /// thread could otherwise wait for the lock forever.
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let mut mask = MaybeUninit::zeroed();
        let block = |set, old| {
            // SAFETY: each set is null or a local variable.
            PTHREAD_SIGMASK.get().map(|next| unsafe { next(SIG_SETMASK, set, old) })
        };
        let mut all = MaybeUninit::uninit();
        // SAFETY: the set is a local variable.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        block(all.as_ptr(), mask.as_mut_ptr());
        while self.changing.swap(true, Ordering::Acquire) {
            // SAFETY: `sched_yield` has no preconditions.
            unsafe { libc::sched_yield() };
        }
        let result = change();
        self.changing.store(false, Ordering::Release);
        block(mask.as_ptr(), ptr::null_mut());
        result
    }

    /// Restores the default action, which kills the process when the library's handler returns.
    ///
    /// # Safety
    /// The requirements of [`forward_to_program`].
    unsafe fn kill_process(&self, info: *mut siginfo_t) {
        let default = ProgramAction { handler: SIG_DFL, flags: 0, mask: 0 };
        // SAFETY: the action is a local variable, and `info` comes from the kernel.
        unsafe {
            next_sigaction(self.signal, ptr::from_ref(&default.to_c()), ptr::null_mut());
            // A fault recurs when the handler returns. A signal that a process sent does not, so it
            // is queued again.
            libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                libc::getpid(),
                libc::syscall(libc::SYS_gettid),
                self.signal,
                info,
            );
        }
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
    }
}

impl ProgramAction {
    fn from_c(action: &libc::sigaction) -> ProgramAction {
        ProgramAction {
            handler: action.sa_sigaction,
            flags: action.sa_flags,
            // SAFETY: `sigset_t` begins with the 64 bits of the kernel's signals.
            mask: unsafe { (&raw const action.sa_mask).cast::<u64>().read() },
        }
    }

    fn to_c(self) -> libc::sigaction {
        // SAFETY: zeros are a valid action.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        // SAFETY: as in `from_c`.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(self.mask) };
        action
    }
}

fn intercepted(signal: c_int) -> Option<&'static InterceptedSignal> {
    INTERCEPTED.iter().find(|intercepted| intercepted.signal == signal)
}

/// # Safety
/// The rules of sigaction(2).
unsafe fn next_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    SIGACTION.get().map_or(-1, |next| unsafe { next(signal, new, old) })
}

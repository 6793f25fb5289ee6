//! `sigaction` and `signal`: programs install handlers of SIGSEGV and SIGBUS as they like, and ours stays in front.
//!
//! What the program asked for is remembered, given back when it asks, and done when a fault is its own. Ours is
//! installed with the program's flags and mask, so that the kernel prepares for the program's handler what it
//! asked for: stack, mask, restart. All other signals, and these until ours comes, go straight to the C library.

use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

use libc::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_ERR, SIG_IGN, SIG_SETMASK,
    SIGBUS, SIGSEGV, c_int, c_void, sighandler_t, siginfo_t,
};

use super::Next;
use super::masks::PTHREAD_SIGMASK;

/// A handler of three arguments; one that was installed without SA_SIGINFO ignores the last two.
pub(crate) type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// What the program asked for.
#[derive(Clone, Copy)]
struct Asked {
    handler: sighandler_t,
    flags: c_int,
    /// The kernel's 64 signals, of the C library's room for 1024.
    mask: u64,
}

/// A signal that we stand in front of.
///
/// Handlers read what the program asked for at any moment, also in the middle of a change: there are two slots, and a
/// change writes the one that is not read.
struct Front {
    signal: c_int,
    /// Whether ours is installed.
    standing: AtomicBool,
    /// Counts changes; its lowest bit names the slot to read.
    version: AtomicUsize,
    slots: [Slot; 2],
    /// Somebody makes a change.
    changing: AtomicBool,
}

struct Slot {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static FRONTS: [Front; 2] = [Front::new(SIGSEGV), Front::new(SIGBUS)];
/// Our handler, of both.
static OURS: AtomicUsize = AtomicUsize::new(SIG_DFL);

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

// SAFETY: sigaction(2) has this type.
static SIGACTION: Next<Sigaction> = unsafe { Next::new(c"sigaction") };
// SAFETY: signal(2) has this type.
static SIGNAL: Next<Signal> = unsafe { Next::new(c"signal") };

/// `sigaction(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(front) = front(signal) else {
        // SAFETY: passed on as it came.
        return unsafe { next_sigaction(signal, new, old) };
    };
    // The program's pointers are followed here, where a fault finds nothing half done.
    // SAFETY: it is null or an action, by the contract of `sigaction`.
    let new = unsafe { new.as_ref() }.copied();
    let mut before = MaybeUninit::zeroed();
    let result = front.change(|| {
        if !front.standing.load(Ordering::Relaxed) {
            let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: both are ours.
            return unsafe { next_sigaction(signal, new, before.as_mut_ptr()) };
        }
        before.write(front.asked().to_c());
        new.map_or(0, |new| front.set(Asked::from_c(&new)))
    });
    if result == 0 && !old.is_null() {
        // SAFETY: zeroes are an action, and so is what was written over them; `old` is to be written, by the contract.
        unsafe { old.write(before.assume_init()) };
    }
    result
}

/// `signal(2)`, with the BSD meaning that the C library gives it.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if front(signal).is_none() || handler == SIG_ERR {
        // SAFETY: passed on as it came.
        return SIGNAL.get().map_or(SIG_ERR, |next| unsafe { next(signal, handler) });
    }
    let new = Asked { handler, flags: SA_RESTART, mask: 1 << (signal - 1) }.to_c();
    let mut old = MaybeUninit::zeroed();
    // SAFETY: both are ours; the handler is the program's word.
    match unsafe { sigaction(signal, &raw const new, old.as_mut_ptr()) } {
        // SAFETY: success wrote it.
        0 => unsafe { old.assume_init() }.sa_sigaction,
        _ => SIG_ERR,
    }
}

/// Installs our handler in front of the program's.
pub(crate) fn stand_in_front(ours: Handler) {
    OURS.store(ours as usize, Ordering::Release);
    for front in &FRONTS {
        let result = front.change(|| {
            let mut asked = MaybeUninit::zeroed();
            // SAFETY: it is ours to write; zeroes are an action.
            let (result, asked) = unsafe {
                let result = next_sigaction(front.signal, ptr::null(), asked.as_mut_ptr());
                (result, asked.assume_init())
            };
            if result != 0 {
                return result;
            }
            front.standing.store(true, Ordering::Relaxed);
            front.set(Asked::from_c(&asked))
        });
        assert_eq!(result, 0, "the C library has no sigaction, or it refuses signal {}", front.signal);
    }
}

/// Does what the program asked for.
///
/// # Safety
/// From our handler, with what the kernel gave it.
pub(crate) unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(front) = front(signal) else { return };
    let asked = front.asked();
    // SAFETY: the kernel gives it.
    let sent = unsafe { (*info).si_code } <= 0;
    match asked.handler {
        // The kernel ignores what was sent, never a fault (signal(7)).
        SIG_IGN if sent => {}
        // SAFETY: the kernel gave it.
        SIG_DFL | SIG_IGN => unsafe { front.die(info) },
        handler => {
            if asked.flags & SA_RESETHAND != 0 {
                front.change(|| front.set(Asked { handler: SIG_DFL, ..asked }));
            }
            // SAFETY: the program installed it as a handler of this signal.
            let handler: Handler = unsafe { transmute(handler) };
            // SAFETY: what the kernel gave, and as it would.
            unsafe { handler(signal, info, context) };
        }
    }
}

impl Front {
    const fn new(signal: c_int) -> Front {
        Front {
            signal,
            standing: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            slots: [Slot::new(), Slot::new()],
            changing: AtomicBool::new(false),
        }
    }

    fn asked(&self) -> Asked {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let slot = &self.slots[version % 2];
            let asked = Asked {
                handler: slot.handler.load(Ordering::Relaxed),
                flags: slot.flags.load(Ordering::Relaxed),
                mask: slot.mask.load(Ordering::Relaxed),
            };
            // Were a later change in what was read, its version would be seen now.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return asked;
            }
        }
    }

    /// Remembers what the program asks for, and has the kernel prepare it. Only within [`Front::change`].
    fn set(&self, asked: Asked) -> c_int {
        let version = self.version.load(Ordering::Relaxed);
        let slot = &self.slots[(version + 1) % 2];
        fence(Ordering::Release);
        slot.handler.store(asked.handler, Ordering::Relaxed);
        slot.flags.store(asked.flags, Ordering::Relaxed);
        slot.mask.store(asked.mask, Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);

        let handler = OURS.load(Ordering::Acquire);
        let prepared = match asked.handler {
            SIG_DFL | SIG_IGN => Asked { handler, flags: SA_SIGINFO | SA_ONSTACK | SA_RESTART, mask: 0 },
            _ => Asked {
                handler,
                flags: SA_SIGINFO | asked.flags & (SA_ONSTACK | SA_RESTART | SA_NODEFER),
                mask: asked.mask,
            },
        };
        // SAFETY: it is ours, and our handler a handler.
        unsafe { next_sigaction(self.signal, ptr::from_ref(&prepared.to_c()), ptr::null_mut()) }
    }

    /// One change at a time. No signal comes in between: its handler could wait for this thread.
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let mut mask = MaybeUninit::zeroed();
        let block = |set, old| {
            // SAFETY: both sets are ours, or null.
            PTHREAD_SIGMASK.get().map(|next| unsafe { next(SIG_SETMASK, set, old) })
        };
        let mut all = MaybeUninit::uninit();
        // SAFETY: the set is ours.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        block(all.as_ptr(), mask.as_mut_ptr());
        while self.changing.swap(true, Ordering::Acquire) {
            // SAFETY: it takes nothing.
            unsafe { libc::sched_yield() };
        }
        let result = change();
        self.changing.store(false, Ordering::Release);
        block(mask.as_ptr(), ptr::null_mut());
        result
    }

    /// The default action: the process ends by this very signal, as soon as our handler returns.
    ///
    /// # Safety
    /// From our handler, with what the kernel gave it.
    unsafe fn die(&self, info: *mut siginfo_t) {
        let default = Asked { handler: SIG_DFL, flags: 0, mask: 0 };
        // SAFETY: the action is ours, the information the kernel's.
        unsafe {
            next_sigaction(self.signal, ptr::from_ref(&default.to_c()), ptr::null_mut());
            // A fault would come again by itself, but what was sent would not.
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

impl Asked {
    fn from_c(action: &libc::sigaction) -> Asked {
        Asked {
            handler: action.sa_sigaction,
            flags: action.sa_flags,
            // SAFETY: the set begins with the kernel's 64 signals, signal 1 lowest.
            mask: unsafe { (&raw const action.sa_mask).cast::<u64>().read() },
        }
    }

    fn to_c(self) -> libc::sigaction {
        // SAFETY: zeroes are an action.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        // SAFETY: as in `from_c`.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(self.mask) };
        action
    }
}

fn front(signal: c_int) -> Option<&'static Front> {
    FRONTS.iter().find(|front| front.signal == signal)
}

/// # Safety
/// As `sigaction(2)`.
unsafe fn next_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's word.
    SIGACTION.get().map_or(-1, |next| unsafe { next(signal, new, old) })
}

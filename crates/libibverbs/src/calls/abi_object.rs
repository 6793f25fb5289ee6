//! The memory layout of objects to which programs hold pointers, and the check that such an object
//! exists.
//!
//! Each object is in a [`Slot`], which begins with the object's C structure. Slots are never
//! returned to the allocator, and a slot only ever holds objects of one type. The state of a slot
//! can therefore be read through any pointer that the library has returned, even after the object
//! was destroyed. [`AbiObject::find`] reads the state, and refuses an object
//! - that was destroyed, until its slot holds another object ([`MIN_FREE`] delays this),
//! - whose `handle` or `context` the program has changed: the kernel, too, looks up an object by
//!   its handle in its context,
//! - that belongs to the parent process of a forked child. The locks of such an object may be in
//!   any state, so not even its memory is freed.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use mitra_os_util::fork_generation;
use mitra_verbs::{Error, Result};
use nix::errno::Errno;

use crate::common::lock::lock;
use crate::common::per_process::PerProcess;
use mitra_verbs_abi::ibv_context;

/// The C structure at the beginning of an object. Programs may read and write it, so the library
/// holds no reference to it while C code can run, and accesses it through its address.
#[repr(transparent)]
pub(crate) struct AbiHeader<F>(UnsafeCell<F>);

// SAFETY: `AbiHeader` gives access only to the address of its content. Code that reads or writes
// through the address is `unsafe`, and must exclude data races.
unsafe impl<F> Send for AbiHeader<F> {}
// SAFETY: as for `Send`.
unsafe impl<F> Sync for AbiHeader<F> {}

impl<F> AbiHeader<F> {
    pub(crate) fn new(contents: F) -> AbiHeader<F> {
        AbiHeader(UnsafeCell::new(contents))
    }

    pub(crate) fn get(&self) -> *mut F {
        self.0.get()
    }
}

/// The value of [`Slot::owner`] if the slot holds no object.
const NO_OWNER: u32 = 0;

/// A freed slot is used again only after this number of other slots of its type was freed.
const MIN_FREE: usize = 64;

/// Memory for one object at a time.
#[repr(C)]
pub(crate) struct Slot<T> {
    /// The object, or the bytes of the object that was destroyed last. Programs read the C
    /// structure of a destroyed object.
    object: UnsafeCell<mem::MaybeUninit<T>>,
    /// The owner's number in [`fork_generation`], or [`NO_OWNER`].
    owner: AtomicU32,
    /// The handle that the C structure had when the object was created.
    handle: AtomicU32,
    /// The context that the C structure had when the object was created.
    context: AtomicPtr<ibv_context>,
    /// Whether a thread of the owner is in [`AbiObject::destroy`].
    ending: AtomicBool,
    /// The number of objects that were destroyed in this slot.
    destroyed: AtomicU64,
}

struct FreeSlot<T>(NonNull<Slot<T>>);

// SAFETY: the slot contains only bytes that are not read, and atomics.
unsafe impl<T> Send for FreeSlot<T> {}

/// The free slots of one type in one process, in the order in which they were freed.
struct FreeSlots<T>(Mutex<VecDeque<FreeSlot<T>>>);

impl<T> Default for FreeSlots<T> {
    fn default() -> FreeSlots<T> {
        FreeSlots(Mutex::default())
    }
}

/// The slots of one type. A forked child leaves the free slots of its parent alone.
pub(crate) struct Slots<T>(PerProcess<FreeSlots<T>>);

impl<T: 'static> Slots<T> {
    pub(crate) const fn new() -> Slots<T> {
        Slots(PerProcess::new())
    }

    fn take(&'static self) -> NonNull<Slot<T>> {
        let mut free = lock(&self.0.get().0);
        let oldest = if free.len() > MIN_FREE { free.pop_front() } else { None };
        oldest.map(|slot| slot.0).unwrap_or_else(|| {
            NonNull::from(Box::leak(Box::new(Slot {
                object: UnsafeCell::new(mem::MaybeUninit::zeroed()),
                owner: AtomicU32::new(NO_OWNER),
                handle: AtomicU32::new(0),
                context: AtomicPtr::new(ptr::null_mut()),
                ending: AtomicBool::new(false),
                destroyed: AtomicU64::new(0),
            })))
        })
    }
}

/// An object that begins with its C structure. [`abi_object`] implements the trait.
///
/// # Safety
/// The implementor is `repr(C)`, and its first field is an `AbiHeader` of a structure that begins
/// with `Self::C`. All slots of the type are in [`AbiObject::slots`].
pub(crate) unsafe trait AbiObject: Sized + 'static {
    type C;
    /// The name of the objects in error messages.
    const KIND: &'static str;

    fn slots() -> &'static Slots<Self>;

    /// Returns the `handle` and the `context` of a C structure, or 0 and null if the structure has
    /// no handle.
    ///
    /// # Safety
    /// `c` is valid for reading.
    unsafe fn identity(c: *const Self::C) -> (u32, *mut ibv_context);

    /// Moves the object to a slot, and returns the address for the program. [`AbiObject::destroy`]
    /// ends the object.
    fn into_raw(self) -> *mut Self::C {
        let slot = Self::slots().take();
        let c: *mut Self::C = slot.as_ptr().cast();
        // SAFETY: slots are never freed. Nothing else accesses the object of this slot, because the
        // slot was free. `c` is the address of the C structure at the beginning of the object that
        // is written here.
        unsafe {
            (*slot.as_ref().object.get()).write(self);
            let (handle, context) = Self::identity(c);
            slot.as_ref().handle.store(handle, Ordering::Relaxed);
            slot.as_ref().context.store(context, Ordering::Relaxed);
            slot.as_ref().owner.store(fork_generation::current(), Ordering::Release);
        }
        c
    }

    /// Returns the object that a program's pointer refers to.
    ///
    /// # Errors
    /// `Invalid` if the pointer is null, `NoSuchObject` if the object was destroyed or has another
    /// handle or context, or `System` if it belongs to the parent process.
    ///
    /// # Safety
    /// `c` is null or came from [`AbiObject::into_raw`]. The object is not passed to
    /// [`AbiObject::destroy`] while the reference lives.
    unsafe fn find<'a>(c: *mut Self::C) -> Result<&'a Self> {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        let (slot, is_own) = unsafe { look_up::<Self>(c)? };
        if !is_own {
            let message = "it belongs to the parent process; open the device again after a fork".to_owned();
            return Err(Error::System { operation: Self::KIND, message, errno: None });
        }
        // SAFETY: `look_up` finds only slots that hold an object, and the caller does not destroy
        // the object while the reference lives.
        Ok(unsafe { (*slot.as_ref().object.get()).assume_init_ref() })
    }

    /// Like [`AbiObject::find`], but also finds an object of the parent process.
    ///
    /// # Errors
    /// `Invalid` if the pointer is null, or `NoSuchObject` if the object was destroyed or has
    /// another handle.
    ///
    /// # Safety
    /// The requirements of [`AbiObject::find`].
    unsafe fn find_or_inherited<'a>(c: *mut Self::C) -> Result<&'a Self> {
        // SAFETY: the caller upholds the same requirement (`# Safety` above). `look_up` finds only
        // slots that hold an object.
        unsafe { Ok((*look_up::<Self>(c)?.0.as_ref().object.get()).assume_init_ref()) }
    }

    /// Returns the object like [`AbiObject::find`], but without a check.
    ///
    /// # Safety
    /// `c` came from [`AbiObject::into_raw`], and the object is not passed to
    /// [`AbiObject::destroy`] before the reference ends.
    unsafe fn borrow_raw<'a>(c: *mut Self::C) -> &'a Self {
        // SAFETY: `c` is the address of the object at the beginning of a slot, and the object was
        // not destroyed.
        unsafe { &*c.cast::<Self>() }
    }

    /// Ends the use of an object by `end`, and destroys the object if `end` succeeds. For an object
    /// of the parent process, only marks the slot as empty, because the child has no part of the
    /// parent's device. If several threads destroy the same object, only one of them succeeds.
    ///
    /// # Errors
    /// `Invalid` if the pointer is null, `NoSuchObject` if the object was destroyed or has another
    /// handle or context, `Busy` if another thread is destroying it, or the error of `end`, after
    /// which the object exists as before.
    ///
    /// # Safety
    /// `c` is null or came from [`AbiObject::into_raw`]. Apart from the reference that `end` gets,
    /// no reference to the object lives.
    unsafe fn destroy(c: *mut Self::C, end: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        let (slot, is_own) = unsafe { look_up::<Self>(c)? };
        // SAFETY: slots are never freed.
        let Slot { object, owner, ending, handle, destroyed, .. } = unsafe { slot.as_ref() };
        if !is_own {
            owner.store(NO_OWNER, Ordering::Release);
            return Ok(());
        }
        if ending.swap(true, Ordering::AcqRel) {
            let id = handle.load(Ordering::Relaxed);
            return Err(Error::Busy { kind: Self::KIND, id, user: "another thread that destroys it" });
        }
        // Another thread may have destroyed the object since it was looked up.
        // SAFETY: the caller upholds the same requirement (`# Safety` above). The slot holds an
        // object.
        let ended = unsafe { look_up::<Self>(c).and_then(|_| end((*object.get()).assume_init_ref())) };
        if ended.is_ok() {
            owner.store(NO_OWNER, Ordering::Release);
            destroyed.fetch_add(1, Ordering::Release);
            // SAFETY: only this function drops objects, and `ending` excludes other threads. The
            // slot held an object until it was marked above. No reference to the object lives.
            unsafe { (*object.get()).assume_init_drop() };
        }
        ending.store(false, Ordering::Release);
        if ended.is_ok() {
            lock(&Self::slots().0.get().0).push_back(FreeSlot(slot));
        }
        ended
    }
}

/// An object at which a thread waits for an event. Another thread may destroy the object meanwhile,
/// and the slot may then hold another object.
#[derive(Debug)]
pub(crate) struct AwaitedObject<T: AbiObject> {
    c: *mut T::C,
    /// The number of objects of the slot that were destroyed before this one was created.
    destroyed: u64,
}

impl<T: AbiObject> AwaitedObject<T> {
    /// # Errors
    /// The errors of [`AbiObject::find`].
    ///
    /// # Safety
    /// The requirements of [`AbiObject::find`].
    pub(crate) unsafe fn new(c: *mut T::C) -> Result<AwaitedObject<T>> {
        // SAFETY: the caller upholds the same requirements (`# Safety` above).
        unsafe {
            T::find(c)?;
            Ok(AwaitedObject { c, destroyed: Self::destroyed(c) })
        }
    }

    /// # Errors
    /// `EBADF` if the object was destroyed, like a read(2) that is restarted after its descriptor
    /// was closed.
    ///
    /// # Safety
    /// The object is not passed to [`AbiObject::destroy`] while the reference lives.
    pub(crate) unsafe fn find<'a>(&self) -> Result<&'a T, Errno> {
        // SAFETY: `new` has found an object at `c`. The caller upholds the other requirement
        // (`# Safety` above).
        let (found, destroyed) = unsafe { (T::find(self.c), Self::destroyed(self.c)) };
        found.ok().filter(|_| destroyed == self.destroyed).ok_or(Errno::EBADF)
    }

    /// # Safety
    /// `c` came from [`AbiObject::into_raw`].
    unsafe fn destroyed(c: *mut T::C) -> u64 {
        // SAFETY: `c` is the address of a slot (`# Safety` above), which is never freed.
        unsafe { (*c.cast::<Slot<T>>()).destroyed.load(Ordering::Acquire) }
    }
}

/// Returns the slot of an object, and whether the object belongs to this process.
///
/// # Errors
/// `Invalid` if the pointer is null, or `NoSuchObject` if the object was destroyed or has another
/// handle or context.
///
/// # Safety
/// `c` is null or came from [`AbiObject::into_raw`].
unsafe fn look_up<T: AbiObject>(c: *mut T::C) -> Result<(NonNull<Slot<T>>, bool)> {
    let slot: NonNull<Slot<T>> = NonNull::new(c)
        .ok_or(Error::Invalid("the pointer to an object is null; pass the object that a verb has returned"))?
        .cast();
    // SAFETY: `c` came from `into_raw`, so it is the address of a slot, which is never freed, and
    // of the C structure of an object that exists or was destroyed.
    let (Slot { owner, handle: own_handle, context: own_context, .. }, (handle, context)) =
        unsafe { (slot.as_ref(), T::identity(c)) };
    let owner = owner.load(Ordering::Acquire);
    let own = || (own_handle.load(Ordering::Relaxed), own_context.load(Ordering::Relaxed));
    if owner == NO_OWNER || (handle, context) != own() {
        return Err(Error::NoSuchObject { kind: T::KIND, id: handle });
    }
    Ok((slot, owner == fork_generation::current()))
}

/// Implements [`AbiObject`] for a `repr(C)` type whose first field `header` is an [`AbiHeader`]:
/// `abi_object!(Type: c_structure, "kind", handle, context)`. The last arguments are the fields
/// with the handle and the context, and are left out if there is no handle.
macro_rules! abi_object {
    ($type:ident: $c:ident, $kind:literal) => {
        abi_object!(@implement $type, $c, $kind, |_| (0, std::ptr::null_mut()));
    };
    ($type:ident: $c:ident, $kind:literal, $($handle:ident).+, $($context:ident).+) => {
        // SAFETY: the caller of `AbiObject::identity` guarantees that the structure is valid for
        // reading.
        abi_object!(@implement $type, $c, $kind, |c: *const $c| unsafe { ((*c).$($handle).+, (*c).$($context).+) });
    };
    (@implement $type:ident, $c:ident, $kind:literal, $identity:expr) => {
        const _: () = assert!(std::mem::offset_of!($type, header) == 0);
        // SAFETY: the type is `repr(C)`, its first field is an `AbiHeader` of a structure that
        // begins with `$c`, and all its slots are taken from the static.
        unsafe impl $crate::calls::abi_object::AbiObject for $type {
            type C = $c;
            const KIND: &'static str = $kind;

            fn slots() -> &'static $crate::calls::abi_object::Slots<$type> {
                static SLOTS: $crate::calls::abi_object::Slots<$type> =
                    $crate::calls::abi_object::Slots::new();
                &SLOTS
            }

            unsafe fn identity(c: *const $c) -> (u32, *mut mitra_verbs_abi::ibv_context) {
                let read: fn(*const $c) -> (u32, *mut mitra_verbs_abi::ibv_context) = $identity;
                read(c)
            }
        }
    };
}
pub(crate) use abi_object;

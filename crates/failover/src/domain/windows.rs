//! The memory windows of a domain, and the table of their bindings.
//!
//! Queue pairs execute binds and invalidations (`vqp::window_sync`), and this table records them.
//! The domain uses the table to refuse the deregistration of a region with a bound window. A queue
//! pair that replaces another one gets the bindings of its vQP from the table.

use mitra_verbs::{Error, Key, MrId, Mw, Result, SendOp, WindowBind, WindowType};

use super::{Domain, LocalNic, lock};
use crate::memory_window::VirtualMw;

/// A handle that no NIC assigns, so a NIC refuses a bind that names it.
const NO_HANDLE: u32 = u32::MAX;

/// The vQP on whose queue pairs a type 2 window is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowOwner(pub(super) u64);

#[derive(Debug)]
pub(super) struct Window {
    mw: VirtualMw,
    binding: Option<Binding>,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    /// With the handles of the primary window and region.
    bind: WindowBind,
    /// `None` for a type 1 window, which every queue pair of the protection domain may use.
    owner: Option<WindowOwner>,
}

impl Domain {
    /// Allocates a window on every live NIC.
    ///
    /// # Errors
    /// The error of the first live NIC that refuses; [`Error::DeviceFatal`] if every NIC is dead;
    /// [`Error::Unsupported`] if a NIC has no windows.
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<VirtualMw> {
        self.check_windows()?;
        let free = |nic: &LocalNic, mw: Mw| nic.provider.dealloc_mw(mw.id);
        let rails = self.on_live_nics(|nic| nic.provider.alloc_mw(nic.pd, window_type), free)?;
        let rail_0_is_dead = rails[0].is_none();
        let mw = VirtualMw::new(window_type, rails).ok_or(Error::DeviceFatal)?;
        let mut windows = lock(&self.windows);
        let primary = mw.primary();
        let is_taken = |w: &Window| w.mw.primary().id == primary.id || w.mw.has_key(primary.rkey);
        if rail_0_is_dead && windows.iter().any(is_taken) {
            // The NIC of rail 0 assigned this key to another window before it died. A new
            // allocation gets another key.
            drop(windows);
            self.undo(mw.allocations(), free);
            return self.alloc_mw(window_type);
        }
        windows.push(Window { mw: mw.clone(), binding: None });
        Ok(mw)
    }

    /// Unbinds and removes a window on every NIC. After `Ok`, no NIC grants access by its keys. A
    /// NIC that counts as dead is reset, because it may be merely hung and still grant access.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`] if the window is not of this domain; otherwise the error of the
    /// first NIC that does not confirm the removal.
    pub fn dealloc_mw(&self, mw: &VirtualMw) -> Result<()> {
        let id = mw.primary().id;
        {
            let mut windows = lock(&self.windows);
            let found = windows.iter().position(|w| w.mw.primary().id == id);
            let at = found.ok_or(Error::NoSuchObject { kind: "memory window", id: id.0 })?;
            windows.swap_remove(at);
        }
        let mut first = Ok(());
        for (nic, mw) in self.nics.iter().zip(mw.allocations()) {
            let Some(mw) = mw else { continue };
            let removed = match nic.provider.dealloc_mw(mw.id) {
                Err(Error::DeviceFatal) => nic.provider.reset(),
                other => other,
            };
            first = first.and(removed);
        }
        first
    }

    /// The description of a window's key for the peer ([`VirtualMw::remote`]).
    pub fn window_with_key(&self, rkey: Key) -> Option<crate::RemoteRegion> {
        lock(&self.windows).iter().find(|w| w.mw.has_key(rkey)).map(|w| w.mw.remote(rkey))
    }

    fn check_windows(&self) -> Result<()> {
        match self.nics.iter().all(|nic| nic.provider.attr().capabilities.windows) {
            true => Ok(()),
            false => Err(Error::Unsupported("memory windows on every rail")),
        }
    }

    pub(crate) fn check_window_op(&self, op: &SendOp) -> Result<()> {
        self.check_windows()?;
        if let SendOp::BindWindow(bind) = op {
            let memory = lock(&self.memory);
            let region = memory.iter().find(|r| r.mr.primary().id == bind.mr);
            let is_moved = |r: &super::Registered| {
                r.mr.registrations().iter().flatten().any(|mr| mr.addr != r.mr.primary().addr)
            };
            if bind.len > 0 && region.is_some_and(is_moved) {
                return Err(Error::Unsupported("a window on a region whose addresses differ between rails"));
            }
        }
        Ok(())
    }

    /// `None` if the window is not of this domain.
    pub(crate) fn window_type(&self, bind: &WindowBind) -> Option<WindowType> {
        let windows = lock(&self.windows);
        windows.iter().find(|w| w.mw.primary().id == bind.mw).map(|w| w.mw.window_type())
    }

    /// Translates a bind or a local invalidation to `rail`. `None` if the window or the region is
    /// not of this domain, or not on this rail.
    pub(crate) fn window_op_on(&self, op: &SendOp, rail: usize) -> Option<SendOp> {
        match *op {
            SendOp::BindWindow(bind) => {
                let mw = {
                    let windows = lock(&self.windows);
                    windows.iter().find(|w| w.mw.primary().id == bind.mw)?.mw.id_on(rail)?
                };
                // A bind of no bytes names no region.
                let mr = if bind.len == 0 { bind.mr } else { self.region_on(bind.mr, rail)? };
                Some(SendOp::BindWindow(WindowBind { mw, mr, ..bind }))
            }
            SendOp::LocalInvalidate(key) => {
                let windows = lock(&self.windows);
                let key = windows.iter().find(|w| w.mw.has_key(key))?.mw.key_on(rail, key)?;
                Some(SendOp::LocalInvalidate(key))
            }
            _ => None,
        }
    }

    fn region_on(&self, mr: MrId, rail: usize) -> Option<MrId> {
        let memory = lock(&self.memory);
        let region = memory.iter().find(|r| r.mr.primary().id == mr)?;
        region.mr.registrations()[rail].map(|mr| mr.id)
    }

    /// Translates an operation as [`Domain::window_op_on`] does. An operation without a translation
    /// becomes an operation that the NIC refuses, as it would refuse the original on an ordinary
    /// queue pair.
    pub(crate) fn translate_window_op(&self, op: &SendOp, rail: usize) -> SendOp {
        self.window_op_on(op, rail).unwrap_or_else(|| match *op {
            SendOp::BindWindow(bind) => {
                let (mw, mr) = (mitra_verbs::MwId(NO_HANDLE), MrId(NO_HANDLE));
                SendOp::BindWindow(WindowBind { mw, mr, ..bind })
            }
            SendOp::LocalInvalidate(key) => {
                let windows = lock(&self.windows);
                let is_used = |key| windows.iter().any(|w| w.mw.key_from(rail, key).is_some());
                let unused = (0..1 << 24).map(|i| Key(key.0.wrapping_add(i << 8))).find(|key| !is_used(*key));
                SendOp::LocalInvalidate(unused.unwrap_or(key))
            }
            other => other,
        })
    }

    /// Translates a window's key on `rail` to the key that the application knows.
    pub(crate) fn window_key_from(&self, rail: usize, key: Key) -> Option<Key> {
        lock(&self.windows).iter().find_map(|w| w.mw.key_from(rail, key))
    }

    /// Records an operation that a queue pair of `owner` has executed.
    pub(crate) fn record_window_op(&self, owner: WindowOwner, op: &SendOp) {
        let mut windows = lock(&self.windows);
        match *op {
            SendOp::BindWindow(bind) => {
                if let Some(window) = windows.iter_mut().find(|w| w.mw.primary().id == bind.mw) {
                    let owner = (window.mw.window_type() == WindowType::Type2).then_some(owner);
                    window.binding = (bind.len > 0).then_some(Binding { bind, owner });
                }
            }
            SendOp::LocalInvalidate(key) => {
                if let Some(window) = windows.iter_mut().find(|w| w.mw.has_key(key)) {
                    window.binding = None;
                }
            }
            _ => {}
        }
    }

    /// The binds of a vQP's type 2 windows.
    pub(crate) fn window_binds_of(&self, owner: WindowOwner) -> Vec<SendOp> {
        let windows = lock(&self.windows);
        let bound = windows.iter().filter_map(|w| w.binding).filter(|binding| binding.owner == Some(owner));
        bound.map(|binding| SendOp::BindWindow(binding.bind)).collect()
    }

    /// Records that a reset or the end of a vQP's queue pairs has unbound its type 2 windows.
    pub(crate) fn release_windows(&self, owner: WindowOwner) {
        for window in lock(&self.windows).iter_mut() {
            if window.binding.is_some_and(|binding| binding.owner == Some(owner)) {
                window.binding = None;
            }
        }
    }

    pub(super) fn check_unbound(&self, mr: MrId) -> Result<()> {
        let windows = lock(&self.windows);
        match windows.iter().any(|w| w.binding.is_some_and(|binding| binding.bind.mr == mr)) {
            true => Err(Error::Busy { kind: "memory region", id: mr.0, user: "a memory window" }),
            false => Ok(()),
        }
    }
}

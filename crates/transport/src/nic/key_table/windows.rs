//! Memory windows: binding, invalidation, and what destroys a binding.

use mitra_verbs::{Access, Error, Key, Mw, MwId, PdId, Qpn, Result, Time, WindowBind, WindowType};

use super::{
    AddressRange, KeyError, KeyTable, Object, WINDOW, Window, WindowBinding, binding_for, may_grant,
};

impl KeyTable {
    /// Creates an unbound window. Its key grants no access until the window is bound.
    ///
    /// # Errors
    /// `Limit`: the NIC has the maximum number of windows, or no slot is free.
    pub(crate) fn alloc_mw(&mut self, now: Time, pd: PdId, window_type: WindowType) -> Result<Mw> {
        self.windows.check()?;
        let index = self.take_slot(now)?;
        let id = self.handle(index);
        self.slots[index as usize].object = Object::Window(Window { pd, window_type, binding: None });
        self.windows.live += 1;
        Ok(Mw { id: MwId(id), pd, rkey: self.key(id) })
    }

    /// Unbinds and removes a window.
    ///
    /// # Errors
    /// `NoSuchObject`: the window does not exist.
    pub(crate) fn dealloc_mw(&mut self, now: Time, id: MwId) -> Result<()> {
        self.window(id).ok_or(Error::NoSuchObject { kind: WINDOW, id: id.0 })?;
        self.unbind(id);
        self.free_slot(now, id.0);
        self.windows.live -= 1;
        Ok(())
    }

    /// Binds a window to a part of a region (IBTA volume 1, 10.6.7.2). A type 2 window is bound for
    /// the peer of queue pair `qpn` only. `pd` is the protection domain of the queue pair.
    ///
    /// A type 2 window must be unbound. A bind of a type 1 window replaces its binding, and a bind
    /// with the length 0 removes the binding.
    ///
    /// The window grants the remote access rights of the request. They may exceed the remote rights
    /// of the region.
    pub(crate) fn bind(&mut self, qpn: Qpn, pd: PdId, bind: &WindowBind) -> Result<(), KeyError> {
        let window = self.window(bind.mw).ok_or(KeyError::Unknown)?;
        if window.pd != pd {
            return Err(KeyError::WrongPd);
        }
        let qpn = match window.window_type {
            WindowType::Type1 if bind.len == 0 => {
                self.unbind(bind.mw);
                return Ok(());
            }
            WindowType::Type1 if bind.zero_based => return Err(KeyError::ZeroBased),
            WindowType::Type1 => None,
            WindowType::Type2 if window.binding.is_some() => return Err(KeyError::AlreadyBound),
            WindowType::Type2 if bind.len == 0 => return Err(KeyError::ZeroLength),
            WindowType::Type2 => Some(qpn),
        };
        let region = self.region(bind.mr).ok_or(KeyError::Unknown)?;
        if region.pd != pd {
            return Err(KeyError::WrongPd);
        }
        let access = bind.access & Access::REMOTE;
        if !region.access.contains(Access::WINDOW_BIND) || !may_grant(access, region.access) {
            return Err(KeyError::NoRight);
        }
        region.range.offset_of(bind.addr, bind.len)?;
        let range = AddressRange { addr: if bind.zero_based { 0 } else { bind.addr }, len: bind.len };
        let key = self.key(bind.mw.0).with_consumer_bits(bind.rkey.0 as u8);
        let binding = WindowBinding { key, qpn, mr: bind.mr, range, addr: bind.addr, access };
        self.unbind(bind.mw);
        if let Some(Object::Window(window)) = self.object_mut(bind.mw.0) {
            window.binding = Some(binding);
        }
        if let Some(Object::Region(region)) = self.object_mut(bind.mr.0) {
            region.windows += 1;
        }
        self.bound_windows += 1;
        Ok(())
    }

    /// Unbinds the window that has this key, for a local invalidation or a SEND with invalidate.
    /// The window can be bound again.
    ///
    /// A type-2B window can be invalidated only on the queue pair on which it was bound.
    pub(crate) fn invalidate(&mut self, qpn: Qpn, pd: PdId, key: Key) -> Result<(), KeyError> {
        let id = self.cipher.decrypt(key.0 >> 8);
        match self.object(id) {
            Some(Object::Region(region)) if region.key == key => Err(KeyError::NotInvalidatable),
            Some(&Object::Window(window)) => {
                binding_for(window, qpn, pd, key)?;
                if window.window_type == WindowType::Type1 {
                    return Err(KeyError::NotInvalidatable);
                }
                self.unbind(MwId(id));
                Ok(())
            }
            _ => Err(KeyError::Unknown),
        }
    }

    /// Unbinds the windows of a queue pair that is destroyed or reset, because the queue pair may
    /// be connected to another peer later. The cost is linear in the table size if any window is
    /// bound.
    pub(crate) fn unbind_windows_of(&mut self, qpn: Qpn) {
        if self.bound_windows == 0 {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            if let Object::Window(Window { binding: Some(binding), .. }) = self.slots[index as usize].object
                && binding.qpn == Some(qpn)
            {
                self.unbind(MwId(self.handle(index)));
            }
        }
    }

    fn unbind(&mut self, id: MwId) {
        let Some(Object::Window(window)) = self.object_mut(id.0) else { return };
        let Some(binding) = window.binding.take() else { return };
        self.bound_windows -= 1;
        if let Some(Object::Region(region)) = self.object_mut(binding.mr.0) {
            region.windows -= 1;
        }
    }
}

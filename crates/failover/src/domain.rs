use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mitra_mutants::Mutant;
use mitra_verbs::{
    Access, Buffer, CompletionChannel, Error, Key, Limits, Mr, PdId, PortAttr, Provider, Result, Sge,
};
use smallvec::SmallVec;

use crate::activity::{Activity, Counters};
use crate::config::MAX_RAILS;
use crate::data_qp;
use crate::local_nic::LocalNic;
use crate::lock::lock;
use crate::memory_region::VirtualMr;
use crate::telemetry::Telemetry;

mod control_endpoint;
mod events;
mod grants;
mod poll_group;
mod reregistration;
mod send_buffers;
mod shared_home;
mod windows;

pub(crate) use control_endpoint::ControlEndpoint;
pub(crate) use shared_home::{HomeMove, HomeView};
pub(crate) use windows::WindowOwner;

use self::events::{Events, LastHeard};
use self::poll_group::PollGroup;

/// The protection domain on a NIC that was dead when the domain was made. A NIC assigns no such
/// number, so it executes no request of the domain even if it works again.
const NO_PD: PdId = PdId(u32::MAX);

/// The local NICs of a process's virtual queue pairs, one for each rail, and the memory registered
/// with all of them. The order of the rails must be the same at both ends.
///
/// A domain consumes the asynchronous events of its NICs. A NIC must therefore not be in two
/// independent domains, because each would consume events that the other needs. Virtual queue pairs
/// share one domain, or use domains made with [`Domain::with_own_pds`].
#[derive(Debug)]
pub struct Domain {
    nics: Vec<LocalNic>,
    /// Sorted by the primary lkey.
    memory: Mutex<Vec<Registered>>,
    windows: Mutex<Vec<windows::Window>>,
    grants: grants::Grants,
    /// The next [`WindowOwner`].
    owners: AtomicU64,
    control: control_endpoint::SharedEndpoints,
    shared: Arc<Shared>,
}

/// The state of the NICs, which domains over the same NICs share ([`Domain::with_own_pds`]).
#[derive(Debug)]
struct Shared {
    events: Mutex<Events>,
    heard: [LastHeard; MAX_RAILS],
    group: PollGroup,
    counters: Arc<Counters>,
    home: shared_home::SharedHome,
    /// The port of each NIC as last read, even if the NIC has died since.
    ports: Mutex<Vec<PortAttr>>,
}

#[derive(Debug)]
struct Registered {
    mr: VirtualMr,
    memory: Arc<Buffer>,
    access: Access,
}

impl Domain {
    /// `providers` has one NIC for each rail, in the order of rails.
    ///
    /// # Errors
    /// [`Error::Limit`] if there are no NICs or more than [`MAX_RAILS`]; any error of
    /// [`Provider::alloc_pd`].
    pub fn new(providers: Vec<Arc<dyn Provider>>) -> Result<Arc<Domain>> {
        Domain::make(providers, |_| Ok(None))
    }

    /// Creates a domain with a completion channel on each NIC. An application that waits for the
    /// events of [`VirtualQp::arm`](crate::VirtualQp::arm) needs these channels.
    ///
    /// # Errors
    /// The errors of [`Domain::new`]; any error of [`Provider::create_completion_channel`].
    pub fn with_completion_channels(providers: Vec<Arc<dyn Provider>>) -> Result<Arc<Domain>> {
        Domain::make(providers, |provider| provider.create_completion_channel().map(Some))
    }

    fn make(
        providers: Vec<Arc<dyn Provider>>,
        channel: impl Fn(&dyn Provider) -> Result<Option<Arc<dyn CompletionChannel>>>,
    ) -> Result<Arc<Domain>> {
        if !(1..=MAX_RAILS).contains(&providers.len()) {
            return Err(Error::Limit {
                attribute: "rails",
                requested: providers.len() as u64,
                limit: MAX_RAILS as u64,
            });
        }
        let nics = providers
            .into_iter()
            .map(|provider| {
                provider.connect_unreached_peers();
                Ok(LocalNic { pd: provider.alloc_pd()?, channel: channel(&*provider)?, provider })
            })
            .collect::<Result<Vec<_>>>()?;
        let ports = nics.iter().map(|nic| nic.provider.query_port()).collect::<Result<_>>()?;
        let shared = Shared {
            events: Mutex::default(),
            heard: Default::default(),
            group: PollGroup::new(&nics),
            counters: Arc::default(),
            home: shared_home::SharedHome::default(),
            ports: Mutex::new(ports),
        };
        Ok(Domain::over(nics, Arc::new(shared)))
    }

    fn over(nics: Vec<LocalNic>, shared: Arc<Shared>) -> Arc<Domain> {
        Arc::new(Domain {
            control: control_endpoint::none_yet(nics.len()),
            nics,
            memory: Mutex::default(),
            windows: Mutex::default(),
            grants: Mutex::default(),
            owners: AtomicU64::new(0),
            shared,
        })
    }

    /// Creates another domain over the same NICs, for peers that do not trust each other. A key of
    /// one domain's memory is invalid on the queue pairs of the other domain, and control messages
    /// arrive at different queue pairs. Both domains may be used at the same time.
    ///
    /// # Errors
    /// Any error of [`Provider::alloc_pd`]; [`Error::DeviceFatal`] only if every NIC is dead.
    pub fn with_own_pds(&self) -> Result<Arc<Domain>> {
        let pds = self.on_live_nics(|nic| nic.provider.alloc_pd(), |nic, pd| nic.provider.dealloc_pd(pd))?;
        if pds.iter().all(Option::is_none) {
            return Err(Error::DeviceFatal);
        }
        let with_pd =
            |(nic, pd): (&LocalNic, Option<PdId>)| LocalNic { pd: pd.unwrap_or(NO_PD), ..nic.clone() };
        let nics = self.nics.iter().zip(pds).map(with_pd).collect();
        Ok(Domain::over(nics, Arc::clone(&self.shared)))
    }

    /// The open vQPs and the failovers of this domain and of all domains over its NICs
    /// ([`Domain::with_own_pds`]).
    pub fn activity(&self) -> Activity {
        self.shared.counters.read()
    }

    /// Detailed counts and states of the vQPs of [`Domain::activity`].
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        self.shared.counters.telemetry()
    }

    /// Returns an identity for a vQP, as the owner of type 2 windows.
    pub(crate) fn new_window_owner(&self) -> WindowOwner {
        WindowOwner(self.owners.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// Returns the port of a rail's NIC. For a dead NIC, it is the port that was last read.
    ///
    /// # Errors
    /// Any error of [`Provider::query_port`] but [`Error::DeviceFatal`].
    pub(crate) fn port(&self, rail: usize) -> Result<PortAttr> {
        let known = &mut lock(&self.shared.ports)[rail];
        match self.nics[rail].provider.query_port() {
            Ok(port) => *known = port,
            Err(Error::DeviceFatal) => {}
            Err(error) => return Err(error),
        }
        Ok(*known)
    }

    /// Returns the NICs with new completion channels for one vQP. A dead NIC gets none.
    ///
    /// # Errors
    /// Any error of [`Provider::create_completion_channel`] but [`Error::DeviceFatal`].
    pub(crate) fn nics_with_new_channels(&self) -> Result<Vec<LocalNic>> {
        let with_new_channel = |nic: &LocalNic| match nic.provider.create_completion_channel() {
            Ok(channel) => Ok(LocalNic { channel: Some(channel), ..nic.clone() }),
            Err(Error::DeviceFatal) => Ok(LocalNic { channel: None, ..nic.clone() }),
            Err(error) => Err(error),
        };
        self.nics.iter().map(with_new_channel).collect()
    }

    /// The NICs, in the order of rails.
    pub fn nics(&self) -> &[LocalNic] {
        &self.nics
    }

    /// The limits of a virtual queue pair. The limits on work requests, scatter/gather entries,
    /// inline data and messages are the minima over all NICs, less the queue slots that the vQP
    /// itself uses. The other limits are the limits of rail 0's NIC.
    pub fn limits(&self) -> Limits {
        let minimum = |of: fn(&Limits) -> u32| {
            self.nics.iter().map(|nic| of(&nic.provider.attr().limits)).min().unwrap_or(0)
        };
        Limits {
            wrs: minimum(|limits| limits.wrs).saturating_sub(data_qp::SPARE_SLOTS),
            sges: minimum(|limits| limits.sges),
            inline: minimum(|limits| limits.inline),
            message_bytes: minimum(|limits| limits.message_bytes),
            ..self.nics[0].provider.attr().limits
        }
    }

    /// Registers memory with every live NIC.
    ///
    /// # Errors
    /// The error of the first live NIC that refuses; [`Error::DeviceFatal`] if every NIC is dead.
    pub fn register(&self, memory: &Arc<Buffer>, access: Access) -> Result<VirtualMr> {
        let register = |nic: &LocalNic| nic.provider.reg_mr(nic.pd, Arc::clone(memory), access);
        let rails = self.on_live_nics(register, deregister)?;
        let rail_0_is_dead = rails[0].is_none();
        let mr = VirtualMr::new(rails).ok_or(Error::DeviceFatal)?;
        let primary = mr.primary();
        let mut table = lock(&self.memory);
        let is_taken = |r: &Registered| {
            let other = r.mr.primary();
            other.id == primary.id || other.lkey == primary.lkey || other.rkey == primary.rkey
        };
        if rail_0_is_dead && table.iter().any(is_taken) {
            // The NIC of rail 0 assigned this handle or key to other memory before it died. A new
            // registration gets another key.
            drop(table);
            self.undo(mr.registrations(), deregister);
            return self.register(memory, access);
        }
        let at = table.partition_point(|r| r.mr.primary().lkey < primary.lkey);
        table.insert(at, Registered { mr: mr.clone(), memory: Arc::clone(memory), access });
        Ok(mr)
    }

    /// Calls `make` for every live NIC. After a refusal, calls `undo` with what was made before.
    /// `None` stands for a dead NIC.
    ///
    /// # Errors
    /// The error of the first live NIC that refuses.
    fn on_live_nics<T: Copy>(
        &self,
        make: impl Fn(&LocalNic) -> Result<T>,
        undo: impl Fn(&LocalNic, T) -> Result<()>,
    ) -> Result<SmallVec<[Option<T>; 2]>> {
        let mut rails = SmallVec::new();
        for nic in &self.nics {
            match make(nic) {
                Ok(made) => rails.push(Some(made)),
                Err(Error::DeviceFatal) => rails.push(None),
                Err(error) => {
                    self.undo(&rails, undo);
                    return Err(error);
                }
            }
        }
        Ok(rails)
    }

    fn undo<T: Copy>(&self, rails: &[Option<T>], undo: impl Fn(&LocalNic, T) -> Result<()>) {
        for (nic, made) in self.nics.iter().zip(rails) {
            let _ = made.map_or(Ok(()), |made| undo(nic, made)); // best effort: the caller returns the first error
        }
    }

    /// Revokes the registration on every NIC. After `Ok`, no NIC accesses the memory. A NIC that
    /// counts as dead is reset, because it may be merely hung and still access the memory.
    ///
    /// # Errors
    /// [`Error::Busy`] if a window is bound to the memory, which then stays registered on every
    /// NIC. Otherwise the error of the first NIC that does not confirm the revocation and may still
    /// access the memory. All other registrations are revoked nevertheless, and new work requests
    /// cannot name the memory.
    pub fn deregister(&self, mr: &VirtualMr) -> Result<()> {
        self.check_unbound(mr.primary().id)?;
        let mut revocations = 0;
        let mut first = Ok(());
        for (nic, mr) in self.nics.iter().zip(mr.registrations()) {
            let Some(mr) = mr else { continue };
            if revocations > 0 && Mutant::DeregisteredOnOneRail.is_on() {
                continue;
            }
            revocations += 1;
            let revoked = match nic.provider.dereg_mr(mr.id) {
                // The first NIC has executed a bind that `windows` does not contain yet. It
                // refuses, and nothing has been revoked.
                Err(error @ Error::Busy { .. }) if revocations == 1 => return Err(error),
                Err(Error::DeviceFatal) => nic.provider.reset(),
                other => other,
            };
            first = first.and(revoked);
        }
        if !Mutant::DeregisteredKeyKept.is_on() {
            lock(&self.memory).retain(|r| r.mr.primary().lkey != mr.primary().lkey);
        }
        first.and(self.revoke_grants_to(mr.primary().rkey)) // no further grant is made
    }

    /// Translates an entry from the primary registration to `rail`. For an unknown key, the result
    /// has a key that the domain does not use on `rail`. The NIC then refuses the request, as on a
    /// queue pair without failover.
    pub fn translate(&self, sge: Sge, rail: usize) -> Sge {
        let table = lock(&self.memory);
        if let Some(found) = find(&table, sge.key) {
            return found.mr.translate(sge, rail);
        }
        let is_used = |key| table.iter().any(|r| r.mr.registrations()[rail].is_some_and(|mr| mr.lkey == key));
        let unused = (0..=u32::MAX).map(|i| Key(sge.key.0.wrapping_add(i))).find(|key| !is_used(*key));
        Sge { key: unused.unwrap_or(sge.key), ..sge }
    }

    /// Copies `bytes` into registered memory, entry by entry. Like a NIC, it checks only the part
    /// of an entry that takes bytes. Returns false if the entries are too short, if a key is
    /// unknown, or if memory is unmapped, out of bounds or not writable. Some bytes may then have
    /// been copied.
    pub fn scatter(&self, sges: &[Sge], bytes: &[u8]) -> bool {
        let table = lock(&self.memory);
        let mut rest = bytes;
        for sge in sges {
            let (piece, remaining) = rest.split_at(rest.len().min(sge.len as usize));
            if piece.is_empty() {
                continue;
            }
            let Some(found) = find(&table, sge.key) else { return false };
            let offset = sge.addr.wrapping_sub(found.mr.primary().addr);
            if !found.access.contains(Access::LOCAL_WRITE)
                || offset.checked_add(piece.len() as u64).is_none_or(|end| end > found.mr.len())
                || found.memory.try_write_at(offset as usize, piece).is_err()
            {
                return false;
            }
            rest = remaining;
        }
        rest.is_empty()
    }

    /// Stores the old value of an atomic in the memory that its work request names. Fails as
    /// [`Domain::scatter`] does.
    pub(crate) fn store_atomic_result(&self, at: Sge, value: u64) -> bool {
        self.scatter(&[Sge { len: at.len.min(8), ..at }], &value.to_ne_bytes())
    }
}

fn deregister(nic: &LocalNic, mr: Mr) -> Result<()> {
    nic.provider.dereg_mr(mr.id)
}

impl Drop for Domain {
    fn drop(&mut self) {
        for nic in &self.nics {
            // A NIC refuses if the protection domain still has an object. Only the memory of the
            // protection domain itself is then lost.
            let _ = nic.provider.dealloc_pd(nic.pd);
        }
    }
}

fn find(table: &[Registered], key: Key) -> Option<&Registered> {
    let at = table.binary_search_by_key(&key, |r| r.mr.primary().lkey).ok()?;
    Some(&table[at])
}

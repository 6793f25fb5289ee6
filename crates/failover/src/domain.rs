//! The local ends of all rails: NICs, their protection domains, and memory registered with every one of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{
    Access, AsyncEvent, Buffer, CompletionChannel, Error, Key, Limits, Mr, PdId, Provider, Qpn, RemoteAddr,
    Result, Sge,
};
use smallvec::SmallVec;

use crate::agreement::MAX_RAILS;
use crate::message::{Reader, Rejected};
use crate::rail;

/// The NICs that virtual queue pairs of this process use, one for each rail, in the same order at both ends.
///
/// A domain takes the asynchronous events of its NICs: nobody else sees them. So let no NIC be in two domains at a time, or each
/// takes events that the other waits for; several virtual queue pairs share one domain, or domains that are [`Domain::with_own_pds`].
#[derive(Debug)]
pub struct Domain {
    nics: Vec<LocalNic>,
    memory: Mutex<Vec<Registered>>,
    revocations: AtomicU64,
    /// Shared with those that are apart.
    events: Arc<Mutex<Events>>,
}

/// A NIC and the protection domain that everything of this domain belongs to.
#[derive(Clone, Debug)]
pub struct LocalNic {
    /// The NIC.
    pub provider: Arc<dyn Provider>,
    /// Its protection domain.
    pub pd: PdId,
    /// Where its completion queues tell of completions, if anybody is to hear of them.
    pub channel: Option<Arc<dyn CompletionChannel>>,
}

#[derive(Debug)]
struct Registered {
    mr: VirtualMr,
    memory: Arc<Buffer>,
    access: Access,
}

#[derive(Debug, Default)]
struct Events {
    /// Ports that are down, a bit for each rail.
    down: u8,
    /// NICs that are dead.
    fatal: u8,
    /// What was reported of queue pairs whose peer broke a rule, by rail; bounded by taking the oldest away.
    qp_errors: Vec<(usize, Qpn, AsyncEvent)>,
}

/// Memory registered with every NIC of a domain that lives. Work requests name it as on rail 0, for good; or as on the first
/// rail whose NIC lived when it was registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualMr {
    named: Mr,
    /// None where the NIC was dead.
    rails: SmallVec<[Option<Mr>; 2]>,
}

impl VirtualMr {
    /// A scatter/gather entry of `len` bytes at `offset`.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        self.named.sge(offset, len)
    }

    /// The region by the name that work requests use.
    pub fn primary(&self) -> Mr {
        self.named
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.named.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the peer needs to reach it, on every rail.
    pub fn remote(&self) -> RemoteRegion {
        // Nothing reaches it by a NIC that is dead, so what it is called there does not matter; the first is the name.
        let on = |mr: &Option<Mr>| mr.unwrap_or(self.named).remote(0);
        RemoteRegion { len: self.len(), rails: self.rails.iter().map(on).collect() }
    }
}

/// The peer's memory, with its name on every rail. Work requests name it as on rail 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RemoteRegion {
    pub(crate) len: u64,
    pub(crate) rails: SmallVec<[RemoteAddr; 2]>,
}

impl RemoteRegion {
    /// Memory that the peer does not know, under its one name: for a request that the peer's NIC is to refuse.
    pub fn with_unknown_key(named: RemoteAddr, rails: usize) -> RemoteRegion {
        let everywhere = RemoteAddr { addr: 0, rkey: named.rkey };
        RemoteRegion { len: u64::MAX, rails: core::iter::repeat_n(everywhere, rails).collect() }
    }

    /// The byte at `offset`, as work requests name it.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.rails[0].addr.wrapping_add(offset), rkey: self.rails[0].rkey }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As bytes, to send to the peer by any means.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.rails.len() as u8];
        out.extend_from_slice(&self.len.to_le_bytes());
        for r in &self.rails {
            out.extend_from_slice(&r.addr.to_le_bytes());
            out.extend_from_slice(&r.rkey.0.to_le_bytes());
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// `Invalid` if they are not what [`RemoteRegion::encode`] makes.
    pub fn decode(bytes: &[u8]) -> Result<RemoteRegion> {
        let mut r = Reader(bytes);
        let region = RemoteRegion::parse(&mut r).map_err(|_| Error::Invalid("malformed remote region"))?;
        if r.0.is_empty() { Ok(region) } else { Err(Error::Invalid("malformed remote region")) }
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<RemoteRegion, Rejected> {
        let rails = usize::from(r.byte()?);
        if !(1..=MAX_RAILS).contains(&rails) {
            return Err(Rejected::Malformed);
        }
        let len = u64::from_le_bytes(r.array()?);
        let mut list = SmallVec::new();
        for _ in 0..rails {
            let addr = u64::from_le_bytes(r.array()?);
            list.push(RemoteAddr { addr, rkey: Key(u32::from_le_bytes(r.array()?)) });
        }
        Ok(RemoteRegion { len, rails: list })
    }
}

impl Domain {
    /// A domain over these NICs, rail 0 first.
    ///
    /// # Errors
    /// No NIC, or more than [`MAX_RAILS`].
    pub fn new(providers: Vec<Arc<dyn Provider>>) -> Result<Arc<Domain>> {
        Domain::make(providers, |_| Ok(None))
    }

    /// The same, with a completion channel for each NIC: for users that sleep until [`VirtualQp::arm`](crate::VirtualQp::arm)
    /// wakes them.
    ///
    /// # Errors
    /// As [`Domain::new`], or a NIC has no channels.
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
                Ok(LocalNic { pd: provider.alloc_pd()?, channel: channel(&*provider)?, provider })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Domain {
            nics,
            memory: Mutex::default(),
            revocations: AtomicU64::new(0),
            events: Arc::default(),
        }))
    }

    /// The same NICs with protection domains of their own, for peers that do not trust each other: a key of memory that is registered
    /// here is worth nothing on queue pairs of the other, nor the other way round. Both may be used at a time.
    ///
    /// # Errors
    /// A NIC has no protection domain left.
    pub fn with_own_pds(&self) -> Result<Arc<Domain>> {
        let again = |nic: &LocalNic| Ok(LocalNic { pd: nic.provider.alloc_pd()?, ..nic.clone() });
        Ok(Arc::new(Domain {
            nics: self.nics.iter().map(again).collect::<Result<_>>()?,
            memory: Mutex::default(),
            revocations: AtomicU64::new(0),
            events: Arc::clone(&self.events),
        }))
    }

    /// The NICs, rail 0 first.
    pub fn nics(&self) -> &[LocalNic] {
        &self.nics
    }

    /// What a virtual queue pair may be asked for: the least that a NIC takes, without what is for its own use.
    pub fn limits(&self) -> Limits {
        let least = |of: fn(&Limits) -> u32| {
            self.nics.iter().map(|nic| of(&nic.provider.attr().limits)).min().unwrap_or(0)
        };
        Limits {
            wrs: least(|limits| limits.wrs).saturating_sub(rail::SPARE),
            sges: least(|limits| limits.sges).min(rail::WIDTH.send_sges),
            inline: least(|limits| limits.inline).min(rail::WIDTH.inline),
            message_bytes: least(|limits| limits.message_bytes),
            ..self.nics[0].provider.attr().limits
        }
    }

    /// Registers memory with every NIC that lives. (One that is dead stays dead.)
    ///
    /// # Errors
    /// What a NIC that lives refuses, or `DeviceFatal` if none does.
    pub fn register(&self, memory: &Arc<Buffer>, access: Access) -> Result<VirtualMr> {
        let mut rails = SmallVec::<[Option<Mr>; 2]>::new();
        for nic in &self.nics {
            match nic.provider.reg_mr(nic.pd, Arc::clone(memory), access) {
                Ok(mr) => rails.push(Some(mr)),
                Err(Error::DeviceFatal) => rails.push(None),
                Err(e) => {
                    self.take_back(&rails);
                    return Err(e);
                }
            }
        }
        let named = *rails.iter().flatten().next().ok_or(Error::DeviceFatal)?;
        let mut table = lock(&self.memory);
        let is_taken = |r: &Registered| r.mr.named.lkey == named.lkey || r.mr.named.rkey == named.rkey;
        if rails[0].is_none() && table.iter().any(is_taken) {
            // Rail 0 gave that name before it died. A NIC does not soon give the same again.
            drop(table);
            self.take_back(&rails);
            return self.register(memory, access);
        }
        let mr = VirtualMr { named, rails };
        let at = table.partition_point(|r| r.mr.named.lkey < named.lkey);
        table.insert(at, Registered { mr: mr.clone(), memory: Arc::clone(memory), access });
        Ok(mr)
    }

    /// What was made on some NICs for a registration that failed.
    fn take_back(&self, rails: &[Option<Mr>]) {
        for (nic, mr) in self.nics.iter().zip(rails) {
            let _ = mr.map_or(Ok(()), |mr| nic.provider.dereg_mr(mr.id)); // best effort: the first error is the one to tell
        }
    }

    /// Revokes memory on every NIC; on return none touches it any more. A NIC that is dead is asked to confirm
    /// its death.
    ///
    /// # Errors
    /// The first NIC's that does not confirm: it may still touch the memory. The others were asked all the same, and no
    /// operation finds the memory any more.
    pub fn deregister(&self, mr: &VirtualMr) -> Result<()> {
        let mut first = Ok(());
        for (nic, mr) in self.nics.iter().zip(&mr.rails) {
            let Some(mr) = mr else { continue };
            let revoked = match nic.provider.dereg_mr(mr.id) {
                Err(Error::DeviceFatal) => nic.provider.reset(),
                other => other,
            };
            first = first.and(revoked);
        }
        lock(&self.memory).retain(|r| r.mr.named.lkey != mr.named.lkey);
        self.revocations.fetch_add(1, Ordering::Release);
        first
    }

    /// Regions revoked so far.
    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    /// Whether registered memory has this key.
    pub(crate) fn has(&self, key: Key) -> bool {
        find(&lock(&self.memory), key).is_some()
    }

    /// An entry's name on a rail; `None` if no registered memory has that key.
    pub(crate) fn local(&self, sge: Sge, rail: usize) -> Option<Sge> {
        let table = lock(&self.memory);
        let mr = &find(&table, sge.key)?.mr;
        // A NIC that was dead when it was registered takes no request anyway.
        let (named, here) = (mr.named, mr.rails[rail].unwrap_or(mr.named));
        Some(Sge {
            addr: here.addr.wrapping_add(sge.addr.wrapping_sub(named.addr)),
            len: sge.len,
            key: here.lkey,
        })
    }

    /// Copies bytes to registered memory, entry after entry. False if there is not room for all of them, or some of the memory is
    /// gone or may not be written: a first part may have been.
    pub fn scatter(&self, sges: &[Sge], bytes: &[u8]) -> bool {
        let table = lock(&self.memory);
        let mut rest = bytes;
        for sge in sges {
            let Some(found) = find(&table, sge.key) else { return false };
            let (piece, behind) = rest.split_at(rest.len().min(sge.len as usize));
            let offset = sge.addr.wrapping_sub(found.mr.named.addr);
            if !found.access.contains(Access::LOCAL_WRITE)
                || offset.checked_add(sge.len.into()).is_none_or(|end| end > found.mr.len())
                || found.memory.try_write_at(offset as usize, piece).is_err()
            {
                return false;
            }
            rest = behind;
        }
        rest.is_empty()
    }

    /// Puts an atomic's old value where the application wanted it. False if that is not registered memory, or it is gone.
    pub(crate) fn store(&self, at: Sge, value: u64) -> bool {
        self.scatter(&[Sge { len: at.len.min(8), ..at }], &value.to_ne_bytes())
    }

    /// Takes the events of the NICs and says whether a rail cannot be used: its port is down or its NIC dead.
    pub(crate) fn rail_down(&self, rail: usize) -> bool {
        let mut events = lock(&self.events);
        while let Some(event) = self.nics[rail].provider.poll_async_event() {
            match event {
                AsyncEvent::PortError => events.down |= 1 << rail,
                AsyncEvent::PortActive => events.down &= !(1 << rail),
                AsyncEvent::DeviceFatal => events.fatal |= 1 << rail,
                AsyncEvent::QpFatal(qpn)
                | AsyncEvent::QpAccessError(qpn)
                | AsyncEvent::QpRequestError(qpn) => {
                    if events.qp_errors.len() == 1024 {
                        events.qp_errors.remove(0);
                    }
                    events.qp_errors.push((rail, qpn, event));
                }
                _ => {}
            }
        }
        (events.down | events.fatal) & (1 << rail) != 0
    }

    /// Takes the note that a queue pair failed because its peer's request broke a rule.
    pub(crate) fn take_qp_error(&self, rail: usize, qpn: Qpn) -> Option<AsyncEvent> {
        let mut events = lock(&self.events);
        let found =
            events.qp_errors.iter().find(|(r, q, _)| (*r, *q) == (rail, qpn)).map(|(.., event)| *event);
        events.qp_errors.retain(|(r, q, _)| (*r, *q) != (rail, qpn));
        found
    }
}

fn find(table: &[Registered], key: Key) -> Option<&Registered> {
    let at = table.binary_search_by_key(&key, |r| r.mr.named.lkey).ok()?;
    Some(&table[at])
}

/// A poisoned lock means that another thread panicked between two consistent states: the tables are whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

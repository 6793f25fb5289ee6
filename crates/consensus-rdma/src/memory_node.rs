//! A memory: a process of its own that lends regions to others, who reach them by one-sided operations. Its processor does only what a
//! NIC cannot: it lets processes in, and changes rights.
//!
//! A right is a key. Each process has keys of its own, one to read a region and one to write it; to take a right away is to revoke
//! the registration behind the key, so that the NIC answers the next write with a NAK, and none is under way when that returns.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::{LegalChange, Permissions, ProcessId, ProcessSet, Region, RegisterKind};
use mitra_failover::{Domain, VirtualMr};
use mitra_verbs::{Access, Buffer, Error, Unmapped};
use serde::{Deserialize, Serialize};

use crate::handshake::{Door, Guest, Place, Token, Welcome};
use crate::layout::Layout;
use crate::link::Link;
use crate::poller::{ReadyCqs, Rest};
use crate::register;
use crate::storage::{Files, StorageConfig, StorageError};

/// What a process asks of a memory's processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// To change the rights to a region.
    Change { region: u8, read: ProcessSet, write: ProcessSet },
    /// The sequence numbers of some registers. Nobody writes them meanwhile: the process that asks is the only one that may.
    Learn { region: u8, first: u16, count: u16 },
}

/// What it is answered, in the order in which it asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The key by which it may write the region now, if it may.
    Changed { write: Option<Vec<u8>> },
    /// These.
    Learnt { seqs: Vec<u64> },
}

/// Registers whose numbers are asked for at a time, at most ...
pub(crate) const LEARNT: u16 = 256;
/// ... and bytes that are looked through for that, unless one register has more.
pub(crate) const LOOKED_THROUGH: usize = 512 << 10;

/// Lives of a process that a memory tells apart; more are not let in.
const LIVES: usize = 1 << 16;

/// The longest of both: ten bytes for each number.
pub(crate) const MESSAGE: usize = 16 + 10 * LEARNT as usize;

/// What a memory is.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Its regions.
    pub regions: Vec<Region>,
    /// Bytes of a register's contents, at most.
    pub register_capacity: usize,
    /// The word that each process must know; how many they are.
    pub tokens: Vec<Token>,
    /// Whether a process that was started anew, and has forgotten what it promised, is let in. Few protocols bear that.
    pub allow_restarts: bool,
    /// Where it keeps what it holds, if that is to outlive it.
    pub storage: Option<StorageConfig>,
    /// How connections behave. Both ends must have the same.
    pub failover: mitra_failover::Config,
}

/// Why a memory or a process could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The NIC refused something.
    #[error("the NIC: {0}")]
    Nic(#[from] Error),
    /// The files that it is to lie in cannot be a memory.
    #[error(transparent)]
    StorageConfig(#[from] StorageError),
    /// There may be 64 processes.
    #[error("{0} processes; 1 to 64 can share a memory")]
    ProcessCount(usize),
}

impl From<getrandom::Error> for StartError {
    fn from(error: getrandom::Error) -> StartError {
        StartError::Io(error.into())
    }
}

impl From<nix::Error> for StartError {
    fn from(error: nix::Error) -> StartError {
        StartError::Io(error.into())
    }
}

/// A memory that serves.
#[derive(Debug)]
pub struct MemoryNode {
    config: MemoryConfig,
    /// Of each process, apart from the others': a key that another has found out is worth nothing to it.
    domains: Vec<Arc<Domain>>,
    layout: Layout,
    buffers: Vec<Arc<Buffer>>,
    rights: Vec<Permissions>,
    guests: Vec<Option<Served>>,
    /// The lives of each process that have been here, the last of them at the end.
    lives: Vec<Vec<u64>>,
    /// If it lies in files.
    files: Option<Files>,
    door: Door,
    rest: Rest,
    life: u64,
    /// What a NIC has not confirmed to be revoked, and whose it was: it may still write there.
    doubtful: Vec<(ProcessId, VirtualMr)>,
}

/// A process that is connected.
#[derive(Debug)]
struct Served {
    link: Link,
    /// Its keys to each region.
    keys: Vec<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    read: Option<VirtualMr>,
    write: Option<VirtualMr>,
}

impl MemoryNode {
    /// Makes its regions, all default, or opens them, and lets processes in through `listener`. The domain should notify, or
    /// nothing wakes the memory.
    ///
    /// # Errors
    /// The system or the NIC refuses, or the files are of another memory.
    pub fn new(
        domain: Arc<Domain>,
        listener: TcpListener,
        config: MemoryConfig,
    ) -> Result<MemoryNode, StartError> {
        let n = config.tokens.len();
        if !(1..=64).contains(&n) {
            return Err(StartError::ProcessCount(n));
        }
        let layout = Layout::new(&config.regions, config.register_capacity);
        let life = getrandom::u64()?;
        let files = config.storage.as_ref().map(|disk| Files::open(disk, &layout, life)).transpose()?;
        let mut lives = vec![Vec::new(); n];
        for &(p, life) in files.iter().flat_map(|files| &files.lives) {
            lives.get_mut(usize::from(p.0)).into_iter().for_each(|lives| lives.push(life));
        }
        let buffer = |region| Arc::new(Buffer::new(layout.len(region)));
        let rest = Rest::new(&domain)?;
        let bell = rest.bell();
        Ok(MemoryNode {
            buffers: match &files {
                Some(files) => files.buffers.clone(),
                None => (0..config.regions.len() as u8).map(buffer).collect(),
            },
            rights: config.regions.iter().map(|region| region.permissions).collect(),
            guests: (0..n).map(|_| None).collect(),
            lives,
            life: files.as_ref().map_or(life, |files| files.life),
            files,
            door: Door::open(listener, move || bell.ring())?,
            rest,
            layout,
            domains: (0..n).map(|_| domain.with_own_pds()).collect::<Result<_, _>>()?,
            config,
            doubtful: Vec::new(),
        })
    }

    /// Where processes come in.
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// Bytes that it lends.
    pub fn lent_bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len()).sum()
    }

    /// Sees to everything, whether or not anything has told of it, and asks to be woken by what comes next. Recoveries of connections
    /// wake nobody: they are taken part in here, so it should be called every millisecond or so.
    pub fn poll(&mut self) {
        while let Some(guest) = self.door.next() {
            let p = guest.hello.from;
            if self.config.tokens.get(usize::from(p.0)) == Some(&guest.hello.token)
                && self.let_in(guest).is_err()
            {
                self.part(p); // it comes again
            }
        }
        let mut asked = Vec::new();
        for (p, link) in self.links() {
            link.arm();
            link.poll(|event| asked.extend(event.message().map(|message| (p, message))));
        }
        self.obey(asked);
    }

    /// Does what is asked for on the links that completion queues have told of, and nothing else: who asks waits.
    pub fn poll_ready(&mut self, heard: &ReadyCqs) {
        let mut asked = Vec::new();
        for (p, link) in self.links().filter(|(_, link)| link.is_among(heard)) {
            link.arm();
            link.take(|event| asked.extend(event.message().map(|message| (p, message))));
        }
        self.obey(asked);
    }

    fn links(&mut self) -> impl Iterator<Item = (ProcessId, &mut Link)> {
        let guests = (0..).map(ProcessId).zip(&mut self.guests);
        guests.filter_map(|(p, guest)| guest.as_mut().map(|served| (p, &mut served.link)))
    }

    /// Sleeps until something tells of itself, or so long. What of several memories of one domain has been told of, each of them heeds.
    pub fn wait(&self, at_most: Duration) -> ReadyCqs {
        self.rest.rest(at_most)
    }

    /// Serves for so long; who comes to the door waits until then.
    pub fn serve_for(&mut self, at_most: Duration) {
        let until = Instant::now() + at_most;
        self.poll();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let heard = self.wait(left);
            self.poll_ready(&heard);
        }
    }

    fn obey(&mut self, asked: Vec<(ProcessId, Vec<u8>)>) {
        for (p, message) in asked {
            match postcard::from_bytes(&message) {
                Ok(Request::Change { region, read, write }) => {
                    if let Some(answer) = self.change(p, region.into(), Permissions { read, write }) {
                        self.answer(p, &answer);
                    }
                }
                Ok(Request::Learn { region, first, count }) => match self.learn(region, first, count) {
                    Ok(seqs) => self.answer(p, &Answer::Learnt { seqs }),
                    Err(Unmapped) => self.part(p),
                },
                // Nobody of ours says such a thing.
                Err(_) => self.part(p),
            }
        }
    }

    /// Connects a process. The connection that it had before is fenced first: what it had asked for there is not done any more.
    ///
    /// A right that can be taken has to be taken anew: who comes may be a second one of that name, started while the first was asleep.
    /// From then on the first counts as crashed, and is not let in again: the two would not know of each other's ballots. And of a memory
    /// that was opened again nobody knows who had the right.
    fn let_in(&mut self, guest: Guest) -> Result<(), StartError> {
        let (p, life) = (guest.hello.from, guest.hello.life);
        let lives = &mut self.lives[usize::from(p.0)];
        let was_here = !lives.is_empty();
        if lives.last() != Some(&life) {
            if lives.contains(&life) || lives.len() == LIVES || was_here && !self.config.allow_restarts {
                return Ok(());
            }
            if let Some(files) = &mut self.files {
                files.let_in(p, life)?;
            }
            lives.push(life);
        }
        let takes_anew = was_here || self.files.as_ref().is_some_and(|files| files.reopened);
        self.part(p);
        if !self.doubtful.is_empty() {
            return Ok(());
        }
        let mut link = Link::new(&self.domains[usize::from(p.0)], self.config.failover, MESSAGE)?;
        let info = link.info()?;
        link.connect(&guest.hello.info)?;
        link.arm();
        self.guests[usize::from(p.0)] = Some(Served { link, keys: Vec::new() });
        let mut regions = Vec::new();
        for region in 0..self.layout.regions() {
            let mut permissions = self.rights[region];
            if takes_anew && self.config.regions[region].legal_change != LegalChange::Never {
                permissions.write = permissions.write.without(p);
            }
            let keys = Keys {
                read: permissions.read.contains(p).then(|| self.register(p, region, false)).transpose()?,
                write: permissions.write.contains(p).then(|| self.register(p, region, true)).transpose()?,
            };
            let encoded = |key: &Option<VirtualMr>| key.as_ref().map(|mr| mr.remote().encode());
            regions.push(Place { read: encoded(&keys.read), write: encoded(&keys.write) });
            let served = self.guests[usize::from(p.0)].as_mut();
            served.expect("it was let in above").keys.push(keys);
        }
        Ok(guest.welcome(&Welcome {
            info,
            life: self.life,
            room: self.config.register_capacity as u32,
            regions,
        })?)
    }

    fn register(&self, p: ProcessId, region: usize, to_write: bool) -> Result<VirtualMr, Error> {
        let access = match (to_write, self.config.regions[region].kind) {
            (false, _) => Access::REMOTE_READ,
            (true, RegisterKind::ReadWrite) => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            (true, RegisterKind::WriteOnce) => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
        };
        self.domains[usize::from(p.0)].register(&self.buffers[region], access)
    }

    /// Cuts a process off.
    fn part(&mut self, p: ProcessId) {
        let Some(mut served) = self.guests[usize::from(p.0)].take() else { return };
        // Without its keys a queue pair that is not confirmed to be gone reaches nothing.
        let _ = served.link.close();
        for keys in served.keys {
            let _ = keys.read.map(|mr| self.domains[usize::from(p.0)].deregister(&mr));
            self.doubtful.extend(keys.write.map(|mr| (p, mr)));
        }
        self.revoke();
    }

    /// Revokes keys by which nobody is to write any more. False as long as a NIC does not confirm it: it may go on writing, so nobody is
    /// told that it does not. A hung one is the operator's to reset.
    fn revoke(&mut self) -> bool {
        self.doubtful.retain(|(p, mr)| self.domains[usize::from(p.0)].deregister(mr).is_err());
        self.doubtful.is_empty()
    }

    /// Changes rights, if that is legal. Permissions to read never change among those that are.
    fn change(&mut self, p: ProcessId, region: usize, permissions: Permissions) -> Option<Answer> {
        let n = self.guests.len() as u8;
        let legal = self.config.regions.get(region).is_some_and(|r| r.legal_change.allows(n, p, permissions));
        if legal {
            self.rights[region] = permissions;
            for (q, guest) in (0..).map(ProcessId).zip(&mut self.guests) {
                let Some(keys) = guest.as_mut().and_then(|served| served.keys.get_mut(region)) else {
                    continue;
                };
                if !permissions.write.contains(q) {
                    self.doubtful.extend(keys.write.take().map(|mr| (q, mr)));
                }
            }
            if !self.revoke() {
                return None;
            }
            let grant = permissions.write.contains(p)
                && self.keys(p, region).is_some_and(|keys| keys.write.is_none());
            if grant && let Ok(mr) = self.register(p, region, true) {
                self.keys(p, region).expect("looked at above").write = Some(mr);
            }
        }
        let write = self.keys(p, region).and_then(|keys| keys.write.as_ref()).map(|mr| mr.remote().encode());
        Some(Answer::Changed { write })
    }

    /// The sequence numbers of some registers; of what does not exist, and of words, none. An error if a disk has failed.
    fn learn(&self, region: u8, first: u16, count: u16) -> Result<Vec<u64>, Unmapped> {
        let registers = first..first.saturating_add(count.min(LEARNT)).min(self.layout.registers(region));
        if self.layout.is_settled(region) {
            return Ok(Vec::new());
        }
        let stride = self.layout.stride(region);
        let mut places = vec![0; stride];
        let seq = |register: u16| {
            self.buffers[usize::from(region)].try_read_at(usize::from(register) * stride, &mut places)?;
            Ok(register::last(&places))
        };
        registers.map(seq).collect()
    }

    fn answer(&mut self, p: ProcessId, answer: &Answer) {
        if let Some(served) = &mut self.guests[usize::from(p.0)] {
            // If it has gone, it comes again and asks again.
            let _ = served.link.send(postcard::to_stdvec(answer).expect("plain data"));
        }
    }

    fn keys(&mut self, p: ProcessId, region: usize) -> Option<&mut Keys> {
        self.guests[usize::from(p.0)].as_mut()?.keys.get_mut(region)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::pending_connect::Identity;

    fn domain() -> Arc<Domain> {
        Domain::with_completion_channels(vec![SoftNic::open(Config::loopback()).expect("a NIC")])
            .expect("a domain")
    }

    /// A memory, and what lets the process of this life come to it: whether it is let in.
    fn memory(restarts: bool) -> impl FnMut(u64) -> bool {
        let n = 2;
        let region = Region {
            registers: 1,
            permissions: Permissions::read_only(n),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        };
        let failover = mitra_failover::Config::default();
        let tokens = vec![[7; 16]; n.into()];
        let config = MemoryConfig {
            regions: vec![region],
            register_capacity: 64,
            tokens,
            allow_restarts: restarts,
            storage: None,
            failover,
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut memory = MemoryNode::new(domain(), listener, config).expect("a memory");
        let domain = domain();
        move |life| {
            let identity =
                Identity { me: ProcessId(1), domain: Arc::clone(&domain), failover, token: [7; 16], life };
            let link = identity.link(MESSAGE).expect("a link");
            let call = identity.call(memory.address(), link, Duration::ZERO).expect("a call");
            loop {
                memory.serve_for(Duration::from_millis(1));
                match call.answer.try_recv() {
                    Err(TryRecvError::Empty) => {}
                    answer => return answer.is_ok_and(|welcome| welcome.is_ok()),
                }
            }
        }
    }

    /// Two processes of one name have the same ballots, and may take each other's for their own: of two lives the earlier is over.
    #[test]
    fn who_was_followed_by_another_life_is_not_let_in_again() {
        let mut comes = memory(true);
        assert!(comes(1));
        assert!(comes(1), "it may connect anew");
        assert!(comes(2), "it was started anew");
        assert!(!comes(1), "the first was only asleep");
        assert!(comes(2));
    }

    /// Who writes its slot without what it accepted in its last life wipes out a decision.
    #[test]
    fn who_was_started_anew_is_not_let_in_where_that_does_harm() {
        let mut comes = memory(false);
        assert!(comes(1));
        assert!(!comes(2));
        assert!(comes(1));
    }
}

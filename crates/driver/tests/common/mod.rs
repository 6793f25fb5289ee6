//! Domains over two software NICs, and memory that the peer may access.
#![allow(dead_code)] // each test binary uses a part of this module

use std::sync::Arc;

use mitra_failover::{Domain, RemoteRegion, VirtualMr};
use mitra_softnic::SoftNic;
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};

pub struct Host {
    pub nics: [Arc<SoftNic>; 2],
    pub domain: Arc<Domain>,
    pub memory: Arc<Buffer>,
    pub mr: VirtualMr,
}

impl Host {
    pub fn open() -> Host {
        let nics = [0, 1].map(|_| SoftNic::open(mitra_softnic::Config::loopback()).expect("a free address"));
        let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::new(providers).expect("the NICs have the resources of a domain");
        let memory = Arc::new(Buffer::new(1 << 16));
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("a free region");
        Host { nics, domain, memory, mr }
    }

    pub fn region(&self) -> RemoteRegion {
        self.mr.remote()
    }

    /// Returns a fetch-and-add of 1 to the first word of `region`. The old value goes to word `i`
    /// of this host's memory.
    pub fn add(&self, i: u64, region: &RemoteRegion) -> SendWr {
        let op = SendOp::FetchAdd { remote: region.at(0), add: 1 };
        SendWr::new(i, op, Data::sge(self.mr.sge(8 + i % 1000 * 8, 8)))
    }
}

//! The endpoint for control messages that the vQPs of a domain share on each NIC.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{CloseReason, Config, Domain, Secret, VirtualQp};
use mitra_sim::Testbed;
use mitra_verbs::{Error, Provider};

/// Two hosts with two NICs, and vQPs between them.
struct Ends {
    testbed: Testbed,
    domains: [Arc<Domain>; 2],
    /// The vQPs of each host. Two vQPs with the same index are connected.
    vqps: [Vec<VirtualQp>; 2],
}

impl Ends {
    fn new(secrets: &[[u64; 2]]) -> Ends {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
        let domains = [0, 1].map(|host: usize| {
            let nics = testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
            Domain::new(nics.collect()).expect("the NICs have room")
        });
        let mut ends = Ends { testbed, domains, vqps: Default::default() };
        secrets.iter().for_each(|secrets| ends.connect(*secrets));
        ends
    }

    fn connect(&mut self, secrets: [u64; 2]) {
        let mut pair = [0, 1].map(|host| {
            let builder = VirtualQp::builder(&self.domains[host]).config(Config::default());
            let secret = Secret::fixed([secrets[host], self.vqps[host].len() as u64]);
            builder.secret(secret).build().expect("the NICs have room")
        });
        let infos = pair.each_ref().map(|vqp| vqp.local_info());
        pair[0].connect(&infos[1]).expect("the ends match");
        pair[1].connect(&infos[0]).expect("the ends match");
        self.vqps.iter_mut().zip(pair).for_each(|(vqps, vqp)| vqps.push(vqp));
    }

    /// Polls these vQPs, each given by its host and its index.
    fn poll(&mut self, vqps: &[(usize, usize)], rounds: usize) {
        for _ in 0..rounds {
            for &(host, index) in vqps {
                self.vqps[host][index].poll(&mut Vec::new());
            }
            self.testbed.world.run_for(Duration::from_micros(25));
        }
    }

    /// Returns whether no object of the vQPs is left on the NICs of a host.
    fn is_empty(&self, host: usize) -> bool {
        self.domains[host].nics().iter().all(|nic| nic.provider.dealloc_pd(nic.pd).is_ok())
    }
}

const ALL: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

#[test]
fn vqps_of_a_domain_share_one_endpoint_and_move() {
    let mut ends = Ends::new(&[[1, 2], [3, 4]]);
    let objects = |ends: &Ends| {
        // A rail is encoded as GID, MTU, and four numbers; see `vqp_pair/forger.rs`.
        let infos = ends.vqps[0].iter().map(|vqp| vqp.local_info().encode());
        infos.map(|info| info[42..50].to_vec()).collect::<Vec<_>>()
    };
    let of_each_vqp = objects(&ends);
    assert_eq!(of_each_vqp[0], of_each_vqp[1]);
    ends.poll(&ALL, 10);
    let link = ends.testbed.nics[0][0].id();
    ends.testbed.world.set_link(link, false);
    ends.poll(&ALL, 4000);
    assert!(ends.vqps.iter().flatten().all(|vqp| vqp.active_rail() == 1 && vqp.close_reason().is_none()));
}

/// The peer of the first vQP sends its Closed message once. The second vQP of the domain reads the
/// message from the NIC. The first vQP must still get the message.
#[test]
fn message_that_another_vqp_read_is_delivered() {
    let mut ends = Ends::new(&[[1, 2], [3, 4]]);
    ends.poll(&ALL, 10);
    ends.vqps[1][0].shutdown();
    ends.poll(&[(0, 1), (1, 1)], 400);
    assert_eq!(ends.vqps[0][0].close_reason(), None);
    ends.poll(&[(0, 0)], 1);
    assert_eq!(ends.vqps[0][0].close_reason(), Some(CloseReason::PeerClosed));
    assert_eq!(ends.vqps[0][1].close_reason(), None);
}

#[test]
fn endpoint_ends_with_the_last_vqp_and_is_made_again() {
    let mut ends = Ends::new(&[[1, 2], [3, 4]]);
    ends.poll(&ALL, 10);
    let mut first = ends.vqps[0].remove(0);
    first.close().expect("the NICs are alive");
    ends.poll(&[(0, 0), (1, 1)], 400);
    assert_eq!(ends.vqps[0][0].close_reason(), None);
    let refused = ends.domains[0].nics()[0].provider.dealloc_pd(ends.domains[0].nics()[0].pd);
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    for vqps in &mut ends.vqps {
        vqps.drain(..).for_each(|mut vqp| vqp.close().expect("the NICs are alive"));
    }
    ends.connect([5, 6]);
    ends.poll(&[(0, 0), (1, 0)], 10);
    let link = ends.testbed.nics[1][0].id();
    ends.testbed.world.set_link(link, false);
    ends.poll(&[(0, 0), (1, 0)], 4000);
    assert!(ends.vqps.iter().flatten().all(|vqp| vqp.active_rail() == 1));
    ends.vqps.iter_mut().for_each(Vec::clear);
    assert!(ends.is_empty(0) && ends.is_empty(1));
}

/// A control message names its vQP by the cookie. If two vQPs of a domain have the same cookie,
/// each must have its own endpoint.
#[test]
fn vqps_with_the_same_cookie_do_not_share_an_endpoint() {
    let mut ends = Ends::new(&[[1, 2], [1, 3]]);
    ends.poll(&ALL, 10);
    ends.vqps[1][0].shutdown();
    ends.poll(&ALL[1..], 400);
    ends.poll(&ALL[..2], 400);
    assert_eq!(ends.vqps[0][0].close_reason(), Some(CloseReason::PeerClosed));
    assert_eq!(ends.vqps[0][1].close_reason(), None);
    ends.vqps.iter_mut().for_each(Vec::clear);
    assert!(ends.is_empty(0) && ends.is_empty(1));
}

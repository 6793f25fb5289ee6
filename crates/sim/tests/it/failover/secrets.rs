//! The secrets of virtual queue pairs: random by default, reproducible in the simulator, and in no
//! debug text.

use std::sync::Arc;

use mitra_failover::{ConnectInfo, Domain, Secret, VirtualQp};
use mitra_sim::Testbed;
use mitra_verbs::Provider;

fn domain(seed: u64) -> (Testbed, Arc<Domain>) {
    let testbed = Testbed::with_config(seed, mitra_sim::Config::fault_free(), 2);
    let nics: Vec<_> = testbed.nics[0].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
    (testbed, Domain::new(nics).expect("the NICs have the resources of a domain"))
}

fn info(vqp: &VirtualQp) -> ConnectInfo {
    vqp.local_info()
}

#[test]
fn debug_text_of_vqp_and_connect_info_hides_secret() {
    let (_testbed, domain) = domain(1);
    let words: [u64; 2] = [0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00];
    let vqp = VirtualQp::builder(&domain).secret(Secret::fixed(words)).build().expect("a free vQP");
    let debug = format!("{vqp:?} {:?}", info(&vqp));
    let shown = |word: &u64| debug.contains(&word.to_string()) || debug.contains(&format!("{word:x}"));
    assert!(!words.iter().any(shown), "{debug}");
}

#[test]
fn default_secret_differs_by_vqp_and_repeats_with_seed() {
    let secret_bytes = |seed| {
        let (_testbed, domain) = domain(seed);
        [0, 1].map(|_| {
            let vqp = VirtualQp::builder(&domain).build().expect("a free vQP");
            info(&vqp).encode()[4..12].to_vec()
        })
    };
    let [a, b] = secret_bytes(1);
    assert_ne!(a, b);
    assert_eq!([a.clone(), b], secret_bytes(1));
    assert_ne!(a, secret_bytes(2)[0]);
}

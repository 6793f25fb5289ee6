//! The cases that every NIC must pass, over simulated NICs.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use mitra_conformance::{Difference, Fabric, run_all};
use mitra_sim::{Config, Testbed, seeds};
use mitra_verbs::Provider;

/// Two hosts with a NIC each, in a new world for each case.
struct SimulatedNics {
    seed: u64,
    config: Config,
    testbed: RefCell<Option<Testbed>>,
}

impl Fabric for SimulatedNics {
    fn name(&self) -> String {
        format!("simulated NICs of seed {}", self.seed)
    }

    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        let testbed = Testbed::with_config(self.seed, self.config.clone(), 1);
        let nics = testbed.nics.each_ref().map(|rails| Arc::clone(&rails[0]) as Arc<dyn Provider>);
        *self.testbed.borrow_mut() = Some(testbed);
        nics
    }

    fn wait(&self) {
        let mut testbed = self.testbed.borrow_mut();
        testbed.as_mut().expect("a case has taken the NICs").world.run_for(Duration::from_micros(1));
    }
}

/// What the simulator does not offer.
const DIFFERENCES: &[Difference] = &[
    Difference::refused("events::armed_queue_raises_one_event", "completion channels"),
    Difference::refused("events::event_is_raised_although_the_caller_polled", "completion channels"),
    Difference::refused("events::solicited_only_arming_ignores_other_completions", "completion channels"),
    Difference::refused("events::error_is_an_event_of_solicited_only_arming", "completion channels"),
    Difference::refused("events::channel_of_another_nic_is_refused", "completion channels"),
    Difference::refused("threads::threads_share_nics", "threads"),
    Difference::refused("threads::threads_share_a_queue_pair", "threads"),
    Difference::refused("datagrams::traffic_class_is_received", "traffic classes"),
    Difference::refused("multicast::members_receive_each_message_once", "multicast"),
    Difference::refused("multicast::sender_receives_its_own_message", "multicast"),
    Difference::refused("multicast::group_receives_only_its_messages", "multicast"),
    Difference::refused("multicast::detached_queue_pair_receives_nothing", "multicast"),
    Difference::refused("multicast::unicast_addresses_have_no_members", "multicast"),
];

/// The seed draws speeds and capabilities. No packet is lost.
#[test]
fn simulated_nics_pass_all_cases() {
    for seed in seeds(12) {
        let mut config = Config::swarm(seed).without_noise();
        config.capabilities.ack_after_placement = seed % 2 == 0;
        config.capabilities.write_order = seed % 3 != 0;
        let fabric = SimulatedNics { seed, config, testbed: RefCell::new(None) };
        run_all(&fabric, "").assert_expected(DIFFERENCES);
    }
}

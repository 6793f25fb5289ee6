//! Every case fails over a NIC that does the wrong thing.

mod wrong_nic;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use mitra_conformance::{CASES, Fabric, Outcome, run};
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{Nic, Provider};

use wrong_nic::{Fault, WrongNic};

/// Two software NICs with the same fault.
struct WrongNics(Fault);

impl Fabric for WrongNics {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        [(); 2].map(|()| {
            let nic = SoftNic::open(Config::loopback()).unwrap();
            nic.receive_traffic_classes().unwrap();
            Arc::new(WrongNic::new(nic, self.0)) as Arc<dyn Provider>
        })
    }

    fn wait(&self) {
        pause();
    }

    fn thread_wait(&self) -> Option<fn()> {
        Some(pause)
    }
}

fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

/// Each fault, with cases that must fail over NICs that have it.
const FAULTS: &[(Fault, &[&str])] = &[
    (
        Fault::DataShifted,
        &[
            "operations::rc_operations_on_every_mtu",
            "operations::rc_operations_of_a_nic_with_itself",
            "operations::send_with_immediate_delivers_it",
            "operations::concurrent_requests_complete_in_order",
            "operations::operations_on_passive_peer_complete",
            "operations::unsignalled_writes_arrive_without_polling",
            "operations::peer_that_stops_polling_still_executes",
            "operations::inline_data_is_delivered",
            "operations::data_is_gathered_and_scattered",
            "unreliable::uc_delivers_sends_and_writes",
            "unreliable::uc_message_without_receive_is_lost",
            "datagrams::ud_delivers_message_with_header",
            "datagrams::gsi_delivers_message",
            "multicast::members_receive_each_message_once",
        ],
    ),
    (
        Fault::NumbersMixedUp,
        &[
            "operations::concurrent_requests_complete_in_order",
            "operations::reads_beyond_the_limit_wait",
            "queues::polls_return_at_most_the_maximum",
            "shared_receives::queue_pairs_share_receives_in_order",
        ],
    ),
    (
        Fault::ImmediateLost,
        &["operations::send_with_immediate_delivers_it", "datagrams::ud_delivers_immediate"],
    ),
    (Fault::InvalidationLost, &["windows::send_with_invalidate_ends_the_binding"]),
    (
        Fault::FenceIgnored,
        &["operations::fenced_request_waits_for_reads", "operations::fenced_request_waits_for_atomics"],
    ),
    (Fault::AllSignalled, &["operations::only_signalled_requests_complete"]),
    (Fault::SignalAllIgnored, &["operations::queue_pair_that_signals_all_completes_all"]),
    (
        Fault::AddsOneMore,
        &[
            "operations::atomics_of_both_ends_lose_no_increment",
            "threads::threads_share_nics",
            "threads::threads_share_a_queue_pair",
        ],
    ),
    (
        Fault::RefusalsIgnored,
        &[
            "operations::inline_data_beyond_the_limit_is_refused",
            "queues::state_forbids_posting",
            "shared_receives::queue_pair_with_shared_queue_refuses_receives",
        ],
    ),
    (
        Fault::RefusalIndexWrong,
        &[
            "queues::full_send_queue_refuses_by_index",
            "queues::full_receive_queue_refuses_by_index",
            "shared_receives::full_shared_queue_refuses_by_index",
        ],
    ),
    (Fault::PostsSome, &["queues::posting_all_posts_none_if_one_is_refused"]),
    (
        Fault::AccessErrorsHidden,
        &[
            "refusals::wrong_remote_key_is_refused",
            "refusals::access_outside_the_region_is_refused",
            "refusals::key_of_another_protection_domain_is_refused",
            "refusals::reregistered_region_keeps_its_keys",
            "errors::requests_after_a_failed_one_are_flushed",
            "windows::window_grants_access_until_it_is_invalidated",
            "windows::invalidated_window_is_bound_again",
            "windows::window_grants_only_its_bytes",
            "windows::window_is_for_its_queue_pair_only",
            "windows::send_with_invalidate_of_a_region_is_refused",
            "windows::type_1_window_is_replaced_by_the_next_bind",
            "events::error_is_an_event_of_solicited_only_arming",
        ],
    ),
    (
        Fault::ErrorsHidden,
        &[
            "errors::wrong_local_key_fails_the_send",
            "errors::local_range_outside_the_region_fails_the_send",
            "errors::receive_with_wrong_key_fails_both_ends",
            "errors::send_longer_than_receive_fails_both_ends",
            "errors::rnr_retries_are_limited",
            "windows::region_without_bind_right_has_no_windows",
        ],
    ),
    (
        Fault::MemoryHasAllRights,
        &[
            "refusals::missing_region_right_is_refused",
            "refusals::remote_write_without_local_write_is_not_registered",
            "errors::read_into_region_without_local_write_fails",
        ],
    ),
    (Fault::QueuePairHasAllRights, &["refusals::missing_queue_pair_right_is_refused"]),
    (Fault::WindowsHaveAllRights, &["windows::window_grants_only_its_rights"]),
    (
        Fault::NothingIsDestroyed,
        &[
            "refusals::deregistered_region_is_not_accessed",
            "queues::destroyed_objects_do_not_exist",
            "windows::deallocated_window_grants_nothing",
        ],
    ),
    (Fault::AtomicsAligned, &["refusals::misaligned_atomic_is_refused"]),
    (
        Fault::NoAsyncEvents,
        &[
            "refusals::access_error_raises_event_at_responder",
            "queue_pairs::drained_send_queue_raises_event",
            "shared_receives::limit_event_is_raised_once",
            "shared_receives::failed_queue_pair_raises_last_event",
        ],
    ),
    (
        Fault::ReceivesLost,
        &[
            "errors::send_waits_for_a_receive",
            "errors::write_with_immediate_waits_for_a_receive",
            "shared_receives::send_waits_for_a_shared_receive",
        ],
    ),
    (
        Fault::ErrorStateIgnored,
        &[
            "errors::peer_in_error_state_does_not_execute",
            "errors::error_state_flushes_posted_requests",
            "errors::requests_posted_in_error_state_are_flushed",
            "errors::flush_completes_every_request_once",
        ],
    ),
    (Fault::ResetIgnored, &["errors::reset_discards_requests_and_the_queue_pair_connects_again"]),
    (Fault::DrainIgnored, &["queue_pairs::drained_send_queue_holds_new_requests"]),
    (Fault::StateIsReset, &["queue_pairs::states_and_attributes_are_reported"]),
    (Fault::ChangesAllowed, &["queue_pairs::forbidden_changes_are_refused"]),
    (Fault::PsnFrozen, &["queue_pairs::psn_counts_packets", "queue_pairs::psn_stays_in_error_state"]),
    (Fault::SavedResultsReversed, &["queue_pairs::saved_results_are_those_of_the_last_atomics"]),
    (Fault::NumbersReused, &["queue_pairs::numbers_are_not_reused_at_once"]),
    (
        Fault::UsedObjectsDestroyed,
        &[
            "queues::used_objects_are_busy",
            "windows::region_with_bound_window_is_busy",
            "multicast::detached_queue_pair_receives_nothing",
        ],
    ),
    (Fault::PollsTooMuch, &["queues::polls_return_at_most_the_maximum"]),
    (Fault::ResizeLoses, &["queues::resized_completion_queue_keeps_completions"]),
    (Fault::LimitsRounded, &["queues::limits_of_queue_pairs_are_checked"]),
    (Fault::SharedQueueNotResized, &["shared_receives::resized_shared_queue_keeps_receives"]),
    (
        Fault::NotificationsLost,
        &["events::armed_queue_raises_one_event", "events::event_is_raised_although_the_caller_polled"],
    ),
    (Fault::SolicitedIgnored, &["events::solicited_only_arming_ignores_other_completions"]),
    (Fault::ForeignChannelsIgnored, &["events::channel_of_another_nic_is_refused"]),
    (Fault::QKeyIgnored, &["datagrams::ud_checks_the_q_key"]),
    (Fault::NoTrafficClass, &["datagrams::traffic_class_is_received"]),
    (Fault::NoLoopback, &["multicast::sender_receives_its_own_message"]),
    (Fault::OneGroup, &["multicast::group_receives_only_its_messages"]),
    (Fault::AnyGroup, &["multicast::unicast_addresses_have_no_members"]),
];

#[test]
fn every_case_fails_over_nics_with_its_fault() {
    let pairs: Vec<_> =
        FAULTS.iter().flat_map(|(fault, names)| names.iter().map(move |name| (*fault, *name))).collect();
    let (next, wrong) = (Mutex::new(pairs.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((fault, name)) = next.lock().unwrap().next() else { break };
                    let case = CASES.iter().find(|case| case.name == *name);
                    let outcome = run(&WrongNics(*fault), case.unwrap_or_else(|| panic!("no case {name}")));
                    println!("{fault:?}: {name}: {outcome}");
                    if !matches!(outcome, Outcome::Failed(_)) {
                        wrong.lock().unwrap().push(format!("{fault:?}: {name}: {outcome}"));
                    }
                }
            });
        }
    });
    assert_eq!(wrong.into_inner().unwrap(), [""; 0]);
    let covered: BTreeSet<_> = pairs.iter().map(|(_, name)| *name).collect();
    let missing: Vec<_> = CASES.iter().map(|case| case.name).filter(|name| !covered.contains(name)).collect();
    assert_eq!(missing, [""; 0], "these cases fail over no NIC");
}

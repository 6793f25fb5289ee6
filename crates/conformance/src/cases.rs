//! The list of cases.

mod datagrams;
mod errors;
mod events;
mod multicast;
mod operations;
mod queue_pairs;
mod queues;
mod refusals;
mod shared_receives;
mod threads;
mod unreliable;
mod windows;

pub use operations::rc_operations;

use crate::{CaseResult, Fabric};

/// A test case over two NICs.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name, which says what is expected.
    pub name: &'static str,
    /// The body, which panics or returns why it stopped.
    pub run: fn(&dyn Fabric) -> CaseResult,
}

/// Makes a list of cases from the paths of their functions. A case has the name of its function.
macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$(Case { name: concat!(stringify!($module), "::", stringify!($name)), run: $module::$name }),*]
    };
}

/// All cases. A case that needs what some NICs lack is about that alone.
pub const CASES: &[Case] = &cases![
    operations::rc_operations_on_every_mtu,
    operations::rc_operations_of_a_nic_with_itself,
    operations::send_with_immediate_delivers_it,
    operations::concurrent_requests_complete_in_order,
    operations::operations_on_passive_peer_complete,
    operations::unsignalled_writes_arrive_without_polling,
    operations::peer_that_stops_polling_still_executes,
    operations::inline_data_is_delivered,
    operations::inline_data_beyond_the_limit_is_refused,
    operations::data_is_gathered_and_scattered,
    operations::only_signalled_requests_complete,
    operations::queue_pair_that_signals_all_completes_all,
    operations::fenced_request_waits_for_reads,
    operations::fenced_request_waits_for_atomics,
    operations::reads_beyond_the_limit_wait,
    operations::atomics_of_both_ends_lose_no_increment,
    refusals::wrong_remote_key_is_refused,
    refusals::access_outside_the_region_is_refused,
    refusals::missing_region_right_is_refused,
    refusals::missing_queue_pair_right_is_refused,
    refusals::key_of_another_protection_domain_is_refused,
    refusals::deregistered_region_is_not_accessed,
    refusals::misaligned_atomic_is_refused,
    refusals::access_error_raises_event_at_responder,
    refusals::remote_write_without_local_write_is_not_registered,
    refusals::reregistered_region_keeps_its_keys,
    errors::wrong_local_key_fails_the_send,
    errors::local_range_outside_the_region_fails_the_send,
    errors::read_into_region_without_local_write_fails,
    errors::receive_with_wrong_key_fails_both_ends,
    errors::send_longer_than_receive_fails_both_ends,
    errors::send_waits_for_a_receive,
    errors::write_with_immediate_waits_for_a_receive,
    errors::rnr_retries_are_limited,
    errors::peer_in_error_state_does_not_execute,
    errors::requests_after_a_failed_one_are_flushed,
    errors::error_state_flushes_posted_requests,
    errors::requests_posted_in_error_state_are_flushed,
    errors::flush_completes_every_request_once,
    errors::reset_discards_requests_and_the_queue_pair_connects_again,
    queue_pairs::states_and_attributes_are_reported,
    queue_pairs::forbidden_changes_are_refused,
    queue_pairs::psn_counts_packets,
    queue_pairs::psn_stays_in_error_state,
    queue_pairs::saved_results_are_those_of_the_last_atomics,
    queue_pairs::drained_send_queue_holds_new_requests,
    queue_pairs::drained_send_queue_raises_event,
    queue_pairs::numbers_are_not_reused_at_once,
    queues::full_send_queue_refuses_by_index,
    queues::full_receive_queue_refuses_by_index,
    queues::posting_all_posts_none_if_one_is_refused,
    queues::state_forbids_posting,
    queues::used_objects_are_busy,
    queues::destroyed_objects_do_not_exist,
    queues::polls_return_at_most_the_maximum,
    queues::resized_completion_queue_keeps_completions,
    queues::limits_of_queue_pairs_are_checked,
    shared_receives::queue_pairs_share_receives_in_order,
    shared_receives::send_waits_for_a_shared_receive,
    shared_receives::limit_event_is_raised_once,
    shared_receives::full_shared_queue_refuses_by_index,
    shared_receives::queue_pair_with_shared_queue_refuses_receives,
    shared_receives::failed_queue_pair_raises_last_event,
    shared_receives::resized_shared_queue_keeps_receives,
    windows::window_grants_access_until_it_is_invalidated,
    windows::invalidated_window_is_bound_again,
    windows::window_grants_only_its_rights,
    windows::window_grants_only_its_bytes,
    windows::window_is_for_its_queue_pair_only,
    windows::send_with_invalidate_ends_the_binding,
    windows::send_with_invalidate_of_a_region_is_refused,
    windows::region_without_bind_right_has_no_windows,
    windows::region_with_bound_window_is_busy,
    windows::deallocated_window_grants_nothing,
    windows::type_1_window_is_replaced_by_the_next_bind,
    events::armed_queue_raises_one_event,
    events::event_is_raised_although_the_caller_polled,
    events::solicited_only_arming_ignores_other_completions,
    events::error_is_an_event_of_solicited_only_arming,
    events::channel_of_another_nic_is_refused,
    threads::threads_share_nics,
    threads::threads_share_a_queue_pair,
    unreliable::uc_delivers_sends_and_writes,
    unreliable::uc_message_without_receive_is_lost,
    datagrams::ud_delivers_message_with_header,
    datagrams::ud_delivers_immediate,
    datagrams::ud_checks_the_q_key,
    datagrams::gsi_delivers_message,
    datagrams::traffic_class_is_received,
    multicast::members_receive_each_message_once,
    multicast::sender_receives_its_own_message,
    multicast::group_receives_only_its_messages,
    multicast::detached_queue_pair_receives_nothing,
    multicast::unicast_addresses_have_no_members,
];

//! C programs that use the verbs through the preloaded library, on one or several rails.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use mitra_test_process::{links, variants};

use crate::c_program::{self, build, build_with};

static REFUSED_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build("refused_calls"));
static TWO_PROCESSES: LazyLock<PathBuf> = LazyLock::new(|| build("two_processes"));
static ADDRESSES: LazyLock<PathBuf> = LazyLock::new(|| build("addresses"));
static PERMISSIONS: LazyLock<PathBuf> = LazyLock::new(|| build("permissions"));
static WINDOWS: LazyLock<PathBuf> = LazyLock::new(|| build("windows"));
static LIMITS: LazyLock<PathBuf> = LazyLock::new(|| build("limits"));
static MEMORY_REGIONS: LazyLock<PathBuf> = LazyLock::new(|| build("memory_regions"));
static DEVICE_AND_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("device_and_rails"));
static CONNECT_WITHOUT_RAIL_0: LazyLock<PathBuf> = LazyLock::new(|| build("connect_without_rail_0"));
static CHANGED_ADDRESSES: LazyLock<PathBuf> = LazyLock::new(|| build("changed_addresses"));
static DEVICE_MEMORY: LazyLock<PathBuf> = LazyLock::new(|| build("device_memory"));
static NIC_EVENTS: LazyLock<PathBuf> = LazyLock::new(|| build("nic_events"));
static RC_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("rc_rails"));
static XRC: LazyLock<PathBuf> = LazyLock::new(|| build("xrc"));
static XRC_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("xrc_rails"));
static FORKS: LazyLock<PathBuf> = LazyLock::new(|| build("forks"));
static COMPLETIONS: LazyLock<PathBuf> = LazyLock::new(|| build("completions"));
static MULTICAST: LazyLock<PathBuf> = LazyLock::new(|| build("multicast"));
static OBJECTS: LazyLock<PathBuf> = LazyLock::new(|| build("objects"));
static CALLS_WITHOUT_POLLS: LazyLock<PathBuf> = LazyLock::new(|| build("calls_without_polls"));
static DATAGRAM_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build("datagram_calls"));
static DATAGRAM_STATES: LazyLock<PathBuf> = LazyLock::new(|| build("datagram_states"));
static DATAGRAM_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("datagram_rails"));
static UC_QUEUE_PAIRS: LazyLock<PathBuf> = LazyLock::new(|| build("uc_queue_pairs"));
static UC_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("uc_rails"));
static SHARED_ATOMICS: LazyLock<PathBuf> = LazyLock::new(|| build("shared_atomics"));
static ACKNOWLEDGEMENTS: LazyLock<PathBuf> = LazyLock::new(|| build_with("acknowledgements", &["-lrdmacm"]));
static CQEX_THREADS: LazyLock<PathBuf> = LazyLock::new(|| build("cqex_threads"));
static EDGE_ASYNC: LazyLock<PathBuf> = LazyLock::new(|| build("edge_async"));
static EDGE_COMP_UNREAD: LazyLock<PathBuf> = LazyLock::new(|| build("edge_comp_unread"));
static FLUSH_INIT: LazyLock<PathBuf> = LazyLock::new(|| build("flush_init"));
static CANCEL_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build_with("cancel_calls", &["-lrdmacm"]));
static CANCEL_WAITER: LazyLock<PathBuf> = LazyLock::new(|| build_with("cancel_waiter", &["-lrdmacm"]));
static DEAD_WAITERS: LazyLock<PathBuf> = LazyLock::new(|| build_with("dead_waiters", &["-lrdmacm"]));
static DESCRIPTORS: LazyLock<PathBuf> = LazyLock::new(|| build_with("descriptors", &["-lrdmacm"]));
static DESTROYED_WHILE_WAITING: LazyLock<PathBuf> =
    LazyLock::new(|| build_with("destroyed_while_waiting", &["-lrdmacm"]));
static SA_RESTART: LazyLock<PathBuf> = LazyLock::new(|| build_with("sa_restart", &["-lrdmacm"]));
static SHARED_CHANNEL: LazyLock<PathBuf> = LazyLock::new(|| build("shared_channel"));
static DEVICE_FILE_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build("device_file_calls"));
static SYSFS_MATRIX: LazyLock<PathBuf> = LazyLock::new(|| build("sysfs_matrix"));
static SYSFS_VALUES: LazyLock<PathBuf> = LazyLock::new(|| build("sysfs_values"));
static CONFORMANCE: LazyLock<PathBuf> = LazyLock::new(|| build("conformance"));
static PUBLIC_FIELDS: LazyLock<PathBuf> = LazyLock::new(|| build("public_fields"));
static PACKET_NUMBERS: LazyLock<PathBuf> = LazyLock::new(|| build("packet_numbers"));
static ARBITRARY_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build("arbitrary_calls"));

/// The environment variable with which queue pairs have a completion log.
const LOG: (&str, &str) = ("MITRA_LOG", "1");

/// The number of rails, and a variable.
type Rails = (&'static str, Option<(&'static str, &'static str)>);

/// Runs a scenario of a program in the variants that the run selects. Each must succeed. An alarm
/// ends a program that hangs.
fn run(program: &Path, arguments: &[&str], rails: &[Rails]) {
    for ((rails, variable), links) in selected(program, arguments, rails) {
        let variables: Vec<_> = [("MITRA_LINKS", &*links)].into_iter().chain(variable).collect();
        let output = c_program::run(program, rails, arguments, &variables);
        let written = String::from_utf8_lossy(&output.stderr);
        let name = program.display();
        assert!(
            output.status.success(),
            "{name} {arguments:?} on {rails} rails with {variables:?}: {}\n{written}",
            output.status
        );
    }
}

/// Returns the rails and the value of `MITRA_LINKS` of each variant that runs.
fn selected<T: Clone + Debug>(program: &Path, arguments: &[&str], rails: &[T]) -> Vec<(T, String)> {
    let program = program.file_name().expect("a program is a file").display();
    let all = |rails: &T| links().into_iter().map(move |links| (rails.clone(), links)).collect::<Vec<_>>();
    variants(&format!("{program} {arguments:?} {rails:?}"), &rails.iter().flat_map(all).collect::<Vec<_>>())
}

pub fn on_one_rail(program: &Path, scenario: &str) {
    run(program, &[scenario], &[("1", None)]);
}

pub fn on_two_rails(program: &Path, scenario: &str) {
    run(program, &[scenario], &[("2", None)]);
}

fn on_two_or_three_rails(program: &Path, scenario: &str) {
    run(program, &[scenario], &[("2", None), ("3", None)]);
}

fn on_minimal_nics(program: &Path, scenario: &str) {
    let minimal = Some(("MITRA_NICS", "minimal"));
    run(program, &[scenario], &[("1", minimal), ("2", minimal)]);
}

fn on_two_rails_with_log_or_without(program: &Path, scenario: &str) {
    run(program, &[scenario], &[("2", None), ("2", Some(LOG))]);
}

fn on_several_rails(program: &Path, scenario: &str) {
    run(program, &[scenario], &[("2", None), ("2", Some(LOG)), ("3", None)]);
}

fn on_three_rails(program: &Path, scenario: &str) {
    run(program, &[scenario], &[("3", None)]);
}

/// Defines a module for each scenario of a program. The list in parentheses names the functions
/// above for which the module has a test.
macro_rules! scenarios {
    ($program:ident $devices:tt: $($name:ident)*) => {
        $(mod $name { $crate::c_programs::scenarios! { @tests $program $name $devices } })*
    };
    (@tests $program:ident $name:ident ($($device:ident)*)) => {$(
        #[test]
        fn $device() {
            super::$device(&super::$program, stringify!($name));
        }
    )*};
}
pub(crate) use scenarios;

scenarios! { TWO_PROCESSES (on_one_rail on_two_rails): unmapped killed killed_idle forks forks_during_progress late_acknowledgement destroyed_while_polled exits_in_signal_handler peer_closed read_only sleepers shared_receives }

scenarios! { MULTICAST (on_one_rail on_two_rails): multicast }

scenarios! { DEVICE_AND_RAILS (on_one_rail on_two_rails): port_events device_fatal access_error last_wqe_reached registration_after_nic_death resets resets_in_turn connected_to_itself rnr_retries_are_limited solicited events_of_destroyed_objects limit_events }

scenarios! { DEVICE_AND_RAILS (on_two_rails_with_log_or_without): completion_log }

scenarios! { CALLS_WITHOUT_POLLS (on_one_rail on_two_rails): query_port query_qp register_and_deregister create_and_destroy }

mod rc_rails {
    use super::*;

    scenarios! { RC_RAILS (on_two_rails): link_down nic_dead nic_hung link_down_at_peer nic_dead_at_peer nic_hung_at_peer down_from_start in_turn renewed new_addresses peer_killed two_domains same_process }
}

scenarios! { XRC (on_one_rail on_several_rails): xrc_operations xrc_wrong_number xrc_limit_event xrc_domains xrc_refused xrc_queue_pair_first xrc_two_queues xrc_two_contexts }

scenarios! { XRC_RAILS (on_one_rail): xrc_without_failure }

scenarios! { XRC_RAILS (on_several_rails): xrc_link_fails xrc_rails_fail_in_turn xrc_nic_dies xrc_nic_hangs xrc_nic_is_dead xrc_addresses_change }

scenarios! { OBJECTS (on_one_rail on_two_rails): foreign_handles destroyed_twice destroyed_by_threads closed_context overwritten_number shared_by_queue_pairs busy inherited domains resized }

scenarios! { COMPLETIONS (on_one_rail on_two_rails): windows_of_type_1 keys_of_windows refused_by_completion }

scenarios! { FORKS (on_one_rail on_two_rails): while_opening while_explaining child_device }

scenarios! { PUBLIC_FIELDS (on_one_rail on_two_rails): state_of_queue_pair attributes_left_alone granted_capacities acknowledged_completion_events acknowledged_queue_errors acknowledged_queue_pair_events acknowledged_limit_events mutexes_and_conditions identities regions_and_windows opened_queue_pairs }

mod two_rails_query_qp {
    use super::*;

    scenarios! { PACKET_NUMBERS (on_one_rail on_two_or_three_rails): numbers_advance state_and_number_after_nak numbers_of_one_queue_pair }
}

scenarios! { PACKET_NUMBERS (on_two_or_three_rails): numbers_advance_across_failovers }

scenarios! { DEVICE_MEMORY (on_one_rail on_two_rails): allocation copies inherited_device }

scenarios! { DEVICE_MEMORY (on_one_rail on_several_rails): operations }

scenarios! { NIC_EVENTS (on_one_rail on_two_rails): established drained overflowed reported_once }

scenarios! { ADDRESSES (on_one_rail on_two_rails): gid_table network_device gid_indices traffic_class }

mod changed_addresses {
    use super::*;

    scenarios! { CHANGED_ADDRESSES (on_one_rail on_two_rails): table_and_event }

    scenarios! { CHANGED_ADDRESSES (on_one_rail): connection_of_one_rail }

    scenarios! { CHANGED_ADDRESSES (on_several_rails): connection later_connections own_connections }
}

scenarios! { MEMORY_REGIONS (on_one_rail on_two_rails): unregisterable reregistration null_regions on_demand }

scenarios! { MEMORY_REGIONS (on_minimal_nics): without_on_demand }

scenarios! { PERMISSIONS (on_one_rail on_several_rails): queue_pair_flags changed_flags region_flags foreign_regions unknown_keys messages shared_messages shared_short_receives shared_immediates failovers datagrams unreliable_writes }

scenarios! { WINDOWS (on_one_rail on_several_rails): window_rights invalidations refused_invalidations window_bound_for_all binds_wake_sleepers refused_binds }

scenarios! { LIMITS (on_one_rail on_several_rails): capacities requests objects completions shared_receive_queues }

scenarios! { LIMITS (on_one_rail on_two_rails): reported_numbers }

scenarios! { CONFORMANCE (on_one_rail on_two_or_three_rails): receive_flags message_longer_than_receive receives_in_reset receives_beyond_region objects_of_another_context address_handle_of_another_domain zero_based_windows }

scenarios! { ACKNOWLEDGEMENTS (on_one_rail on_two_or_three_rails): ack_lost_at_exit_exit ack_lost_at_exit_kill ack_lost_at_exit_exec ack_lost_at_exit_return ack_lost_after_answers last_send_flushed_told last_send_flushed_disconnected cq_order_polling cq_order_events }

/// Programs made from reports of users. A program prints its expectations, and exits with 1 if an
/// expectation fails.
pub mod reports {
    use super::*;

    pub const ONE: [&str; 1] = ["1"];
    pub const SEVERAL: [&str; 2] = ["2", "3"];

    pub fn on_all_rails(program: &Path, arguments: &[&str]) {
        on_rails(&ONE, program, arguments);
        on_rails(&SEVERAL, program, arguments);
    }

    /// Runs a program in the variants that the run selects.
    pub fn on_rails(rails: &[&str], program: &Path, arguments: &[&str]) {
        for (rails, links) in selected(program, arguments, rails) {
            run_report(program, rails, arguments, &[("MITRA_LINKS", &links)]);
        }
    }

    fn run_report(program: &Path, rails: &str, arguments: &[&str], variables: &[(&str, &str)]) {
        let output = c_program::run(program, rails, arguments, variables);
        let [written, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(
            output.status.success(),
            "{rails} rails, {variables:?}: {}\n{written}\n{errors}",
            output.status
        );
    }

    #[test]
    fn cqex_threads() {
        on_all_rails(&CQEX_THREADS, &["3", "4000"]);
        on_all_rails(&CQEX_THREADS, &["3", "4000", "with_poll_cq"]);
    }

    #[test]
    fn edge_async() {
        on_all_rails(&EDGE_ASYNC, &[]);
    }

    #[test]
    fn edge_comp_unread() {
        on_all_rails(&EDGE_COMP_UNREAD, &[]);
    }

    #[test]
    fn flush_init() {
        on_all_rails(&FLUSH_INIT, &[]);
    }

    #[test]
    fn sa_restart() {
        on_all_rails(&SA_RESTART, &[]);
    }

    #[test]
    fn destroyed_while_waiting() {
        on_all_rails(&DESTROYED_WHILE_WAITING, &[]);
    }

    #[test]
    fn cancel_waiter() {
        on_all_rails(&CANCEL_WAITER, &[]);
    }

    #[test]
    fn cancel_calls() {
        on_all_rails(&CANCEL_CALLS, &["20"]);
    }

    #[test]
    fn shared_channel() {
        on_all_rails(&SHARED_CHANNEL, &["100"]);
    }

    #[test]
    fn descriptors() {
        on_all_rails(&DESCRIPTORS, &[]);
    }

    #[test]
    fn device_file_calls() {
        on_all_rails(&DEVICE_FILE_CALLS, &[]);
    }

    #[test]
    fn sysfs_matrix() {
        on_all_rails(&SYSFS_MATRIX, &[]);
    }

    #[test]
    fn sysfs_values() {
        on_all_rails(&SYSFS_VALUES, &[]);
    }

    #[test]
    fn dead_waiters() {
        for failure in ["nic-dead", "nic-hung"] {
            let one = selected(&DEAD_WAITERS, &[failure], &ONE);
            for (rails, links) in one.into_iter().chain(selected(&DEAD_WAITERS, &[failure], &SEVERAL)) {
                let count = rails.parse().expect("it is a number");
                let faults: Vec<String> =
                    (0..count).map(|rail| format!("rail{rail} {failure} at 1s")).collect();
                let variables = [("MITRA_FAULTS", &*faults.join("; ")), ("MITRA_LINKS", &links)];
                run_report(&DEAD_WAITERS, rails, &[], &variables);
            }
        }
    }
}

scenarios! { DATAGRAM_CALLS (on_one_rail on_two_or_three_rails): many_datagrams numbers_of_datagrams unsignalled full_while_drained flushed established_once short_receives all_signalled refused }

mod datagram_states {
    use super::*;

    scenarios! { DATAGRAM_STATES (on_one_rail on_two_or_three_rails): receives_refused sends_refused error_state reset_state drained_once overflowed invalid_receive shared_receives }
}

scenarios! { DATAGRAM_RAILS (on_two_or_three_rails): nic_is_dead link_fails_at_asker link_fails_at_answerer nic_dies_at_asker nic_dies_at_answerer nic_hangs both_nics_die down_at_answerer rails_fail_in_turn addresses_change_at_asker addresses_change_at_answerer shared_queue sends_to_itself group group_without_rail_0 }

mod uc_rails {
    use super::*;

    scenarios! { UC_RAILS (on_one_rail on_two_rails): peer_destroyed send_queue_error resets connected_to_itself shared_send_queue_error }

    scenarios! { UC_RAILS (on_two_or_three_rails): link_fails_at_asker link_fails_at_answerer nic_dies_at_asker nic_dies_at_answerer nic_hangs both_nics_die down_from_the_start rails_fail_in_turn addresses_change_at_asker addresses_change_at_answerer link_fails_at_sender link_fails_at_receiver nic_dies_at_sender nic_dies_at_receiver }

    scenarios! { UC_RAILS (on_two_or_three_rails): shared_link_fails_at_asker shared_link_fails_at_answerer shared_nic_dies_at_answerer shared_nic_hangs shared_rails_fail_in_turn shared_link_fails_at_receiver shared_nic_dies_at_receiver }
}

scenarios! { UC_QUEUE_PAIRS (on_one_rail on_two_or_three_rails): window_of_type_2 window_of_type_1 window_before_connection refused_operations unconnected_peer message_after_connection short_shared_receives shared_receives_of_two }

scenarios! { SHARED_ATOMICS (on_two_rails_with_log_or_without): link_of_one_client nic_of_one_client region_registered_later right_given_later }

// One end or both ends lose all rails but one, which is the last in most scenarios.
scenarios! { CONNECT_WITHOUT_RAIL_0 (on_two_or_three_rails): one_end_is_down both_ends_are_down one_nic_is_dead both_nics_are_dead goes_down_while_connecting recovers_on_last recovers_on_last_of_both recovers_on_first recovers_on_last_after_hangs }

// Each end loses a different rail.
scenarios! { CONNECT_WITHOUT_RAIL_0 (on_three_rails): recovers_on_third }

mod messages_name_the_killed_peer {
    use super::*;

    fn with_links(links: &str) {
        let output = c_program::run(&TWO_PROCESSES, "2", &["killed"], &[("MITRA_LINKS", links)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.contains("the peer's process has ended or closed its NICs"), "{stderr}");
        assert!(!stderr.contains("peer_timeout"), "{stderr}");
    }

    #[test]
    fn by_default() {
        with_links("auto");
    }

    /// The heartbeats to the killed peer are dropped, so only the questions are refused.
    #[test]
    fn with_shared_memory_only() {
        with_links("shm");
    }
}

/// The search for the peer's device is a multicast, for which there is no link.
#[test]
fn shm_only_rail0_down() {
    for scenario in ["one_end_is_down", "both_ends_are_down"] {
        let output = c_program::run(&CONNECT_WITHOUT_RAIL_0, "2", &[scenario], &[("MITRA_LINKS", "shm")]);
        assert!(output.status.success(), "{scenario}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

mod refused_calls {
    #[test]
    fn on_one_rail() {
        super::run(&super::REFUSED_CALLS, &[], &[("1", None)]);
    }

    #[test]
    fn on_two_rails() {
        super::run(&super::REFUSED_CALLS, &[], &[("2", None)]);
    }
}

/// Calls with arbitrary arguments. The program's arguments are the first seed and the number of
/// seeds, so `SEED 1` repeats one run.
mod arbitrary_calls {
    #[test]
    fn on_one_rail() {
        super::run(&super::ARBITRARY_CALLS, &["0", "200"], &[("1", None)]);
    }

    #[test]
    fn on_two_rails() {
        super::run(&super::ARBITRARY_CALLS, &["0", "40"], &[("2", None)]);
    }
}

//! C programs that use the verbs through the preloaded library. Each scenario runs on one rail and on two, and those about permissions
//! and limits on three.

mod c_program;
mod rdma_core;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use c_program::{build, command};
use rdma_core::output_of;

static REFUSED_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build("refused_calls"));
static TWO_PROCESSES: LazyLock<PathBuf> = LazyLock::new(|| build("two_processes"));
static ADDRESSES: LazyLock<PathBuf> = LazyLock::new(|| build("addresses"));
static PERMISSIONS: LazyLock<PathBuf> = LazyLock::new(|| build("permissions"));
static LIMITS: LazyLock<PathBuf> = LazyLock::new(|| build("limits"));
static MEMORY_REGIONS: LazyLock<PathBuf> = LazyLock::new(|| build("memory_regions"));
static DEVICE_AND_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("device_and_rails"));
static CONNECT_WITHOUT_RAIL_0: LazyLock<PathBuf> = LazyLock::new(|| build("connect_without_rail_0"));
static XRC: LazyLock<PathBuf> = LazyLock::new(|| build("xrc"));
static OBJECTS: LazyLock<PathBuf> = LazyLock::new(|| build("objects"));

/// Runs a program, which ends by an alarm if it hangs.
fn run(program: &Path, arguments: &[&str], rails: &str) {
    run_with(program, arguments, rails, &[]);
}

fn run_with(program: &Path, arguments: &[&str], rails: &str, variables: &[(&str, &str)]) {
    output_of(command(program, rails).args(arguments).envs(variables.iter().copied()));
}

macro_rules! scenarios {
    ($program:ident: $($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_one_rail() {
                super::run(&super::$program, &[stringify!($name)], "1");
            }

            #[test]
            fn on_two_rails() {
                super::run(&super::$program, &[stringify!($name)], "2");
            }
        }
    )*};
}

scenarios! { TWO_PROCESSES: unmapped killed killed_idle forks forks_during_progress late_acknowledgement destroyed_while_polled exits_in_signal_handler peer_closed read_only sleepers shared_receives multicast }

scenarios! { DEVICE_AND_RAILS: port_events device_fatal access_error last_wqe_reached registration_after_nic_death resets connected_to_itself rnr_retries_are_limited solicited }

scenarios! { XRC: xrc_operations xrc_wrong_number xrc_domains xrc_refused }

scenarios! { OBJECTS: foreign_handles destroyed_twice busy inherited domains resized windows_of_type_1 keys_of_windows refused_by_completion }

scenarios! { ADDRESSES: gid_table network_device gid_indices traffic_class }

scenarios! { MEMORY_REGIONS: unregisterable reregistration null_regions on_demand }

/// Scenarios that run on one, two and three rails, and on two with a completion log.
macro_rules! scenarios_on_any_rails {
    ($program:ident: $($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_one_rail() {
                super::run(&super::$program, &[stringify!($name)], "1");
            }

            #[test]
            fn on_two_rails() {
                super::run(&super::$program, &[stringify!($name)], "2");
            }

            #[test]
            fn on_two_rails_with_log() {
                super::run_with(&super::$program, &[stringify!($name)], "2", &[("MITRA_LOG", "1")]);
            }

            #[test]
            fn on_three_rails() {
                super::run(&super::$program, &[stringify!($name)], "3");
            }
        }
    )*};
}

scenarios_on_any_rails! { PERMISSIONS: queue_pair_flags changed_flags region_flags foreign_regions unknown_keys messages shared_messages shared_immediates windows failovers datagrams unreliable_writes }

scenarios_on_any_rails! { LIMITS: capacities requests objects completions }

/// Scenarios in which all rails but the last are lost.
macro_rules! scenarios_of_lost_rails {
    ($program:ident: $($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_two_rails() {
                super::run(&super::$program, &[stringify!($name)], "2");
            }

            #[test]
            fn on_three_rails() {
                super::run(&super::$program, &[stringify!($name)], "3");
            }
        }
    )*};
}

scenarios_of_lost_rails! { CONNECT_WITHOUT_RAIL_0: one_end_is_down both_ends_are_down one_nic_is_dead both_nics_are_dead goes_down_while_connecting }

mod completion_log {
    #[test]
    fn enabled() {
        super::run_with(&super::DEVICE_AND_RAILS, &["completion_log"], "2", &[("MITRA_LOG", "1")]);
    }

    #[test]
    fn disabled() {
        super::run(&super::DEVICE_AND_RAILS, &["completion_log"], "2");
    }
}

mod refused_calls {
    #[test]
    fn on_one_rail() {
        super::run(&super::REFUSED_CALLS, &[], "1");
    }

    #[test]
    fn on_two_rails() {
        super::run(&super::REFUSED_CALLS, &[], "2");
    }
}

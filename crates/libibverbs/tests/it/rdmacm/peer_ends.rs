//! Peers that end, or whose addresses move.

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::c_program::build_with;
use crate::c_programs::{on_one_rail, on_two_rails, scenarios};

static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build_with("peer_ends", &["-lrdmacm"]));

scenarios! { PROGRAM (on_one_rail on_two_rails): killed_when_established killed_before_reply killed_before_rtu destructor_waits_for_the_end exits_in_signal_handler addresses_move other_process_takes_the_address succeeded_by_verbs_only succeeded_by_an_identifier destroyed_listener_is_shared }

scenarios! { PROGRAM (on_two_rails): killed_while_rail_0_is_down }

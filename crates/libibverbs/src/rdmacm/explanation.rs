//! The explanations of refused calls of librdmacm.

use nix::errno::Errno;

/// Returns the rule that a call broke and the way out. Returns `None` for an error of the network
/// or the operating system, and for an error in the normal course of a program.
pub fn rule(call: &str, errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::EINVAL => rule_of_invalid_call(call),
        Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EPROTONOSUPPORT => Some(missing_feature(call)),
        Errno::EAFNOSUPPORT => Some("the address is neither an IPv4 nor an IPv6 address; use one of these"),
        Errno::EADDRNOTAVAIL if call == "rdma_leave_multicast" => {
            Some("the identifier is not a member of this group; pass the address with which it joined")
        }
        Errno::EISCONN if call == "rdma_notify" => {
            Some("the connection is established already; leave the call out")
        }
        Errno::ENODEV => {
            Some("the device cannot be opened; run the program under `mitra run`, and see the line above")
        }
        _ => None,
    }
}

fn missing_feature(call: &str) -> &'static str {
    match call {
        "rdma_create_id" | "rdma_create_ep" => {
            "RDMA_PS_IPOIB needs InfiniBand, and the device has RoCE; use RDMA_PS_TCP or RDMA_PS_UDP"
        }
        "rdma_set_option" => {
            "the device has no such option; leave it out (a RoCE device has no path records of a subnet administrator)"
        }
        "rdma_join_multicast_ex" => "comp_mask has an unknown bit; set address and join flags only",
        "rdma_set_local_ece" | "rdma_get_remote_ece" => {
            "the device has no enhanced connection establishment; connect without the call"
        }
        "rsocket" => {
            "rsockets access private data that librdmacm keeps behind its identifiers, and Mitra's have none; use \
             rdma_create_id, or a socket"
        }
        _ => "the device does not have the feature; leave the call out",
    }
}

fn rule_of_invalid_call(call: &str) -> Option<&'static str> {
    Some(match call {
        "rdma_create_id" => {
            "the event channel is unknown; create it with rdma_create_event_channel, or pass NULL"
        }
        "rdma_bind_addr" => {
            "the identifier is unknown or bound already, or the address is NULL; bind a new identifier"
        }
        "rdma_resolve_addr" => {
            "the identifier is unknown or its address is resolved already, or the destination is NULL; resolve a new \
             identifier"
        }
        "rdma_resolve_route" => "the address is not resolved; wait for the event of rdma_resolve_addr first",
        "rdma_listen" => "the identifier is unknown or in use; listen with a new or a bound identifier",
        "rdma_connect" => {
            "the route is not resolved, the identifier is in use already, or the private data is too long (56 bytes; \
             180 for RDMA_PS_UDP); wait for the event of rdma_resolve_route, and shorten the data"
        }
        "rdma_accept" | "rdma_reject" | "rdma_reject_ece" => {
            "the identifier has no open request, its peer has given up, or the private data is too long; use the \
             identifier of a RDMA_CM_EVENT_CONNECT_REQUEST event, once"
        }
        "rdma_establish" => "the identifier has no response; wait for RDMA_CM_EVENT_CONNECT_RESPONSE first",
        "rdma_create_qp" | "rdma_create_qp_ex" => {
            "the identifier is bound to no device or has a queue pair already, or the protection domain or a completion \
             queue belongs to another device; resolve or bind the address first"
        }
        "rdma_create_srq" | "rdma_create_srq_ex" => {
            "the identifier has a shared receive queue already or no protection domain; pass one of its device"
        }
        "rdma_init_qp_attr" => {
            "the attributes for this state are not known yet; connect or accept first, and set qp_state to INIT, RTR or RTS"
        }
        "rdma_join_multicast" | "rdma_join_multicast_ex" => {
            "the identifier is not a bound RDMA_PS_UDP identifier, or the address is not a multicast address; bind it first"
        }
        "rdma_get_request" => "the identifier is not a synchronous listener; create it with rdma_create_ep",
        "rdma_set_option" => {
            "the identifier is unknown, or the option or its length is; see rdma_set_option(3)"
        }
        "rdma_getaddrinfo" => "node, service and hints are all NULL; pass one of them",
        "rdma_get_cm_event" => "the event channel is unknown; create it with rdma_create_event_channel",
        // Both ends disconnect after an orderly end, and the second call is refused.
        "rdma_disconnect" => return None,
        _ => {
            "the identifier or an argument is unknown, or the identifier's state does not allow the call; see its manual page"
        }
    })
}

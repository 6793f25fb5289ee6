//! The receiver of unreliable datagrams: each message is one packet, from any sender that has the
//! Q_Key.

use core::net::IpAddr;

use mitra_verbs::{GRH_LEN, Wc, WcOpcode, WcStatus};
use mitra_wire::{Deth, Packet};

use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::{Route, SharedState};
use crate::packet_of_message;
use crate::qp::attributes::QpAttributes;
use crate::{Memory, scatter_gather};

/// A receive has completed with an error, because its memory may not be written. The queue pair
/// enters ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecvFailed;

/// Drops a packet if its Q_Key is wrong, no receive is posted, or the next receive is too short.
///
/// # Errors
/// The memory of the receive may not be written.
pub(crate) fn handle_packet(
    attrs: &QpAttributes,
    receives: &mut RecvSource,
    nic: &mut SharedState,
    route: Route,
    deth: Deth,
    packet: &Packet<'_>,
    memory: &mut dyn Memory,
) -> Result<(), RecvFailed> {
    if attrs.modified.qkey != Some(deth.qkey) {
        nic.counters.drop_qkey += 1;
        return Ok(());
    }
    let total = GRH_LEN + packet.payload.len();
    let Some(receive) = nic.peek_recv(receives) else {
        nic.counters.drop_no_receive += 1;
        return Ok(());
    };
    if scatter_gather::total_len(&receive.sges) < total as u64 {
        nic.counters.drop_unreliable += 1;
        return Ok(());
    }
    let grh = grh_area(route, packet);
    let (pd, sges) = (attrs.recv_pd, &receive.sges);
    let placed = scatter_gather::scatter(&nic.keys, pd, sges, 0, &grh, memory)
        .and_then(|()| scatter_gather::scatter(&nic.keys, pd, sges, GRH_LEN as u64, packet.payload, memory));
    // A receive with an error is removed too. Otherwise a shared receive queue would offer it to
    // another queue pair, which would then fail as well.
    if let Some(receive) = nic.take_recv(receives) {
        if placed.is_err() {
            let wc = Wc::new(receive.wr_id, WcStatus::LocalProtection, WcOpcode::Recv, attrs.qpn);
            nic.complete(attrs.init.recv_cq, wc, false);
            return Err(RecvFailed);
        }
        let mut wc = Wc::new(receive.wr_id, WcStatus::Success, WcOpcode::Recv, attrs.qpn);
        wc.byte_len = total as u32;
        wc.src_qp = deth.src_qp;
        wc.imm = packet_of_message::immediate(&packet.message);
        nic.counters.bytes_received += packet.payload.len() as u64;
        nic.counters.messages_executed += 1;
        nic.complete(attrs.init.recv_cq, wc, packet.solicited);
    }
    Ok(())
}

/// Returns the content of the GRH area: the IP header of the packet. An IPv4 header is in the last
/// 20 bytes (annex A17.4).
///
/// The NIC does not know all fields of the received header. Identification and flow label are 0,
/// and the time to live is 64.
fn grh_area(Route { source, destination }: Route, packet: &Packet<'_>) -> [u8; GRH_LEN] {
    const UDP: u8 = 17;
    const HOPS: u8 = 64;
    let mut grh = [0; GRH_LEN];
    let datagram = 8 + packet.emitted_len() + mitra_wire::ICRC_LEN;
    let class = source.traffic_class;
    match (IpAddr::from(source.address), IpAddr::from(destination)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = &mut grh[20..];
            let [l0, l1] = (20 + datagram as u16).to_be_bytes();
            ip[..12].copy_from_slice(&[0x45, class, l0, l1, 0, 0, 0x40, 0, HOPS, UDP, 0, 0]);
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..].copy_from_slice(&to.octets());
            let sum: u32 =
                ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let sum = !(((folded & 0xffff) + (folded >> 16)) as u16);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            let [l0, l1] = (datagram as u16).to_be_bytes();
            grh[..8].copy_from_slice(&[0x60 | class >> 4, class << 4, 0, 0, l0, l1, UDP, HOPS]);
            grh[8..24].copy_from_slice(&source.address.0);
            grh[24..].copy_from_slice(&destination.0);
        }
    }
    grh
}

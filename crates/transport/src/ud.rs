//! The receiver of unreliable datagrams: a message is a packet, from anybody who knows the Q_Key.

use core::net::IpAddr;

use mitra_verbs::{WcOpcode, WcStatus};
use mitra_wire::{Deth, Message, Packet};

use crate::cq::completion;
use crate::host::{Host, Route};
use crate::qp::Common;
use crate::recv_queue::Receives;
use crate::{Memory, sges};

/// Bytes before the message in the receive buffer of a datagram, for the sender's and receiver's addresses
/// (IBTA volume 1, 11.4.1).
pub(crate) const GRH_LEN: usize = 40;

/// The receive was wrong: it is completed with its error, and the queue pair must go to ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// A packet. Whatever is wrong with it, it is dropped.
pub(crate) fn handle(
    c: &Common,
    receives: &mut Receives,
    host: &mut Host,
    route: Route,
    deth: Deth,
    packet: &Packet<'_>,
    memory: &mut dyn Memory,
) -> Result<(), Broken> {
    if c.attr.qkey != Some(deth.qkey) {
        host.counters.drop_qkey += 1;
        return Ok(());
    }
    let total = GRH_LEN + packet.payload.len();
    let Some(receive) = host.next_receive(receives) else {
        host.counters.drop_no_receive += 1;
        return Ok(());
    };
    if sges::total(&receive.sges) < total as u64 {
        host.counters.drop_unreliable += 1;
        return Ok(());
    }
    let grh = addresses(route, packet);
    let placed = sges::scatter(&host.keys, c.recv_pd, &receive.sges, 0, &grh, memory).and_then(|()| {
        sges::scatter(&host.keys, c.recv_pd, &receive.sges, GRH_LEN as u64, packet.payload, memory)
    });
    // Taken in either case: a shared queue would hand a wrong one to its next queue pair, and break that too.
    if let Some(receive) = host.take_receive(receives) {
        if placed.is_err() {
            let wc = completion(receive.wr_id, WcStatus::LocalProtection, WcOpcode::Recv, c.qpn);
            host.complete(c.init.recv_cq, wc, false);
            return Err(Broken);
        }
        let mut wc = completion(receive.wr_id, WcStatus::Success, WcOpcode::Recv, c.qpn);
        wc.byte_len = total as u32;
        wc.src_qp = deth.src_qp;
        if let Message::SendOnlyImm(imm) = packet.message {
            wc.imm = Some(imm);
        }
        host.counters.bytes_received += packet.payload.len() as u64;
        host.counters.messages_executed += 1;
        host.complete(c.init.recv_cq, wc, packet.solicited);
    }
    Ok(())
}

/// What stands in the GRH area: the IP header, an IPv4 one in its last 20 bytes (annex A17.4). Made up from what
/// is known: type of service, identification and time to live of the packet as it travelled are not.
fn addresses(Route { source, destination }: Route, packet: &Packet<'_>) -> [u8; GRH_LEN] {
    const UDP: u8 = 17;
    const HOPS: u8 = 64;
    let mut grh = [0; GRH_LEN];
    let datagram = 8 + packet.emitted_len() + mitra_wire::ICRC_LEN;
    match (IpAddr::from(source), IpAddr::from(destination)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = &mut grh[20..];
            let [l0, l1] = (20 + datagram as u16).to_be_bytes();
            ip[..12].copy_from_slice(&[0x45, 0, l0, l1, 0, 0, 0x40, 0, HOPS, UDP, 0, 0]);
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
            grh[..8].copy_from_slice(&[0x60, 0, 0, 0, l0, l1, UDP, HOPS]);
            grh[8..24].copy_from_slice(&source.0);
            grh[24..].copy_from_slice(&destination.0);
        }
    }
    grh
}

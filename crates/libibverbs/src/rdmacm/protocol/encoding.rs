//! The form of the messages on the wire: management datagrams of the communication management class
//! (IBTA volume 1, 13.4.2 and 12.6; the kernel's `ibta_vol1_c12.h` has the same offsets).
//!
//! On a rail other than the first, the GID of the sender's device follows the datagram. There, the
//! datagram's source address is that of the rail, and not the one by which programs know the
//! device.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use mitra_verbs::{Gid, Malformed};

use super::message::*;

/// The length of a management datagram.
const DATAGRAM: usize = 256;
const HEADER: usize = 24;
const GID: usize = 16;

/// Base version, class (communication management), class version, and method (send).
const CLASS: [u8; 4] = [1, 7, 2, 3];
/// The default partition key with full membership.
const PKEY: u16 = 0xffff;
/// The local identifier of a path whose addresses are GIDs (IBTA 4.1.3, permissive LID).
const PERMISSIVE_LID: u16 = 0xffff;
/// About 4.3 s: 4.096 µs · 2^20, the response timeout of the kernel's `rdma_cm`.
const RESPONSE_TIMEOUT: u8 = 20;
/// The number of repetitions of the kernel's `rdma_cm`.
const MAX_RETRIES: u8 = 15;
/// About 69 s: 4.096 µs · 2^24, the service timeout in an MRA of the kernel's `rdma_cm`.
const SERVICE_TIMEOUT: u8 = 24;
const HOP_LIMIT: u8 = 64;

/// The length of the header of `rdma_cm` in the private data of REQ and SIDR_REQ.
const IP_HEADER: usize = 36;
const REJ_INFO: usize = 72;

/// The number of a message's attribute.
mod attribute {
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
    pub const SIDR_REQ: u16 = 0x17;
    pub const SIDR_REP: u16 = 0x18;
}

/// The part of a datagram after the header. The offsets of the fields count from its beginning.
struct Body([u8; DATAGRAM - HEADER]);

impl Body {
    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets a field of 24 bits.
    fn set_u24(&mut self, at: usize, value: u32) {
        self.set(at, &value.to_be_bytes()[1..]);
    }

    fn set_ids(&mut self, ids: Ids) {
        self.set(0, &ids.sender.to_be_bytes());
        self.set(4, &ids.receiver.to_be_bytes());
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.get(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.get(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.get(at))
    }

    fn u24(&self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        self.0[at..at + length].to_vec()
    }

    fn ids(&self) -> Ids {
        Ids { sender: self.u32(0), receiver: self.u32(4) }
    }
}

/// Returns the datagram of a message. `device` is the GID of the sender's device, on a rail other
/// than the first. The caller keeps private data within its limit.
pub fn encode(Transaction { id, message }: &Transaction, device: Option<Gid>) -> Vec<u8> {
    let mut body = Body([0; DATAGRAM - HEADER]);
    let attribute = match message {
        Message::Req(request) => {
            put_request(&mut body, request);
            attribute::REQ
        }
        Message::Mra(ids, answered) => {
            body.set_ids(*ids);
            body.set(8, &[answered.number() << 6, SERVICE_TIMEOUT << 3]);
            attribute::MRA
        }
        Message::Rej(ids, Rejection { answered, reason, info, private_data }) => {
            body.set_ids(*ids);
            body.set(8, &[answered.number() << 6, (info.len() as u8) << 1]);
            body.set(10, &reason.to_be_bytes());
            body.set(12, info);
            body.set(84, private_data);
            attribute::REJ
        }
        Message::Rep(ids, params) => {
            body.set_ids(*ids);
            put_reply(&mut body, params);
            attribute::REP
        }
        Message::Rtu(ids) => {
            body.set_ids(*ids);
            attribute::RTU
        }
        Message::Dreq(ids, remote_qpn) => {
            body.set_ids(*ids);
            body.set_u24(8, *remote_qpn);
            attribute::DREQ
        }
        Message::Drep(ids) => {
            body.set_ids(*ids);
            attribute::DREP
        }
        Message::SidrReq(SidrRequest { request_id, service, private_data }) => {
            body.set(0, &request_id.to_be_bytes());
            body.set(4, &PKEY.to_be_bytes());
            body.set(8, &service_id(service).to_be_bytes());
            put_addresses(&mut body, 16, service);
            body.set(16 + IP_HEADER, private_data);
            attribute::SIDR_REQ
        }
        Message::SidrRep(SidrReply { request_id, status, qpn, qkey, private_data }) => {
            body.set(0, &request_id.to_be_bytes());
            body.set(4, &[*status]);
            body.set_u24(8, *qpn);
            body.set(20, &qkey.to_be_bytes());
            body.set(96, private_data);
            attribute::SIDR_REP
        }
    };
    let mut datagram = Vec::with_capacity(DATAGRAM + GID);
    datagram.extend(CLASS);
    datagram.extend([0; 4]); // status, and a field that the class does not use
    datagram.extend(id.to_be_bytes());
    datagram.extend(attribute.to_be_bytes());
    datagram.extend([0; 6]); // reserved, and the attribute's modifier
    datagram.extend(body.0);
    datagram.extend(device.iter().flat_map(|gid| gid.0));
    datagram
}

/// Returns the message of a datagram, and the GID of the sender's device if the datagram has one.
///
/// # Errors
/// [`Malformed`] for a datagram of another class, of an unknown message, of another length, or with
/// a field outside its range.
pub fn decode(datagram: &[u8]) -> Result<(Transaction, Option<Gid>), Malformed> {
    let (header, rest) = datagram.split_first_chunk::<HEADER>().ok_or(Malformed::Short)?;
    let (body, device) = rest.split_first_chunk().ok_or(Malformed::Short)?;
    let device = match device.len() {
        0 => None,
        GID => device.first_chunk().map(|gid| Gid(*gid)),
        _ => return Err(Malformed::Surplus),
    };
    if header[..4] != CLASS {
        return Err(Malformed::Field);
    }
    let body = Body(*body);
    let [.., k0, k1, _, _, _, _, _, _] = *header;
    let message = match u16::from_be_bytes([k0, k1]) {
        attribute::REQ => Message::Req(Box::new(take_request(&body)?)),
        attribute::MRA => Message::Mra(body.ids(), Answered::of_number(body.0[8] >> 6)),
        attribute::REJ => Message::Rej(
            body.ids(),
            Rejection {
                answered: Answered::of_number(body.0[8] >> 6),
                reason: body.u16(10),
                info: body.bytes(12, usize::from(body.0[9] >> 1).min(REJ_INFO)),
                private_data: body.bytes(84, REJ_PRIVATE_DATA_LEN),
            },
        ),
        attribute::REP => Message::Rep(body.ids(), take_reply(&body)),
        attribute::RTU => Message::Rtu(body.ids()),
        attribute::DREQ => Message::Dreq(body.ids(), body.u24(8)),
        attribute::DREP => Message::Drep(body.ids()),
        attribute::SIDR_REQ => Message::SidrReq(SidrRequest {
            request_id: body.u32(0),
            service: take_service(&body, 8, 16)?,
            private_data: body.bytes(16 + IP_HEADER, SIDR_REQ_PRIVATE_DATA_LEN),
        }),
        attribute::SIDR_REP => Message::SidrRep(SidrReply {
            request_id: body.u32(0),
            status: body.0[4],
            qpn: body.u24(8),
            qkey: body.u32(20),
            private_data: body.bytes(96, SIDR_REP_PRIVATE_DATA_LEN),
        }),
        kind => return Err(Malformed::Kind(kind as u8)),
    };
    let id = u64::from_be_bytes(std::array::from_fn(|i| header[8 + i]));
    Ok((Transaction { id, message }, device))
}

fn put_request(body: &mut Body, request: &Request) {
    let params = &request.params;
    let (service, extended) = match request.transport {
        Transport::Reliable => (0, 0),
        Transport::Unreliable => (1, 0),
        Transport::ExtendedReliable => (3, 1),
    };
    body.set(0, &request.sender.to_be_bytes());
    body.set(8, &service_id(&request.service).to_be_bytes());
    body.set(16, &params.guid.to_be_bytes());
    body.set_u24(32, params.qpn);
    body.set(35, &[params.responder_resources]);
    body.set(39, &[params.initiator_depth]);
    body.set(43, &[RESPONSE_TIMEOUT << 3 | service << 1 | u8::from(params.flags.flow_control)]);
    body.set_u24(44, params.starting_psn);
    body.set(47, &[RESPONSE_TIMEOUT << 3 | params.retry_count]);
    body.set(48, &PKEY.to_be_bytes());
    body.set(50, &[params.path_mtu << 4 | params.rnr_retry_count]);
    body.set(51, &[MAX_RETRIES << 4 | u8::from(params.flags.srq) << 3 | extended]);
    body.set(52, &[PERMISSIVE_LID.to_be_bytes(), PERMISSIVE_LID.to_be_bytes()].concat());
    body.set(56, &params.gid);
    body.set(72, &request.remote_gid);
    body.set(92, &[request.traffic_class, HOP_LIMIT, 0, request.ack_timeout << 3]);
    put_addresses(body, 140, &request.service);
    body.set(140 + IP_HEADER, &params.private_data);
}

fn take_request(body: &Body) -> Result<Request, Malformed> {
    let [.., timeouts] = body.get::<4>(40);
    let [mtu_and_rnr, retries] = body.get(50);
    let transport = match (timeouts >> 1 & 3, retries & 7) {
        (0, _) => Transport::Reliable,
        (1, _) => Transport::Unreliable,
        (3, 1) => Transport::ExtendedReliable,
        _ => return Err(Malformed::Field),
    };
    let path_mtu = mtu_and_rnr >> 4;
    // An `ibv_mtu` is 1 to 5.
    if !(1..=5).contains(&path_mtu) {
        return Err(Malformed::Field);
    }
    let [traffic_class, _, _, ack_timeout] = body.get(92);
    Ok(Request {
        sender: body.u32(0),
        service: take_service(body, 8, 140)?,
        transport,
        ack_timeout: ack_timeout >> 3,
        traffic_class,
        remote_gid: body.get(72),
        params: ConnectionParams {
            qpn: body.u24(32),
            starting_psn: body.u24(44),
            gid: body.get(56),
            guid: body.u64(16),
            path_mtu,
            responder_resources: body.0[35],
            initiator_depth: body.0[39],
            retry_count: body.0[47] & 7,
            rnr_retry_count: mtu_and_rnr & 7,
            flags: ConnectionFlags { flow_control: timeouts & 1 != 0, srq: retries >> 3 & 1 != 0 },
            private_data: body.bytes(140 + IP_HEADER, REQ_PRIVATE_DATA_LEN),
        },
    })
}

fn put_reply(body: &mut Body, params: &ConnectionParams) {
    body.set_u24(12, params.qpn);
    body.set_u24(20, params.starting_psn);
    body.set(24, &[params.responder_resources, params.initiator_depth]);
    body.set(26, &[u8::from(params.flags.flow_control)]);
    body.set(27, &[params.rnr_retry_count << 5 | u8::from(params.flags.srq) << 4]);
    body.set(28, &params.guid.to_be_bytes());
    body.set(36, &params.private_data);
}

fn take_reply(body: &Body) -> ConnectionParams {
    let [responder_resources, initiator_depth, flow_control, rnr_and_srq] = body.get(24);
    ConnectionParams {
        qpn: body.u24(12),
        starting_psn: body.u24(20),
        gid: [0; GID],
        guid: body.u64(28),
        path_mtu: 0,
        responder_resources,
        initiator_depth,
        retry_count: 0,
        rnr_retry_count: rnr_and_srq >> 5,
        flags: ConnectionFlags { flow_control: flow_control & 1 != 0, srq: rnr_and_srq >> 4 & 1 != 0 },
        private_data: body.bytes(36, REP_PRIVATE_DATA_LEN),
    }
}

/// The service id of an IP port: a prefix, the protocol number of the port space, and the port
/// (IBTA annex A11.2).
fn service_id(service: &Service) -> u64 {
    let protocol = match service.space {
        PortSpace::Tcp => 6,
        PortSpace::Udp => 17,
    };
    1 << 24 | protocol << 16 | u64::from(service.destination.port())
}

/// Writes the header of `rdma_cm` (`struct cma_hdr`): version, IP version, the source port and both
/// IP addresses, each in the last bytes of its field.
fn put_addresses(body: &mut Body, at: usize, service: &Service) {
    let ip_version = if service.source.is_ipv4() { 4 } else { 6 };
    body.set(at + 1, &[ip_version << 4]);
    body.set(at + 2, &service.source.port().to_be_bytes());
    for (at, ip) in [(at + 4, service.source.ip()), (at + 20, service.destination.ip())] {
        match ip {
            IpAddr::V4(ip) => body.set(at + 12, &ip.octets()),
            IpAddr::V6(ip) => body.set(at, &ip.octets()),
        }
    }
}

fn take_service(body: &Body, service_at: usize, header_at: usize) -> Result<Service, Malformed> {
    let id = body.u64(service_at);
    let space = match id >> 16 {
        0x106 => PortSpace::Tcp,
        0x111 => PortSpace::Udp,
        _ => return Err(Malformed::Field),
    };
    let [version, ip_version] = body.get(header_at);
    let ip = |at: usize| match ip_version >> 4 {
        4 => Ok(IpAddr::from(body.get::<4>(at + 12))),
        6 => Ok(IpAddr::from(Ipv6Addr::from(body.get::<GID>(at)))),
        _ => Err(Malformed::Field),
    };
    if version != 0 {
        return Err(Malformed::Field);
    }
    Ok(Service {
        space,
        source: SocketAddr::new(ip(header_at + 4)?, body.u16(header_at + 2)),
        destination: SocketAddr::new(ip(header_at + 20)?, id as u16),
    })
}

impl Answered {
    fn number(self) -> u8 {
        match self {
            Answered::Req => 0,
            Answered::Rep => 1,
            Answered::Other => 2,
        }
    }

    fn of_number(number: u8) -> Self {
        match number {
            0 => Answered::Req,
            1 => Answered::Rep,
            _ => Answered::Other,
        }
    }
}

use super::*;

fn padded(data: &[u8], length: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(length, 0);
    padded
}

fn service(space: PortSpace) -> Service {
    let (source, destination) = match space {
        PortSpace::Tcp => ("10.0.0.1:4000", "10.0.0.2:7174"),
        PortSpace::Udp => ("[fd00::1]:4000", "[fd00::2]:7174"),
    };
    let address = |text: &str| text.parse().expect("an address");
    Service { space, source: address(source), destination: address(destination) }
}

fn request() -> Request {
    Request {
        sender: 0x0102_0304,
        service: service(PortSpace::Tcp),
        transport: Transport::Reliable,
        ack_timeout: 17,
        traffic_class: 0x20,
        remote_gid: [9; 16],
        params: ConnectionParams {
            qpn: 0x12_3456,
            starting_psn: 0x65_4321,
            gid: [8; 16],
            guid: 0x024d_69ff_0a00_0001,
            path_mtu: 3,
            responder_resources: 16,
            initiator_depth: 15,
            retry_count: 7,
            rnr_retry_count: 6,
            flags: ConnectionFlags { flow_control: true, srq: true },
            private_data: padded(b"hello", REQ_PRIVATE_DATA_LEN),
        },
    }
}

fn samples() -> Vec<Message> {
    let ids = Ids { sender: 0x0506_0708, receiver: 0x0102_0304 };
    let unreliable = Request { transport: Transport::Unreliable, ..request() };
    let xrc = Request { transport: Transport::ExtendedReliable, ..request() };
    let private_data = padded(b"welcome", REP_PRIVATE_DATA_LEN);
    let reply =
        ConnectionParams { gid: [0; 16], path_mtu: 0, retry_count: 0, private_data, ..request().params };
    let rejection = Rejection {
        info: vec![4],
        private_data: padded(b"no", REJ_PRIVATE_DATA_LEN),
        ..Rejection::new(Answered::Rep, reject_reason::INVALID_PATH_MTU)
    };
    vec![
        Message::Req(Box::new(request())),
        Message::Req(Box::new(unreliable)),
        Message::Req(Box::new(xrc)),
        Message::Mra(ids, Answered::Rep),
        Message::Rej(ids, rejection),
        Message::Rep(ids, reply),
        Message::Rtu(ids),
        Message::Dreq(ids, 0x65_4321),
        Message::Drep(ids),
        Message::SidrReq(SidrRequest {
            request_id: 77,
            service: service(PortSpace::Udp),
            private_data: padded(b"where?", SIDR_REQ_PRIVATE_DATA_LEN),
        }),
        Message::SidrRep(SidrReply {
            request_id: 77,
            status: sidr_status::VALID,
            qpn: 0x12_3456,
            qkey: 0x0123_4567,
            private_data: padded(b"here", SIDR_REP_PRIVATE_DATA_LEN),
        }),
    ]
}

#[test]
fn messages_round_trip() {
    for message in samples() {
        let transaction = Transaction { id: 0x1122_3344_5566_7788, message };
        for device in [None, Some(Gid([5; 16]))] {
            let bytes = encode(&transaction, device);
            assert_eq!(bytes.len(), 256 + if device.is_some() { 16 } else { 0 });
            assert_eq!(decode(&bytes), Ok((transaction.clone(), device)));
        }
    }
}

#[test]
fn datagrams_of_another_length_are_rejected() {
    for message in samples() {
        let bytes = encode(&Transaction { id: 1, message }, Some(Gid([5; 16])));
        for length in (0..bytes.len()).filter(|length| *length != 256) {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(Malformed::Surplus));
    }
}

#[test]
fn fields_outside_their_range_are_rejected() {
    let bytes = encode(&Transaction { id: 1, message: samples().swap_remove(0) }, None);
    // The class; the message; the path MTU; the service's prefix; the versions of the addresses;
    // the transport.
    for (at, value) in [(1, 4), (17, 0x30), (74, 0), (74, 0x60), (32, 1), (164, 1), (165, 0x50), (67, 4)] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        assert!(decode(&bytes).is_err(), "byte {at} is {value}");
    }
}

/// The offsets of the fields that the kernel reads (`ibta_vol1_c12.h`).
#[test]
fn request_has_the_form_of_the_specification() {
    let bytes = encode(&Transaction { id: 0x1122_3344_5566_7788, message: samples().swap_remove(0) }, None);
    assert_eq!(bytes[..4], [1, 7, 2, 3], "class");
    assert_eq!(bytes[8..18], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x10], "transaction, REQ");
    let body = &bytes[24..];
    assert_eq!(body[..4], [1, 2, 3, 4], "communication id");
    assert_eq!(body[8..16], [0, 0, 0, 0, 1, 6, 0x1c, 0x06], "service id of port 7174");
    assert_eq!(body[32..36], [0x12, 0x34, 0x56, 16], "queue pair, responder resources");
    assert_eq!(body[43], 20 << 3 | 1, "response timeout, reliable, flow control");
    assert_eq!(body[44..48], [0x65, 0x43, 0x21, 20 << 3 | 7], "PSN, response timeout, retries");
    assert_eq!(body[48..52], [0xff, 0xff, 3 << 4 | 6, 15 << 4 | 8], "P_Key, MTU, RNR retries, SRQ");
    assert_eq!((&body[56..72], &body[72..88]), (&[8; 16][..], &[9; 16][..]), "GIDs");
    assert_eq!(body[140..144], [0, 0x40, 0x0f, 0xa0], "header of rdma_cm: IPv4, port 4000");
    assert_eq!((&body[156..160], &body[172..176]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]), "addresses");
    assert_eq!(&body[176..181], b"hello");
}

#[test]
fn corpus_of_messages() {
    crate::replay::replay("messages", |data| {
        if let [9, bytes @ ..] = data {
            crate::round_trip::round_trip_by(bytes, decode, |(transaction, gid)| encode(transaction, *gid));
        }
    });
}

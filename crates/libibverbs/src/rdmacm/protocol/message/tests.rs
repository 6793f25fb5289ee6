use super::*;

fn params(private: usize) -> ConnectionParams {
    ConnectionParams {
        qpn: 0x00ab_cdef,
        starting_psn: 0x0012_3456,
        gid: *b"0123456789abcdef",
        path_mtu: 3,
        responder_resources: 16,
        initiator_depth: 8,
        retry_count: 7,
        rnr_retry_count: 6,
        flags: ConnectionFlags { flow_control: true, srq: false },
        private_data: (0..private).map(|byte| byte as u8).collect(),
    }
}

/// One message of every kind without private data, and one with the greatest private data.
fn samples() -> Vec<Message> {
    let mut samples = vec![Message::Rtu, Message::Dreq, Message::Drep];
    for full in [0, 1] {
        let private = |limit: usize| vec![0x5a; full * limit];
        samples.push(Message::Req(params(full * REQ_PRIVATE_DATA_LEN)));
        samples.push(Message::Rep(params(full * REP_PRIVATE_DATA_LEN)));
        samples.push(Message::Rej(Rejection { reason: 28, private_data: private(REJ_PRIVATE_DATA_LEN) }));
        samples.push(Message::SidrReq(SidrRequest {
            request_id: u64::MAX,
            gid: [7; 16],
            private_data: private(SIDR_REQ_PRIVATE_DATA_LEN),
        }));
        samples.push(Message::SidrRep(SidrReply {
            request_id: 1,
            status: sidr_status::VALID,
            qpn: 17,
            qkey: 0x0123_4567,
            gid: [9; 16],
            private_data: private(SIDR_REP_PRIVATE_DATA_LEN),
        }));
    }
    samples
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

#[test]
fn encodings_stay_byte_for_byte() {
    let encodings: Vec<_> = samples().iter().map(|message| format!("{:02x?}", encoded(message))).collect();
    assert_eq!(encodings, include_str!("encodings.txt").lines().collect::<Vec<_>>());
}

#[test]
fn messages_round_trip() {
    for message in samples() {
        let mut bytes = encoded(&message);
        let length = bytes.len();
        assert!(length <= MAX_MESSAGE, "{message:?}");
        bytes.extend(encoded(&Message::Rtu));
        assert_eq!(Message::decode(&bytes), Ok(Some((message, length))));
    }
}

#[test]
fn incomplete_message_needs_more_bytes() {
    for message in samples() {
        let bytes = encoded(&message);
        for length in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..length]), Ok(None), "{message:?} cut to {length}");
        }
    }
}

/// The length in the header matches the body, so only the fields show that the body is too short or
/// too long.
#[test]
fn body_of_wrong_length_is_malformed() {
    for message in samples() {
        let bytes = encoded(&message);
        let wrong = |body: &[u8]| {
            let mut bytes = bytes[..6].to_vec();
            bytes.extend((body.len() as u16).to_be_bytes());
            bytes.extend(body);
            assert!(Message::decode(&bytes).is_err(), "{message:?} with a body of {}", body.len());
        };
        for length in 0..bytes.len() - HEADER_LEN {
            wrong(&bytes[HEADER_LEN..HEADER_LEN + length]);
        }
        wrong(&[&bytes[HEADER_LEN..], &[0]].concat());
    }
}

#[test]
fn corpus_of_messages() {
    crate::replay::replay("messages", |data| {
        if let [9, bytes @ ..] = data {
            crate::round_trip::round_trip::<Message>(bytes);
        }
    });
}

/// The encoding is canonical.
#[test]
fn accepted_bytes_re_encode_to_themselves() {
    for message in samples() {
        let bytes = encoded(&message);
        for (position, value) in (0..bytes.len()).flat_map(|at| (0..=u8::MAX).map(move |value| (at, value))) {
            let mut changed = bytes.clone();
            changed[position] = value;
            if let Ok(Some((other, length))) = Message::decode(&changed) {
                assert_eq!(encoded(&other), changed[..length], "{message:?} with {value} at {position}");
            }
        }
    }
}

#[test]
fn excessive_length_is_malformed_before_the_body_arrives() {
    let mut bytes = encoded(&Message::Rtu);
    bytes[6..8].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(Message::decode(&bytes), Err(Malformed::Field));
}

#[test]
fn foreign_protocol_is_malformed_at_its_first_byte() {
    assert_eq!(Message::decode(b"G"), Err(Malformed::Field));
    assert_eq!(Message::decode(b"MiCX"), Err(Malformed::Field));
    let mut other_version = encoded(&Message::Rtu);
    other_version[4] = 2;
    assert_eq!(Message::decode(&other_version), Err(Malformed::Field));
    let mut unknown_kind = encoded(&Message::Rtu);
    unknown_kind[5] = 9;
    assert_eq!(Message::decode(&unknown_kind), Err(Malformed::Kind(9)));
}

#[test]
fn fields_out_of_range_are_malformed() {
    type Change = fn(&mut ConnectionParams);
    let changes: [Change; 6] = [
        |params| params.qpn = 1 << 24,
        |params| params.starting_psn = u32::MAX,
        |params| params.path_mtu = 0,
        |params| params.path_mtu = 6,
        |params| params.retry_count = 8,
        |params| params.rnr_retry_count = 255,
    ];
    for change in changes {
        let mut params = params(3);
        change(&mut params);
        assert_eq!(
            Message::decode(&encoded(&Message::Req(params.clone()))),
            Err(Malformed::Field),
            "{params:?}"
        );
    }
    // The private data of a REQ is limited to fewer bytes than the private data of a REP.
    let mut bytes = encoded(&Message::Rep(params(REQ_PRIVATE_DATA_LEN + 1)));
    bytes[5] = 1;
    assert_eq!(Message::decode(&bytes), Err(Malformed::Field));
}

/// Requests with a forged source address must not be amplified.
#[test]
fn sidr_reply_is_no_longer_than_its_request() {
    let shortest = samples()
        .iter()
        .filter(|sample| matches!(sample, Message::SidrReq(_)))
        .map(|sample| encoded(sample).len())
        .min();
    let longest = samples()
        .iter()
        .filter(|sample| matches!(sample, Message::SidrRep(_)))
        .map(|sample| encoded(sample).len())
        .max();
    assert!(longest <= shortest);
}

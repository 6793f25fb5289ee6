use super::*;

fn offer(private: usize) -> Offer {
    Offer {
        qpn: 0x00ab_cdef,
        starting_psn: 0x0012_3456,
        gid: *b"0123456789abcdef",
        path_mtu: 3,
        responder_resources: 16,
        initiator_depth: 8,
        retry_count: 7,
        rnr_retry_count: 6,
        flow_control: true,
        srq: false,
        private_data: (0..private).map(|byte| byte as u8).collect(),
    }
}

/// Every kind, with no private data and with as much as there may be.
fn samples() -> Vec<Message> {
    let mut samples = vec![Message::Rtu, Message::Dreq, Message::Drep];
    for full in [0, 1] {
        let private = |limit: usize| vec![0x5a; full * limit];
        samples.push(Message::Req(offer(full * REQ_PRIVATE)));
        samples.push(Message::Rep(offer(full * REP_PRIVATE)));
        samples.push(Message::Rej(Rejection { reason: 28, private_data: private(REJ_PRIVATE) }));
        samples.push(Message::SidrReq(Inquiry {
            request_id: u64::MAX,
            gid: [7; 16],
            private_data: private(SIDR_REQ_PRIVATE),
        }));
        samples.push(Message::SidrRep(Answer {
            request_id: 1,
            status: sidr::VALID,
            qpn: 17,
            qkey: 0x0123_4567,
            gid: [9; 16],
            private_data: private(SIDR_REP_PRIVATE),
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
fn every_message_comes_back_as_it_was() {
    for message in samples() {
        let mut bytes = encoded(&message);
        let length = bytes.len();
        assert!(length <= MAX_MESSAGE, "{message:?}");
        bytes.extend(encoded(&Message::Rtu));
        assert_eq!(Message::decode(&bytes), Ok(Some((message, length))));
    }
}

#[test]
fn of_a_part_nothing_is_decoded_and_nothing_refused() {
    for message in samples() {
        let bytes = encoded(&message);
        for length in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..length]), Ok(None), "{message:?} cut to {length}");
        }
    }
}

/// A body cut short or grown by a byte, with a header that says so.
#[test]
fn a_body_of_another_length_is_malformed() {
    for message in samples() {
        let bytes = encoded(&message);
        let wrong = |body: &[u8]| {
            let mut bytes = bytes[..6].to_vec();
            bytes.extend((body.len() as u16).to_be_bytes());
            bytes.extend(body);
            assert_eq!(Message::decode(&bytes), Err(Malformed), "{message:?} with a body of {}", body.len());
        };
        for length in 0..bytes.len() - HEADER {
            wrong(&bytes[HEADER..HEADER + length]);
        }
        wrong(&[&bytes[HEADER..], &[0]].concat());
    }
}

/// Whatever is accepted has one meaning and that meaning one form: nothing is read that is not said.
#[test]
fn of_a_changed_message_every_byte_counts() {
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
fn a_hostile_length_is_refused_before_its_bytes_are_waited_for() {
    let mut bytes = encoded(&Message::Rtu);
    bytes[6..8].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(Message::decode(&bytes), Err(Malformed));
}

#[test]
fn a_stranger_is_refused_at_its_first_byte() {
    assert_eq!(Message::decode(b"G"), Err(Malformed));
    assert_eq!(Message::decode(b"MiCX"), Err(Malformed));
    let mut other_version = encoded(&Message::Rtu);
    other_version[4] = 2;
    assert_eq!(Message::decode(&other_version), Err(Malformed));
    let mut unknown_kind = encoded(&Message::Rtu);
    unknown_kind[5] = 9;
    assert_eq!(Message::decode(&unknown_kind), Err(Malformed));
}

#[test]
fn fields_out_of_range_are_malformed() {
    type Change = fn(&mut Offer);
    let changes: [Change; 6] = [
        |offer| offer.qpn = 1 << 24,
        |offer| offer.starting_psn = u32::MAX,
        |offer| offer.path_mtu = 0,
        |offer| offer.path_mtu = 6,
        |offer| offer.retry_count = 8,
        |offer| offer.rnr_retry_count = 255,
    ];
    for change in changes {
        let mut offer = offer(3);
        change(&mut offer);
        assert_eq!(Message::decode(&encoded(&Message::Req(offer.clone()))), Err(Malformed), "{offer:?}");
    }
    // A REQ may carry less than a REP.
    let mut bytes = encoded(&Message::Rep(offer(REQ_PRIVATE + 1)));
    bytes[5] = 1;
    assert_eq!(Message::decode(&bytes), Err(Malformed));
}

/// A forged source address must not make a flood of its answers.
#[test]
fn no_answer_is_longer_than_its_request() {
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

//! The bytes that a client and the store send to each other. Bytes that arrive later never change
//! an answer. A message that parses is the same after it is encoded and parsed again.

use mitra_kv::resp::{Reply, encode_request, parse_request};

pub(crate) fn run(data: &[u8]) {
    let request = parse_request(data);
    let reply = Reply::parse(data);
    for cut in cuts(data) {
        match parse_request(&data[..cut]) {
            Ok(None) => {}
            early => assert_eq!(early, request, "after {cut} bytes"),
        }
        match Reply::parse(&data[..cut]) {
            Ok(None) => {}
            early => assert_eq!(early, reply, "after {cut} bytes"),
        }
    }
    if let Ok(Some((arguments, len))) = request {
        assert!(len <= data.len());
        let mut encoded = Vec::new();
        encode_request(&arguments, &mut encoded);
        assert_eq!(parse_request(&encoded), Ok(Some((arguments, encoded.len()))));
    }
    if let Ok(Some((reply, len))) = reply {
        assert!(len <= data.len());
        let mut encoded = Vec::new();
        reply.encode(&mut encoded);
        assert_eq!(Reply::parse(&encoded), Ok(Some((reply, encoded.len()))));
    }
}

/// Returns the places at which the bytes are cut: all near both ends, and some between.
fn cuts(data: &[u8]) -> impl Iterator<Item = usize> {
    let len = data.len();
    (0..len).filter(move |&cut| cut < 256 || len - cut < 64 || cut % 997 == 0)
}

//! The messages of RDMA netlink (include/uapi/rdma/rdma_netlink.h): requests for devices and ports,
//! and their answers (drivers/infiniband/core/nldev.c).

use std::process;

use nix::net::if_::if_nametoindex;

use crate::calls::device::DEVICE_NAME;
use crate::interpose::device_files::attributes::Attributes;
use mitra_verbs_abi::*;

/// The length of `struct nlmsghdr` in bytes.
const HEADER_LEN: usize = 16;
/// The length of `struct nlattr` in bytes.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Messages and attributes begin at multiples of this number of bytes.
const ALIGNMENT: usize = 4;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command)`.
const fn message_type(command: u16) -> u16 {
    (5 << 10) + command
}
const GET_DEVICE: u16 = message_type(1);
const GET_PORT: u16 = message_type(5);

// Values of `enum rdma_nldev_attr`.
const DEVICE_INDEX: u16 = 1;
const NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const FIRMWARE: u16 = 5;
const NODE_GUID: u16 = 6;
const SYSTEM_GUID: u16 = 7;
const STATE: u16 = 12;
const PHYSICAL_STATE: u16 = 13;
const NODE_TYPE: u16 = 14;
const INTERFACE_INDEX: u16 = 50;
const INTERFACE_NAME: u16 = 51;
const PROTOCOL: u16 = 67;

/// The index of the device, which `ibv_get_device_index` returns, too.
const INDEX: u32 = 0;
const PORT: u32 = 1;

struct Request {
    kind: u16,
    flags: u16,
    sequence: u32,
    device: Option<u32>,
    port: Option<u32>,
}

/// Returns the answers to the requests in a datagram. A malformed request has no answer, as in the
/// kernel.
pub(super) fn answers(mut datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    while let Some((request, rest)) = parse(datagram) {
        datagram = rest;
        if i32::from(request.flags) & libc::NLM_F_REQUEST != 0 {
            answers.extend(answers_to(&request));
        }
    }
    answers
}

/// Parses the first message, and returns it with the rest of the datagram.
fn parse(datagram: &[u8]) -> Option<(Request, &[u8])> {
    let len = u32_at(datagram, 0)? as usize;
    let mut attributes = datagram.get(HEADER_LEN..len)?;
    let mut request = Request {
        kind: u16_at(datagram, 4)?,
        flags: u16_at(datagram, 6)?,
        sequence: u32_at(datagram, 8)?,
        device: None,
        port: None,
    };
    while let Some(len) = u16_at(attributes, 0).map(usize::from) {
        let Some(value) = attributes.get(ATTRIBUTE_HEADER_LEN..len) else { break };
        match u16_at(attributes, 2)? {
            DEVICE_INDEX => request.device = u32_at(value, 0),
            PORT_INDEX => request.port = u32_at(value, 0),
            _ => {}
        }
        attributes = attributes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    }
    Some((request, datagram.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default()))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn answers_to(request: &Request) -> Vec<Vec<u8>> {
    let is_dump = i32::from(request.flags) & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
    let is_device = request.device == Some(INDEX);
    let found = match request.kind {
        GET_DEVICE if is_dump || is_device => device(),
        GET_PORT if is_device && (is_dump || request.port == Some(PORT)) => port(),
        GET_DEVICE | GET_PORT => Err(libc::EINVAL),
        _ => Err(libc::EOPNOTSUPP),
    };
    match found {
        Err(errno) => vec![status(request, libc::NLMSG_ERROR, 0, -errno)],
        Ok(attributes) if is_dump => vec![
            message(request.kind, libc::NLM_F_MULTI, request.sequence, &attributes),
            status(request, libc::NLMSG_DONE, libc::NLM_F_MULTI, 0),
        ],
        Ok(attributes) => {
            let mut messages = vec![message(request.kind, 0, request.sequence, &attributes)];
            if i32::from(request.flags) & libc::NLM_F_ACK != 0 {
                messages.push(status(request, libc::NLMSG_ERROR, 0, 0));
            }
            messages
        }
    }
}

fn device() -> Result<Vec<u8>, i32> {
    let device = Attributes::now(None).ok_or(libc::ENODEV)?;
    let guid = u64::from_be_bytes(device.guid());
    let mut attributes = Vec::new();
    append(&mut attributes, DEVICE_INDEX, &INDEX.to_ne_bytes());
    append(&mut attributes, NAME, &text(DEVICE_NAME));
    append(&mut attributes, PORT_INDEX, &PORT.to_ne_bytes());
    append(&mut attributes, FIRMWARE, &text(env!("CARGO_PKG_VERSION")));
    append(&mut attributes, NODE_GUID, &guid.to_ne_bytes());
    append(&mut attributes, SYSTEM_GUID, &guid.to_ne_bytes());
    append(&mut attributes, NODE_TYPE, &[IBV_NODE_CA as u8]);
    append(&mut attributes, PROTOCOL, &text("roce"));
    Ok(attributes)
}

fn port() -> Result<Vec<u8>, i32> {
    let device = Attributes::now(None).ok_or(libc::ENODEV)?;
    let port = device.port();
    let mut attributes = Vec::new();
    append(&mut attributes, DEVICE_INDEX, &INDEX.to_ne_bytes());
    append(&mut attributes, NAME, &text(DEVICE_NAME));
    append(&mut attributes, PORT_INDEX, &PORT.to_ne_bytes());
    append(&mut attributes, STATE, &[port.state as u8]);
    append(&mut attributes, PHYSICAL_STATE, &[port.phys_state]);
    if let Some(name) = device.interface() {
        append(&mut attributes, INTERFACE_INDEX, &if_nametoindex(name).unwrap_or(0).to_ne_bytes());
        append(&mut attributes, INTERFACE_NAME, &text(name));
    }
    Ok(attributes)
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn append(attributes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
    attributes.extend([len.to_ne_bytes(), kind.to_ne_bytes()].concat());
    attributes.extend(value);
    attributes.resize(attributes.len().next_multiple_of(ALIGNMENT), 0);
}

/// Returns an error, an acknowledgement (`error` is 0), or the end of a dump.
fn status(request: &Request, kind: i32, flags: i32, error: i32) -> Vec<u8> {
    let mut payload = error.to_ne_bytes().to_vec();
    if kind == libc::NLMSG_ERROR {
        payload.extend(header(HEADER_LEN, request.kind, request.flags, request.sequence));
    }
    message(kind as u16, flags, request.sequence, &payload)
}

fn message(kind: u16, flags: i32, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = header(HEADER_LEN + payload.len(), kind, flags as u16, sequence);
    message.extend(payload);
    message
}

/// Returns a `struct nlmsghdr`.
fn header(len: usize, kind: u16, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = (len as u32).to_ne_bytes().to_vec();
    header.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    header.extend([sequence.to_ne_bytes(), process::id().to_ne_bytes()].concat());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u16, flags: i32, attributes: &[(u16, u32)]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (kind, value) in attributes {
            append(&mut payload, *kind, &value.to_ne_bytes());
        }
        message(kind, flags | libc::NLM_F_REQUEST, 7, &payload)
    }

    /// Returns the type and the error, if any, of each answer.
    fn kinds(request: &[u8]) -> Vec<(u16, Option<i32>)> {
        let kind = |answer: &Vec<u8>| {
            assert_eq!(u32_at(answer, 0), Some(answer.len() as u32));
            assert_eq!(u32_at(answer, 8), Some(7));
            let kind = u16_at(answer, 4).unwrap();
            (kind, (i32::from(kind) < 16).then(|| u32_at(answer, HEADER_LEN).unwrap() as i32))
        };
        answers(request).iter().map(kind).collect()
    }

    const END: (u16, Option<i32>) = (libc::NLMSG_DONE as u16, Some(0));

    fn error(errno: i32) -> (u16, Option<i32>) {
        (libc::NLMSG_ERROR as u16, Some(-errno))
    }

    #[test]
    fn device_and_port_are_found() {
        let dump = libc::NLM_F_DUMP;
        assert_eq!(kinds(&request(GET_DEVICE, dump, &[])), [(GET_DEVICE, None), END]);
        let found = request(GET_PORT, libc::NLM_F_ACK, &[(DEVICE_INDEX, 0), (PORT_INDEX, 1)]);
        assert_eq!(kinds(&found), [(GET_PORT, None), error(0)]);
        assert_eq!(kinds(&request(GET_PORT, dump, &[(DEVICE_INDEX, 0)])), [(GET_PORT, None), END]);
        assert_eq!(kinds(&[found.clone(), found].concat()).len(), 4);
    }

    #[test]
    fn other_requests_are_refused() {
        for attributes in
            [&[(DEVICE_INDEX, 1), (PORT_INDEX, 1)][..], &[(DEVICE_INDEX, 0), (PORT_INDEX, 2)], &[]]
        {
            assert_eq!(kinds(&request(GET_PORT, 0, attributes)), [error(libc::EINVAL)]);
        }
        assert_eq!(kinds(&request(message_type(9), libc::NLM_F_DUMP, &[])), [error(libc::EOPNOTSUPP)]);
    }

    #[test]
    fn malformed_messages_have_no_answer() {
        let whole = request(GET_PORT, 0, &[(DEVICE_INDEX, 0), (PORT_INDEX, 1)]);
        for len in 0..whole.len() {
            assert!(answers(&whole[..len]).is_empty());
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                answers(&damaged);
            }
        }
        assert!(answers(&[0; HEADER_LEN]).is_empty());
    }
}

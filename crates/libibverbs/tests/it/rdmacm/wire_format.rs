//! The messages of the connection manager, as Wireshark's dissector reads them.

use mitra_test_process::{command, output};
use mitra_verbs_abi::*;

use super::raw_peer::*;
use crate::cm_wrapper::*;

/// Makes and ends a connection, from this process to a raw peer and back, and looks up a service.
/// Returns the port of the service, and the text of the dissector.
fn captured() -> (u16, String) {
    let dir = tempfile::tempdir().expect("a directory for the capture");
    let file = dir.path().join("rail.pcap");
    let (channel, peer) = (Channel::new(), RawPeer::captured(file.clone()));
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let service = peer.listen_as_itself();
    let active = Id::routed(&channel, RDMA_PS_TCP, service);
    let device = own_gid(active);
    assert_eq!(active.connect(0x12_3456, b"hello"), None);
    let request = peer.receive_kind(0x10);
    peer.send(device, &message(0x13, [0, 0, 0, 7], sender_of(&request)));
    assert_eq!(channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).id, active);
    assert_eq!(active.establish(), None);
    peer.receive_kind(0x14);
    assert_eq!(active.disconnect(), None);
    let dreq = peer.receive_kind(0x15);
    peer.send(device, &message(0x16, [0, 0, 0, 7], sender_of(&dreq)));
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);

    // A repeated REQ is acknowledged, and the REQ is rejected with private data.
    for _ in 0..2 {
        peer.send(device, &request_of(8, port, &peer));
    }
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    peer.receive_kind(0x11);
    assert_eq!(passive.reject(b"no"), None);
    peer.receive_kind(0x12);
    peer.send(device, &request_of(9, port, &peer));
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(passive.accept(0x65_4321, b"welcome"), None);
    peer.receive_kind(0x13);
    for id in [active, passive, listener] {
        assert_eq!(id.destroy(), None);
    }
    drop(peer);
    let read = output(command("tshark").args(["-V", "-Y", "infiniband.mad", "-r"]).arg(&file));
    assert!(read.status.success(), "{read:?}");
    (service, String::from_utf8_lossy(&read.stdout).into_owned())
}

fn request_of(sender: u32, port: u16, peer: &RawPeer) -> Vec<u8> {
    request(sender, port, peer.gid())
}

#[test]
fn tshark_reads_each_message() {
    let (service, text) = captured();
    for name in [
        "ConnectRequest",
        "ConnectReply",
        "ReadyToUse",
        "DisconnectRequest",
        "DisconnectReply",
        "MsgRcptAck",
        "ConnectReject",
    ] {
        assert!(text.contains(&format!("CM {name}")), "{name} in {text}");
    }
    for field in [
        "Local QPN: 0x123456".to_owned(),
        format!("Destination Port: 0x{service:04x}"),
        "Transport Service Type: 0x0".to_owned(),
        "Partition Key: 0xffff".to_owned(),
        "RNR Retry Count: 0x6".to_owned(),
        "Retry Count: 0x5".to_owned(),
        "IP CM IP Version: 0x4".to_owned(),
        "IP CM Source IP: 127.0.0.1".to_owned(),
        "IP CM Consumer PrivateData: 68656c6c6f00".to_owned(),
        "Local QPN: 0x654321".to_owned(),
    ] {
        assert!(text.contains(&field), "{field} in {text}");
    }
    assert!(!text.contains("Malformed"), "{text}");
}

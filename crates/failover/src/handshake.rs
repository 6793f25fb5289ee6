//! The exchange of connection parameters over a stream, for example a TCP socket or a TLS session.
//!
//! ```no_run
//! # fn connect(vqp: &mut mitra_failover::VirtualQp, lent: &mitra_failover::VirtualMr) -> Result<(), Box<dyn std::error::Error>> {
//! use mitra_failover::handshake;
//!
//! let mut stream = std::net::TcpStream::connect("server:7000")?;
//! let (peer, regions) = handshake::exchange(&mut stream, &vqp.local_info(), &[lent.remote()])?;
//! vqp.connect(&peer)?;
//! handshake::confirm(&mut stream)?;
//! # Ok(())
//! # }
//! ```
//!
//! Both ends call the same functions in the same order. The parameters contain secrets
//! ([`ConnectInfo`]), so a stream between machines must be confidential and authenticate the peer.
//! Only the time-outs of the stream bound the wait for a silent peer.

use std::io::{self, Read, Write};

use mitra_verbs::{Codec, Reader};

use crate::connect_info::ConnectInfo;
use crate::memory_region::RemoteRegion;

/// The byte that an end sends when it has connected.
const CONNECTED: u8 = 1;

/// Sends this end's parameters and the regions that it lends, and returns the peer's. Reads at most
/// 128 KiB.
///
/// Both ends send before they read, so the sockets must buffer a whole message. The parameters have
/// less than 500 bytes and a region has at most 105, so a message fits unless hundreds of regions
/// are lent.
///
/// # Errors
/// Any error of the stream; [`io::ErrorKind::UnexpectedEof`] if the peer closes it early;
/// [`io::ErrorKind::InvalidData`] if the peer sends something else; [`io::ErrorKind::InvalidInput`]
/// if the regions have more than 65,535 bytes together.
pub fn exchange(
    stream: &mut (impl Read + Write),
    info: &ConnectInfo,
    lent: &[RemoteRegion],
) -> io::Result<(ConnectInfo, Vec<RemoteRegion>)> {
    let regions: Vec<u8> = lent.iter().flat_map(RemoteRegion::encode).collect();
    let mut message = Vec::new();
    for part in [info.encode(), regions] {
        let len = u16::try_from(part.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "too many regions for one handshake"))?;
        message.extend_from_slice(&len.to_be_bytes());
        message.extend_from_slice(&part);
    }
    stream.write_all(&message)?;
    stream.flush()?;

    let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let info = ConnectInfo::decode(&receive(stream)?).map_err(malformed)?;
    let bytes = receive(stream)?;
    let mut reader = Reader::new(&bytes);
    let mut regions = Vec::new();
    while !reader.is_empty() {
        regions.push(
            RemoteRegion::take(&mut reader)
                .map_err(|_| malformed(mitra_verbs::Error::Invalid("malformed remote region")))?,
        );
    }
    Ok((info, regions))
}

/// Tells the peer that this end has connected, and waits until the peer has. Without this step, a
/// request may reach a peer that is not connected yet. Such a request is sent again, and may end as
/// [`PeerUnreachable`](crate::CloseReason::PeerUnreachable) if the peer takes long.
///
/// # Errors
/// As [`exchange`].
pub fn confirm(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(&[CONNECTED])?;
    stream.flush()?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    if byte == [CONNECTED] {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the peer sent something else than that it has connected"))
}

fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect_info::tests::info;
    use mitra_verbs::{Key, RemoteAddr};
    use std::os::unix::net::UnixStream;

    /// A peer that sends the first field and stores in the second what it receives.
    struct Scripted<'a>(&'a [u8], Vec<u8>);

    impl Read for Scripted<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for Scripted<'_> {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.1.write(buf)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn region(len: u64) -> RemoteRegion {
        RemoteRegion::new(len, smallvec::smallvec![RemoteAddr { addr: 9, rkey: Key(8) }; 2])
    }

    fn answer_to(bytes: &[u8]) -> io::Result<(ConnectInfo, Vec<RemoteRegion>)> {
        exchange(&mut Scripted(bytes, Vec::new()), &info(), &[])
    }

    fn sent() -> Vec<u8> {
        let mut peer = Scripted(&[], Vec::new());
        exchange(&mut peer, &info(), &[region(64), region(8)]).unwrap_err();
        peer.1
    }

    #[test]
    fn both_ends_learn_of_each_other() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let peer = std::thread::spawn(move || {
            let learned = exchange(&mut other, &info(), &[]).unwrap();
            confirm(&mut other).unwrap();
            learned
        });
        assert_eq!(exchange(&mut one, &info(), &[region(64), region(8)]).unwrap(), (info(), vec![]));
        confirm(&mut one).unwrap();
        assert_eq!(peer.join().unwrap(), (info(), vec![region(64), region(8)]));
    }

    #[test]
    fn hostile_peers_are_refused_with_bounded_memory() {
        let bytes = sent();
        assert_eq!(answer_to(&bytes).unwrap().1.len(), 2);
        for len in 0..bytes.len() {
            assert_eq!(answer_to(&bytes[..len]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        let longest = vec![0xff; 1 << 20];
        let mut peer = Scripted(&longest, Vec::new());
        assert_eq!(exchange(&mut peer, &info(), &[]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(peer.0.len() >= longest.len() - (2 << 16), "no more is read than two messages");
        // A truncated region, and a region without rails.
        let info = info().encode();
        for regions in [&region(8).encode()[1..], &[0][..]] {
            let parts = [&info[..], regions].map(|part| [&(part.len() as u16).to_be_bytes(), part].concat());
            assert_eq!(answer_to(&parts.concat()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn confirmation_is_one_byte() {
        assert!(confirm(&mut Scripted(&[CONNECTED], Vec::new())).is_ok());
        assert_eq!(confirm(&mut Scripted(&[], Vec::new())).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(confirm(&mut Scripted(b"x", Vec::new())).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn too_many_regions_are_refused_before_anything_is_sent() {
        let mut peer = Scripted(&[], Vec::new());
        let error = exchange(&mut peer, &info(), &vec![region(8); 3000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(peer.1.is_empty());
    }
}

//! The requests of the memory placement extensions (IBTA annex A19): FLUSH and ATOMIC WRITE.
//! Mitra's NICs do not execute them, and [`Packet::parse`](crate::Packet::parse) refuses them.
//! Tools show those of other devices.

use core::fmt;

use crate::error::ParseError;
use crate::extension_headers::Reth;
use crate::opcode;
use crate::packet::HeaderReader;
use crate::psn::{Psn, Qpn};

/// A FLUSH or an ATOMIC WRITE of a reliable connection, without the flags of its BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacementRequest {
    /// The number of the receiving queue pair.
    pub dest_qp: Qpn,
    /// The packet sequence number.
    pub psn: Psn,
    /// The operation.
    pub operation: PlacementOperation,
    /// The responder's memory.
    pub reth: Reth,
}

/// The operation of a [`PlacementRequest`], with what it has besides the RETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlacementOperation {
    /// Makes earlier writes visible or persistent.
    Flush(Feth),
    /// Writes 8 bytes at once: the payload, read as a big-endian number.
    AtomicWrite(u64),
}

/// Flush extended transport header (annex A19). Its other bits are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// The placement type, 4 bits: 1 global visibility, 2 persistence, 3 both.
    pub placement: u8,
    /// The selectivity level, 2 bits: 0 the range of the RETH, 1 the whole memory region.
    pub selectivity: u8,
}

impl PlacementRequest {
    /// Parses a UDP payload without its ICRC.
    ///
    /// # Errors
    /// [`ParseError::UnknownOpcode`] for every other opcode, and the errors of
    /// [`Packet::parse`](crate::Packet::parse).
    pub fn parse(datagram: &[u8]) -> Result<PlacementRequest, ParseError> {
        let mut headers = HeaderReader::new(datagram);
        let bth: &[u8; crate::BTH_LEN] = headers.take()?;
        let version = bth[1] & 0x0f;
        if version != 0 {
            return Err(ParseError::BadVersion(version));
        }
        let (operation, reth) = match bth[0] {
            opcode::FLUSH => {
                let bits = headers.word()?;
                let feth = Feth { placement: (bits & 0xf) as u8, selectivity: (bits >> 4 & 3) as u8 };
                (PlacementOperation::Flush(feth), headers.reth()?)
            }
            opcode::ATOMIC_WRITE => {
                let reth = headers.reth()?;
                (PlacementOperation::AtomicWrite(u64::from_be_bytes(*headers.take()?)), reth)
            }
            other => return Err(ParseError::UnknownOpcode(other)),
        };
        let rest = headers.rest().len();
        match bth[1] >> 4 & 3 {
            0 if rest == 0 => {}
            0 => return Err(ParseError::UnexpectedPayload(rest)),
            pad => return Err(ParseError::BadPad { pad, available: rest }),
        }
        Ok(PlacementRequest {
            dest_qp: Qpn::new(u32::from_be_bytes([0, bth[5], bth[6], bth[7]])),
            psn: Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]])),
            operation,
            reth,
        })
    }

    /// Returns the opcode byte.
    pub const fn opcode(&self) -> u8 {
        match self.operation {
            PlacementOperation::Flush(_) => opcode::FLUSH,
            PlacementOperation::AtomicWrite(_) => opcode::ATOMIC_WRITE,
        }
    }
}

impl fmt::Display for PlacementRequest {
    /// Writes the opcode, the destination QP, the PSN and the headers, as for a
    /// [`Packet`](crate::Packet).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = opcode::name(self.opcode()).unwrap_or_default();
        write!(f, "{name} qp {} psn {}", self.dest_qp, self.psn)?;
        match self.operation {
            PlacementOperation::Flush(Feth { placement, selectivity }) => {
                write!(f, " placement {placement} selectivity {selectivity} {}", self.reth)
            }
            PlacementOperation::AtomicWrite(value) => write!(f, " {} value 0x{value:x}", self.reth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETH: [u8; 16] = [0, 0, 0x7f, 0xdb, 0x99, 0x71, 0xc0, 0, 0, 0, 0x0a, 5, 0, 0, 0, 8];

    fn datagram(code: u8, parts: &[&[u8]]) -> Vec<u8> {
        [&[code, 0, 0xff, 0xff, 0, 0, 0, 0x19, 0x80, 0, 0x10, 0], &parts.concat()[..]].concat()
    }

    /// The layouts are those of Linux's rxe (`rxe_opcode.c`, `rxe_hdr.h`).
    #[test]
    fn requests_have_the_layout_of_rxe() {
        let flush = datagram(0x1c, &[&[0, 0, 0, 0x12], &RETH]);
        let shown = PlacementRequest::parse(&flush).unwrap().to_string();
        let reth = "va 0x7fdb9971c000 rkey 0x00000a05 dmalen 8";
        assert_eq!(shown, format!("RC_FLUSH qp 0x000019 psn 4096 placement 2 selectivity 1 {reth}"));
        let write = datagram(0x1d, &[&RETH, &[1, 2, 3, 4, 5, 6, 7, 8]]);
        let shown = PlacementRequest::parse(&write).unwrap().to_string();
        assert_eq!(shown, format!("RC_ATOMIC_WRITE qp 0x000019 psn 4096 {reth} value 0x102030405060708"));
        // The NIC does not take them for what it executes.
        for request in [flush, write] {
            assert_eq!(crate::Packet::parse(&request), Err(ParseError::UnknownOpcode(request[0])));
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        let flush = datagram(0x1c, &[&[0; 4], &RETH]);
        let parse = PlacementRequest::parse;
        for cut in 0..flush.len() {
            assert!(matches!(parse(&flush[..cut]), Err(ParseError::Truncated { have, .. }) if have == cut));
        }
        assert_eq!(parse(&[&flush[..], &[0; 4]].concat()), Err(ParseError::UnexpectedPayload(4)));
        let edited = |at: usize, byte: u8| {
            let mut edited = flush.clone();
            edited[at] = byte;
            edited
        };
        assert_eq!(parse(&edited(1, 0x10)), Err(ParseError::BadPad { pad: 1, available: 0 }));
        assert_eq!(parse(&edited(1, 1)), Err(ParseError::BadVersion(1)));
        for other in [0x0a, 0x1b, 0x1e, 0x3c, 0xbc] {
            assert_eq!(parse(&edited(0, other)), Err(ParseError::UnknownOpcode(other)));
        }
    }
}

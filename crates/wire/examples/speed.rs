//! Measures how long it takes to parse, emit, seal and verify packets:
//! `cargo run --release -p mitra-wire --example speed`.
//!
//! A block is 2000 calls of one operation. The program runs a block of each operation in turn, 201
//! times, so that other load on the machine affects all operations alike. It prints the median over
//! the blocks of each operation. The columns `crc only` and `again` are measurements of the same
//! operation. Their difference is the noise of the measurement.

use std::hint::black_box;
use std::time::Instant;

use mitra_wire::*;

const BLOCKS: usize = 201;
const CALLS: u32 = 2000;

fn main() {
    let path = IcrcPath::new("127.0.0.2:49152".parse().unwrap(), "127.0.0.3:4791".parse().unwrap());
    println!("nanoseconds a call, median of {BLOCKS} blocks of {CALLS}");
    println!(
        "{:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "datagram", "crc only", "again", "parse", "emit", "seal", "verify", "solve", "reject"
    );
    for payload_len in [0, 64, 256, 1024, 4096] {
        let payload = vec![0x5a; payload_len];
        let reth = Reth { va: 0x7fdb_9971_c000, rkey: 0xa05, len: payload_len as u32 };
        let packet =
            Packet::new(Transport::Rc, Qpn::new(0x11), Psn::new(5), Message::WriteOnly(reth), &payload);
        let mut sealed = Vec::new();
        packet.emit_to(&mut sealed);
        sealed.extend_from_slice(&[0; ICRC_LEN]);
        path.seal(&mut sealed, 7);
        let len = sealed.len();
        let mut bad = sealed.clone();
        bad[len - 1] ^= 1;
        let mut out = Vec::with_capacity(len);
        let mut to_seal = sealed.clone();

        let crc = || {
            black_box(crc32fast::hash(black_box(&sealed[..len - ICRC_LEN])));
        };
        let mut operations: [&mut dyn FnMut(); 8] = [
            &mut { crc },
            &mut { crc },
            &mut || {
                black_box(Packet::parse(black_box(&sealed[..len - ICRC_LEN])).is_ok());
            },
            &mut || {
                out.clear();
                black_box(&packet).emit_to(&mut out);
                black_box(&out);
            },
            &mut || path.seal(black_box(&mut to_seal), 7),
            &mut || assert!(path.verify(black_box(&sealed), 7).is_good()),
            &mut || assert!(path.verify(black_box(&sealed), 99).is_good()),
            &mut || assert!(!path.verify(black_box(&bad), 7).is_good()),
        ];
        let mut times: [Vec<f64>; 8] = std::array::from_fn(|_| Vec::with_capacity(BLOCKS));
        for _ in 0..BLOCKS {
            for (operation, times) in operations.iter_mut().zip(&mut times) {
                let start = Instant::now();
                (0..CALLS).for_each(|_| operation());
                times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
            }
        }
        print!("{len:>8}");
        for times in &mut times {
            times.sort_by(f64::total_cmp);
            print!(" {:>8.1}", times[BLOCKS / 2]);
        }
        println!();
    }
}

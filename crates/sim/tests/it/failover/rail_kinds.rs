//! Rails that differ in MTU and speed, also between the two NICs of a rail.

use core::time::Duration;

use mitra_failover::{CompletionLogConfig, Config, Outcome, Service};
use mitra_sim::{Failure, Testbed, World};
use mitra_verbs::{Data, Mtu, SendOp, WcOpcode};

use crate::vqp_pair::{VqpPair, config};

const LEN: u32 = 20_000;
const TARGET: u64 = 8192;
const WORD: u64 = 40_000;
const PATTERN: u64 = 0x5555_5555_5555_5555;

/// The MTUs of the NICs, by rail and host.
const MTUS: [[[Mtu; 2]; 2]; 6] = [
    [[Mtu::M1024; 2], [Mtu::M1024; 2]],
    [[Mtu::M4096; 2], [Mtu::M256; 2]],
    [[Mtu::M256; 2], [Mtu::M4096; 2]],
    [[Mtu::M1024; 2], [Mtu::M2048; 2]],
    [[Mtu::M4096, Mtu::M512], [Mtu::M1024; 2]],
    [[Mtu::M4096; 2], [Mtu::M2048, Mtu::M1024]],
];
const FAST: Duration = Duration::from_nanos(80);
const SLOW: Duration = Duration::from_micros(8);

/// Returns a pair over two rails. `mtus` is indexed by rail and host, and `kib_times` by rail.
fn pair(mtus: [[Mtu; 2]; 2], kib_times: [Duration; 2], config: Config) -> VqpPair {
    let mut world = World::with_config(1, mitra_sim::Config::fault_free());
    for (rail, kib_time) in (0..).zip(kib_times) {
        let link = mitra_sim::LinkConfig { kib_time, ..world.config().link };
        world.set_rail_link(rail, link);
    }
    let hosts = ["a", "b"].map(|name| world.add_host(name));
    let capabilities = world.config().capabilities;
    let nics = [0, 1].map(|h: usize| {
        (0..)
            .zip(mtus)
            .map(|(rail, mtu)| world.add_nic_with_mtu(hosts[h], rail, capabilities, mtu[h]))
            .collect()
    });
    let mut config = config;
    config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(12); // the slow rail is not silent
    VqpPair::with_testbed(Testbed { world, hosts, nics }, config)
}

fn reliable_pair(mtus: [[Mtu; 2]; 2], kib_times: [Duration; 2], completion_log: bool) -> VqpPair {
    let completion_log = completion_log.then(CompletionLogConfig::default);
    let mut pair = pair(mtus, kib_times, Config { completion_log, ..config() });
    pair.recv(1, 1, 0);
    pair.recv(1, 2, 64);
    pair.poll_times(&[0, 1], 10);
    pair
}

/// Posts an operation of each kind, fails rail 0 after `after`, and checks the outcomes and the
/// memory. Returns the number of operations of which rail 0 had executed a part.
fn check(mut pair: VqpPair, after: Duration, at: usize, failure: Failure, label: &str) -> u32 {
    pair.memory[0].write_at(0, &[0x55; LEN as usize]);
    let whole = Data::sge(pair.mr[0].sge(0, LEN));
    pair.send(0, 0, SendOp::WriteWithImm(pair.remote(1, TARGET), 9), whole);
    let add = SendOp::FetchAdd { remote: pair.remote(1, WORD), add: 5 };
    pair.send(0, 1, add, Data::sge(pair.mr[0].sge(WORD, 8)));
    pair.send_message(2, 77);
    pair.send(0, 3, SendOp::Read(pair.remote(1, WORD)), Data::sge(pair.mr[0].sge(WORD + 8, 8)));
    pair.testbed.world.run_for(after);
    let nic = pair.testbed.nics[at][0].id();
    pair.testbed.world.fail(nic, failure);
    pair.poll_times(&[0, 1], 2000);
    let moved = [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()];
    assert_eq!(moved, [1; 2], "{label}: {:?}", pair.vqps.each_ref().map(|vqp| vqp.close_reason()));
    let outcomes: Vec<_> = pair.completions[0].iter().map(|c| (c.wr_id, c.outcome)).collect();
    assert_eq!(outcomes, [0, 1, 2, 3].map(|wr_id| (wr_id, Outcome::Success)), "{label}");
    for offset in (0..LEN as usize).step_by(8) {
        assert_eq!(pair.memory[1].load(TARGET as usize + offset), PATTERN, "{label}: byte {offset}");
    }
    let words = [
        pair.memory[1].load(WORD as usize),
        pair.memory[0].load(WORD as usize),
        pair.memory[0].load(WORD as usize + 8),
    ];
    assert_eq!(words, [5, 0, 5], "{label}");
    // The receive of a WRITE that continues on the new rail has the whole length.
    let received: Vec<_> = pair.completions[1].iter().map(|c| (c.opcode, c.byte_len, c.outcome)).collect();
    let expected = [(WcOpcode::RecvWithImm, LEN, Outcome::Success), (WcOpcode::Recv, 8, Outcome::Success)];
    assert_eq!(received, expected, "{label}");
    pair.vqps[0].last_failover().expect("the vQP has moved").stats.torn
}

/// A WRITE that one rail has torn continues on the other rail at the byte at which it was torn. All
/// packets have the smallest MTU of all NICs, so both rails cut the WRITE into the same packets.
#[test]
fn operations_move_between_rails_of_different_mtus_and_speeds() {
    let (fast, slow) = (FAST, SLOW);
    let mut torn = 0;
    for mtus in MTUS {
        for kib_times in [[fast, fast], [fast, slow], [slow, fast]] {
            for (at, failure) in [(0, Failure::LinkDown), (1, Failure::LinkDown), (0, Failure::NicDead)] {
                for part in 0..4 {
                    // About the time in which rail 0 carries this number of quarters of the WRITE.
                    let after = kib_times[0] * LEN.div_ceil(1024) * part / 4;
                    let label = format!("{mtus:?}, {kib_times:?}, {failure:?} of host {at} after {after:?}");
                    torn += check(reliable_pair(mtus, kib_times, part % 2 == 1), after, at, failure, &label);
                }
            }
        }
    }
    assert!(torn > 20, "only {torn} operations were torn");
}

/// The failure tears one of the long messages of an unreliable connection. The messages that arrive
/// are whole and in order. No message that is sent after the move is lost.
#[test]
fn unreliable_messages_move_between_rails_of_different_mtus_and_speeds() {
    const MESSAGES: u64 = 6;
    const SENDS: u64 = LEN as u64 * 2;
    let mut lost = 0;
    for mtus in MTUS {
        for kib_times in [[FAST, FAST], [FAST, SLOW], [SLOW, FAST]] {
            for (at, failure) in [(0, Failure::LinkDown), (1, Failure::LinkDown), (1, Failure::NicDead)] {
                for part in 0..5 {
                    // About the time in which rail 0 carries `part` halves of a message.
                    let after = kib_times[0] * LEN.div_ceil(1024) * part / 2;
                    let label = format!("{mtus:?}, {kib_times:?}, {failure:?} of host {at} after {after:?}");
                    let mut pair = pair(mtus, kib_times, Config { service: Service::Unreliable, ..config() });
                    let receive = |pair: &mut VqpPair, wr_id| {
                        let sge = pair.mr[1].sge(0, LEN);
                        let wr = mitra_verbs::RecvWr::new(wr_id, sge);
                        pair.vqps[1].post_recv(wr).expect("the receive queue has room");
                    };
                    receive(&mut pair, 0);
                    pair.poll_times(&[0, 1], 10);
                    let (mut received, mut last) = (0, 0);
                    for number in 1..=MESSAGES {
                        pair.memory[0].write_at(SENDS as usize, &[number as u8; LEN as usize]);
                        let whole = Data::sge(pair.mr[0].sge(SENDS, LEN));
                        match number % 2 {
                            0 => {
                                let op = SendOp::WriteWithImm(pair.remote(1, 0), number as u32);
                                pair.send(0, number, op, whole);
                            }
                            _ => pair.send(0, number, SendOp::SendWithImm(number as u32), whole),
                        }
                        if number == 2 {
                            pair.testbed.world.run_for(after);
                            let nic = pair.testbed.nics[at][0].id();
                            pair.testbed.world.fail(nic, failure);
                        }
                        pair.poll_times(&[0, 1], 400);
                        assert_eq!(pair.outcome(0, number, false), Some(Outcome::Success), "{label}");
                        for completion in core::mem::take(&mut pair.completions[1]) {
                            let imm = u64::from(completion.imm.expect("it has immediate data"));
                            assert_eq!((completion.outcome, completion.byte_len), (Outcome::Success, LEN));
                            assert!(imm > last && imm <= number, "{label}: {imm} after {last}");
                            for offset in (0..LEN as usize).step_by(8) {
                                let word = u64::from_ne_bytes([imm as u8; 8]);
                                assert_eq!(pair.memory[1].load(offset), word, "{label}: byte {offset}");
                            }
                            (received, last) = (received + 1, imm);
                            receive(&mut pair, imm);
                        }
                        assert!(number <= 2 || last == number, "{label}: {number} is lost");
                    }
                    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1; 2], "{label}");
                    lost += MESSAGES - received;
                }
            }
        }
    }
    assert!(lost > 20, "only {lost} messages were lost");
}

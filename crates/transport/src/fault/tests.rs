use mitra_wire::{Aeth, AtomicEth, Deth, NakCode, Qpn, Reth};
use proptest::prelude::*;

use super::*;

const ACK: Message = Message::Ack(Aeth { syndrome: Syndrome::ACK, msn: 0 });
const NAK: Message = Message::Ack(Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: 0 });
const WRITE_FIRST: Message = Message::WriteFirst(Reth { va: 0, rkey: 0, len: 0 });
const WRITE: Message = Message::WriteOnly(Reth { va: 0, rkey: 0, len: 0 });
const READ: Message = Message::ReadRequest(Reth { va: 0, rkey: 0, len: 0 });
const FAILING: [Failure; 3] = [Failure::LinkDown, Failure::NicDead, Failure::NicHung];

fn rc(psn: u32, message: Message) -> Packet<'static> {
    Packet::new(Transport::Rc, Qpn::new(0x11), Psn::new(psn), message, &[])
}

fn armed(script: &str) -> Faults {
    let mut faults = Faults::new([1; 32]);
    faults.arm(script.parse().unwrap());
    faults
}

fn pass() -> TapResult {
    TapResult { verdict: Verdict::Pass, failure: None }
}

fn drop_packet() -> TapResult {
    TapResult { verdict: Verdict::Drop, failure: None }
}

/// Checks that `failure` is the only failure.
fn assert_failed(faults: &Faults, failure: Failure) {
    assert_eq!(faults.link_up(), failure != Failure::LinkDown, "{failure}");
    assert_eq!(faults.host_access_ok(), !matches!(failure, Failure::NicDead | Failure::NicHung), "{failure}");
    assert_eq!(faults.dma_ok(), failure != Failure::NicDead, "{failure}");
    assert_eq!(faults.placement_ok(), !matches!(failure, Failure::NicDead | Failure::NotPlaced), "{failure}");
    assert!(!faults.is_idle());
    let result = if matches!(failure, Failure::LinkDown | Failure::NicDead) { drop_packet() } else { pass() };
    let datagram =
        Packet::new(Transport::Ud(Deth::default()), Qpn::new(1), Psn::new(0), Message::SendOnly, &[]);
    let mut after = faults.clone();
    for packet in [rc(7, WRITE), rc(7, ACK), datagram] {
        assert_eq!(after.transmit(&packet), result, "{failure} {packet}");
        assert_eq!(after.receive(&packet), result, "{failure} {packet}");
        assert_eq!(after.executed(&packet), None);
    }
}

/// Only a hung NIC lets the packet that fires a trigger pass.
fn fired(failure: Failure) -> TapResult {
    let verdict = if failure == Failure::NicHung { Verdict::Pass } else { Verdict::Drop };
    TapResult { verdict, failure: Some(failure) }
}

#[test]
fn all_packets_pass_without_faults() {
    let mut faults = Faults::new([0; 32]);
    assert!(
        faults.is_idle()
            && faults.link_up()
            && faults.host_access_ok()
            && faults.dma_ok()
            && faults.placement_ok()
    );
    assert_eq!(faults.transmit(&rc(0, WRITE)), pass());
    assert_eq!(faults.receive(&rc(0, WRITE)), pass());
    assert_eq!(faults.executed(&rc(0, WRITE)), None);
}

#[test]
fn injected_failures_set_state_until_healed() {
    for failure in Failure::ALL {
        let mut faults = Faults::new([0; 32]);
        faults.fail(failure);
        assert_failed(&faults, failure);
    }
    let mut faults = Faults::new([0; 32]);
    faults.fail(Failure::LinkDown);
    faults.heal_link();
    assert!(faults.is_idle());
    faults.fail(Failure::NotPlaced);
    faults.resume_placement();
    assert!(faults.is_idle());
    faults.fail(Failure::NicDead);
    faults.fail(Failure::NicHung);
    faults.heal_link();
    assert_failed(&faults, Failure::NicDead);
}

#[test]
fn stage_1_trigger_fails_at_posted_request() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@1:2"));
        assert!(!faults.is_idle());
        assert_eq!(faults.transmit(&rc(0, WRITE_FIRST)), pass());
        assert_eq!(faults.transmit(&rc(9, ACK)), pass());
        assert_eq!(faults.receive(&rc(0, WRITE)), pass());
        assert_eq!(faults.transmit(&rc(1, Message::WriteLast)), fired(failure));
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_2_trigger_fails_with_request_on_wire() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@2:2"));
        assert_eq!(faults.transmit(&rc(0, READ)), pass());
        assert_eq!(faults.transmit(&rc(9, NAK)), pass());
        let result = TapResult { verdict: Verdict::Drop, failure: Some(failure) };
        assert_eq!(faults.transmit(&rc(1, WRITE)), result);
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_3_trigger_fails_at_arrived_request() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@3:2"));
        assert_eq!(faults.receive(&rc(0, Message::SendFirst)), pass());
        assert_eq!(faults.receive(&rc(9, ACK)), pass());
        assert_eq!(faults.transmit(&rc(0, WRITE)), pass());
        assert_eq!(faults.receive(&rc(1, Message::SendMiddle)), fired(failure));
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_4_trigger_fails_at_partly_executed_message() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@4:2"));
        for (psn, message) in [(0, WRITE_FIRST), (1, Message::WriteLast), (2, WRITE)] {
            assert_eq!(faults.receive(&rc(psn, message)), pass());
            assert_eq!(faults.executed(&rc(psn, message)), None);
        }
        assert_eq!(faults.receive(&rc(3, Message::SendFirst)), pass());
        assert_eq!(faults.executed(&rc(3, Message::SendFirst)), Some(failure));
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_5_trigger_fails_at_executed_message() {
    let completing = [
        WRITE,
        READ,
        Message::FetchAdd(AtomicEth::default()),
        Message::CompareSwap(AtomicEth::default()),
        Message::SendLast,
        Message::SendLastInv(1),
        Message::WriteLastImm(1),
    ];
    for failure in FAILING {
        for message in completing {
            let mut faults = armed(&format!("{failure}@5:2"));
            for (psn, message) in
                [(0, WRITE_FIRST), (1, Message::WriteMiddle), (2, Message::WriteLast), (9, ACK)]
            {
                assert_eq!(faults.executed(&rc(psn, message)), None);
            }
            assert_eq!(faults.executed(&rc(3, message)), Some(failure));
            assert_failed(&faults, failure);
        }
    }
}

#[test]
fn stage_6_trigger_fails_with_ack_on_wire() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@6:2"));
        assert_eq!(faults.transmit(&rc(0, Message::ReadMiddle)), pass());
        assert_eq!(faults.transmit(&rc(0, WRITE)), pass());
        assert_eq!(faults.receive(&rc(0, ACK)), pass());
        let result = TapResult { verdict: Verdict::Drop, failure: Some(failure) };
        assert_eq!(faults.transmit(&rc(1, ACK)), result);
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_7_trigger_fails_at_acknowledged_request() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@7:2"));
        assert_eq!(faults.receive(&rc(0, ACK)), pass());
        assert_eq!(faults.receive(&rc(0, WRITE)), pass());
        assert_eq!(faults.transmit(&rc(1, ACK)), pass());
        assert_eq!(
            faults.receive(&rc(1, Message::AtomicAck(Aeth { syndrome: Syndrome::ACK, msn: 0 }, 5))),
            fired(failure)
        );
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_8_trigger_fails_at_ack_before_placement() {
    for failure in FAILING {
        let mut faults = armed(&format!("{failure}@8:2"));
        assert_eq!(faults.receive(&rc(0xff_fffe, WRITE)), pass());
        assert!(faults.placement_ok());
        let holds = TapResult { verdict: Verdict::Pass, failure: Some(Failure::NotPlaced) };
        assert_eq!(faults.receive(&rc(0xff_ffff, WRITE)), holds);
        assert!(faults.host_access_ok() && faults.dma_ok() && !faults.placement_ok());
        // An acknowledgement of an earlier request, a NAK and a request of this NIC do not fire the
        // trigger.
        for (psn, message) in [(0xff_fffe, ACK), (0xff_ffff, NAK), (0, WRITE)] {
            assert_eq!(faults.transmit(&rc(psn, message)), pass());
        }
        assert_eq!(faults.receive(&rc(0, WRITE)), pass());
        assert!(!faults.placement_ok());
        // One acknowledgement for both requests is sent, and then the failure happens.
        let leaves = TapResult { verdict: Verdict::Pass, failure: Some(failure) };
        assert_eq!(faults.transmit(&rc(0, ACK)), leaves);
        assert_failed(&faults, failure);
    }
}

#[test]
fn stage_8_with_not_placed_holds_placement_back() {
    let mut faults = armed("not-placed@8:1");
    faults.receive(&rc(0, WRITE));
    let result = TapResult { verdict: Verdict::Pass, failure: Some(Failure::NotPlaced) };
    assert_eq!(faults.transmit(&rc(0, ACK)), result);
    assert_failed(&faults, Failure::NotPlaced);
    faults.fail(Failure::NicDead);
    assert_failed(&faults, Failure::NicDead);
}

#[test]
fn triggers_count_only_rc_packets() {
    for stage in Stage::ALL {
        let mut faults = armed(&format!("nic-dead@{stage}:1"));
        for transport in [Transport::Uc, Transport::Ud(Deth::default())] {
            let packet = Packet::new(transport, Qpn::new(1), Psn::new(0), Message::SendOnly, &[]);
            assert_eq!(faults.transmit(&packet), pass());
            assert_eq!(faults.receive(&packet), pass());
            assert_eq!(faults.executed(&packet), None);
        }
        assert!(faults.placement_ok());
    }
}

#[test]
fn trigger_fires_once_and_can_be_disarmed() {
    let mut faults = armed("link-down@1:1");
    assert_eq!(faults.transmit(&rc(0, WRITE)).failure, Some(Failure::LinkDown));
    faults.heal_link();
    assert!(faults.is_idle());
    faults.arm("link-down@1:1".parse().unwrap());
    faults.disarm_all();
    assert!(faults.is_idle());
    assert_eq!(faults.transmit(&rc(0, WRITE)), pass());

    let mut faults = armed("nic-dead@8:1");
    faults.receive(&rc(0, WRITE));
    assert!(!faults.placement_ok());
    faults.disarm_all();
    assert!(faults.placement_ok() && faults.is_idle());
}

#[test]
fn several_triggers_count_independently() {
    let mut faults = armed("link-down@1:3");
    faults.arm("nic-hung@1:1".parse().unwrap());
    faults.arm("nic-dead@1:3".parse().unwrap());
    assert_eq!(faults.transmit(&rc(0, WRITE)), fired(Failure::NicHung));
    assert_eq!(faults.transmit(&rc(1, WRITE)), pass());
    assert_eq!(faults.transmit(&rc(2, WRITE)), fired(Failure::LinkDown));
    assert!(!faults.link_up() && !faults.dma_ok());
}

#[test]
fn noise_has_configured_rates_and_is_deterministic() {
    let noise: Noise =
        "drop=100000ppm,corrupt=50000ppm,dup=200000ppm,reorder=20000ppm,delay=1ms".parse().unwrap();
    let run = |seed| {
        let mut faults = Faults::new([seed; 32]);
        faults.set_noise_tx(noise);
        (0..100_000).map(|psn| faults.transmit(&rc(psn, WRITE)).verdict).collect::<Vec<_>>()
    };
    let verdicts = run(1);
    let share = |of: fn(&Verdict) -> bool| verdicts.iter().filter(|v| of(v)).count() as f64 / 1e5;
    for (share, expected) in [
        (share(|v| *v == Verdict::Drop), 0.1),
        (share(|v| matches!(v, Verdict::Corrupt(_))), 0.05),
        (share(|v| *v == Verdict::Duplicate), 0.2),
        (share(|v| matches!(v, Verdict::Delay(d) if *d < Duration::from_millis(1))), 0.02),
        (share(|v| *v == Verdict::Pass), 0.63),
    ] {
        assert!((share - expected).abs() < 0.005, "{share} is not {expected}");
    }
    assert_eq!(verdicts, run(1));
    assert_ne!(verdicts, run(2));
}

#[test]
fn packets_lost_to_noise_are_not_counted_as_arrived() {
    for noise in ["drop=1000000ppm", "corrupt=1000000ppm"] {
        let mut faults = armed("nic-dead@3:1");
        faults.set_noise_rx(noise.parse().unwrap());
        assert_eq!(faults.receive(&rc(0, WRITE)).failure, None);
        faults.set_noise_rx("dup=1000000ppm".parse().unwrap());
        assert_eq!(faults.receive(&rc(0, WRITE)), fired(Failure::NicDead));
    }
    let mut faults = armed("nic-dead@2:1");
    faults.set_noise_tx("drop=1000000ppm".parse().unwrap());
    assert_eq!(
        faults.transmit(&rc(0, WRITE)).failure,
        Some(Failure::NicDead),
        "the packet has left the NIC before the noise drops it"
    );
}

#[test]
fn invalid_scripts_are_explained() {
    let trigger = |s: &str| s.parse::<Trigger>().unwrap_err().to_string();
    for (script, error) in [
        (
            "link-down",
            "\"link-down\" is not a failure trigger; use failure@stage:nth, for example link-down@6:40",
        ),
        (
            "link-down@6",
            "\"link-down@6\" is not a failure trigger; use failure@stage:nth, for example link-down@6:40",
        ),
        ("gone@6:1", "unknown failure \"gone\"; use link-down, nic-dead, nic-hung or not-placed"),
        ("nic-dead@6:0", "\"0\" is not a packet number; use a number from 1 to 4294967295"),
        ("nic-dead@6:x", "\"x\" is not a packet number; use a number from 1 to 4294967295"),
    ] {
        assert_eq!(trigger(script), error);
    }
    assert!(
        trigger("nic-dead@9:1").starts_with("\"9\" is not a stage; use 1 (posted), 2 (request on the wire),")
    );
    let noise = |s: &str| s.parse::<Noise>().unwrap_err().to_string();
    for (script, error) in [
        ("", "\"\" is not a noise setting; use for example drop=1000ppm, or none"),
        ("lose=1ppm", "unknown noise setting \"lose\"; use drop, corrupt, dup, reorder or delay"),
        ("drop=1%", "\"1%\" is not a rate; use 0ppm to 1000000ppm (1 % is 10000ppm)"),
        ("drop=1000001ppm", "\"1000001ppm\" is not a rate; use 0ppm to 1000000ppm (1 % is 10000ppm)"),
        (
            "drop=600000ppm,dup=600000ppm",
            "\"drop=600000ppm,dup=600000ppm\" is 1200000ppm in total; reduce it to 1000000ppm at most",
        ),
        ("reorder=1ppm", "reorder needs a maximum delay; add for example delay=50us"),
        ("delay=5", "\"5\" is not a delay; use a whole number and ns, us, ms or s, for example 50us"),
        ("delay=-5us", "\"-5us\" is not a delay; use a whole number and ns, us, ms or s, for example 50us"),
        (
            "delay=99999999999999999s",
            "\"99999999999999999s\" is not a delay; use a whole number and ns, us, ms or s, for example 50us",
        ),
    ] {
        assert_eq!(noise(script), error);
    }
    assert_eq!("none".parse(), Ok(Noise::default()));
    assert_eq!("delay=1500us,dup=1ppm".parse::<Noise>().unwrap().to_string(), "dup=1ppm,delay=1500us");
}

proptest! {
    #[test]
    fn trigger_text_round_trips(stage in 0..8usize, failure in 0..4usize, nth in 1..u32::MAX) {
        let trigger = Trigger { stage: Stage::ALL[stage], failure: Failure::ALL[failure], nth };
        prop_assert_eq!(trigger.to_string().parse(), Ok(trigger));
    }

    #[test]
    fn noise_text_round_trips(ppm in prop::array::uniform4(0..250_001u32), nanos in 1..u64::MAX, unit in 0..3u32) {
        let [drop_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm] = ppm;
        let unit = 1000u64.pow(unit);
        let max_delay = Duration::from_nanos((nanos / unit).max(1) * unit);
        let noise = Noise { drop_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm, max_delay };
        prop_assert_eq!(noise.to_string().parse(), Ok(noise));
    }

    #[test]
    fn parsing_arbitrary_text_does_not_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<Trigger>();
        let _ = text.parse::<Noise>();
    }
}

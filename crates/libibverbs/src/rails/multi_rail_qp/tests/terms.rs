//! Ends whose settings differ.

use mitra_failover::Policy;
use mitra_verbs::Error;

use super::reset_in_turn::{reset_and_connect, reset_and_connect_while};
use super::*;

fn end(settings: &Settings) -> End {
    End::on(device_with((0..2).map(|_| nic()), settings), QpType::Rc, DEPTH, true)
}

fn settings() -> [Settings; 5] {
    let defaults = Settings::default();
    [
        defaults.clone(),
        Settings { prefer: Some(0), ..defaults.clone() },
        Settings { policy: Policy::Blanket, ..defaults.clone() },
        Settings { completion_log: true, ..defaults.clone() },
        Settings { prefer: Some(1), completion_log: true, ..defaults },
    ]
}

/// The message of an end with these options whose peer has the options `peer`.
fn message([own, peer]: [&str; 2]) -> Error {
    Error::Mismatch { local: own.to_owned(), peer: peer.to_owned() }
}

/// The first end refuses, and its program destroys the queue pair. The second end then asks for it.
#[test]
fn prefer_mismatch_is_explained_alike_at_both_ends() {
    let options = [
        ["no --prefer", "--prefer 0"],
        ["--policy exact", "--policy blanket"],
        ["no --log", "--log"],
        ["no --log, no --prefer", "--log, --prefer 1"],
    ];
    let [defaults, others @ ..] = settings();
    for (other, [without, with]) in others.iter().zip(options) {
        for has_defaults in [true, false] {
            let (first, second, options) = match has_defaults {
                true => (end(&defaults), end(other), [without, with]),
                false => (end(other), end(&defaults), [with, without]),
            };
            assert_eq!(reset_and_connect(&first, &second), Err(message(options)));
            first.device.destroy_qp(Arc::clone(&first.qp));
            let [own, peer] = options;
            assert_eq!(reset_and_connect(&second, &first), Err(message([peer, own])));
        }
    }
}

#[test]
fn prefer_mismatch_is_explained_if_the_peers_process_has_ended() {
    let [defaults, other, ..] = settings();
    let (first, second) = (end(&defaults), end(&other));
    assert_eq!(reset_and_connect(&first, &second), Err(message(["no --prefer", "--prefer 0"])));
    let error = reset_and_connect_while(&second, &first, || {});
    assert_eq!(error, Err(message(["--prefer 0", "no --prefer"])));
    let unasked = end(&defaults);
    let error = reset_and_connect_while(&unasked, &first, || {}).expect_err("the peer does not answer");
    assert!(matches!(error, Error::Invalid(text) if text.contains("does not answer")), "{error}");
}

/// Nothing authenticates the terms in a query, so they cause no refusal.
#[test]
fn terms_of_other_devices_neither_refuse_nor_explain() {
    let [defaults, other, ..] = settings();
    let (a, b, stranger) = (end(&defaults), end(&defaults), end(&other));
    let unequal = reset_and_connect(&stranger, &b);
    assert_eq!(unequal, Err(message(["--prefer 0", "no --prefer"])));
    let c = end(&defaults);
    c.device.destroy_qp(Arc::clone(&c.qp));
    let error = reset_and_connect(&b, &c).expect_err("the queue pair is destroyed");
    assert!(matches!(error, Error::Invalid(text) if text.contains("no such queue pair")), "{error}");
    reset_and_connect(&a, &b).expect("the ends have the same settings");
}

//! Histories of a register that have a linearization, and histories that have none.

use mitra_model_check::{Operation, is_linearizable};

/// An operation of a register: a write of `Some(value)`, or a read.
type Register = Operation<Option<u8>, Option<u8>>;

fn write(value: u8, invoked_at: usize, responded_at: Option<usize>) -> Register {
    Operation { invocation: Some(value), invoked_at, response: responded_at.map(|at| (at, None)) }
}

fn read(value: u8, invoked_at: usize, responded_at: usize) -> Register {
    Operation { invocation: None, invoked_at, response: Some((responded_at, Some(value))) }
}

fn is_linearizable_register(history: &[Register]) -> bool {
    is_linearizable(&0, history, |state, invocation| match invocation {
        Some(value) => {
            *state = *value;
            None
        }
        None => Some(*state),
    })
}

#[test]
fn reads_after_a_write_return_its_value() {
    assert!(is_linearizable_register(&[]));
    assert!(is_linearizable_register(&[write(1, 0, Some(1)), read(1, 2, 3)]));
    assert!(
        !is_linearizable_register(&[write(1, 0, Some(1)), read(0, 2, 3)]),
        "the read returns an overwritten value"
    );
    assert!(
        !is_linearizable_register(&[read(1, 0, 1), write(1, 2, Some(3))]),
        "the read returns a value that is written later"
    );
}

#[test]
fn concurrent_operations_take_effect_in_one_order() {
    assert!(is_linearizable_register(&[write(1, 0, Some(9)), read(0, 1, 2), read(1, 3, 4)]));
    assert!(!is_linearizable_register(&[write(1, 0, Some(9)), read(1, 1, 2), read(0, 3, 4)]));
}

#[test]
fn operation_without_response_takes_effect_late_or_never() {
    for value in [0, 1] {
        assert!(is_linearizable_register(&[write(1, 0, None), read(0, 1, 2), read(value, 3, 4)]));
    }
    assert!(!is_linearizable_register(&[write(1, 0, None), read(1, 1, 2), read(0, 3, 4)]));
}

#[test]
fn long_history_with_little_concurrency_is_checked() {
    let overlapping = |n: u8| {
        let at = 4 * usize::from(n);
        [write(n, at, Some(at + 2)), read(n, at + 1, at + 3)]
    };
    let history: Vec<Register> = (0..60).flat_map(overlapping).collect();
    assert!(is_linearizable_register(&history));
}

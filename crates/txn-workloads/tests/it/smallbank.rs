//! SmallBank on the model of a store.

use std::collections::BTreeMap;
use std::mem::discriminant;

use mitra_prng::Prng;
use mitra_txn::{Abort, Model, RecordKey};
use mitra_txn_workloads::smallbank::{
    Balance, CHECKING, Hotspot, Input, Inputs, OVERDRAFT_FEE, Output, SAVINGS, load, total,
};
use mitra_txn_workloads::{Program, Value, replay};

use crate::SEED;

const ACCOUNTS: u64 = 1000;

fn run(store: &mut Model, input: Input) -> Result<Output, Abort> {
    store.run(async |tx| input.execute(tx).await).map(|output| output.expect("a store that is not corrupt"))
}

fn loaded(accounts: u64) -> Model {
    let mut store = Model::new();
    load(accounts, SEED).for_each(|(at, value)| store.load(at, value));
    store
}

#[test]
fn sum_changes_by_what_committed_transactions_say() {
    let mut store = loaded(ACCOUNTS);
    let mut again = store.clone();
    let before = total(store.records()).unwrap();
    let mut inputs = Inputs::new(ACCOUNTS, Hotspot::USUAL, Prng::stream(SEED, "inputs"));
    let mut history = Vec::new();
    let mut rolled_back = 0;
    for _ in 0..10_000 {
        let input = inputs.next_input();
        match run(&mut store, input) {
            Ok(output) => history.push((input, output)),
            Err(abort) => {
                assert_eq!(abort, Abort::RolledBack);
                rolled_back += 1;
            }
        }
    }
    let change: i64 = history.iter().map(|(_, output)| output.change).sum();
    assert_eq!(total(store.records()).unwrap(), before + i128::from(change));
    assert!(change != 0 && rolled_back > 0);
    replay(&mut again, history.iter().map(|(input, output)| (input, output))).unwrap();
    assert_eq!(again, store);
}

#[test]
fn each_transaction_does_what_it_says() {
    let mut store = Model::new();
    let at = |table, key| RecordKey { table, key };
    let set = |store: &mut Model, balances: [i64; 4]| {
        let keys = [at(SAVINGS, 0), at(CHECKING, 0), at(SAVINGS, 1), at(CHECKING, 1)];
        for (at, amount) in keys.into_iter().zip(balances) {
            store.load(at, Balance { amount }.encode());
        }
    };
    // The inputs, what the transaction has read and changed, and the savings and checking balances
    // of both accounts after it.
    let cases = [
        (Input::Balance { account: 0 }, Some((150, 0)), [100, 50, 20, 7]),
        (Input::DepositChecking { account: 0, amount: 8 }, Some((50, 8)), [100, 58, 20, 7]),
        (Input::TransactSavings { account: 0, amount: -100 }, Some((100, -100)), [0, 50, 20, 7]),
        (Input::TransactSavings { account: 0, amount: -101 }, None, [100, 50, 20, 7]),
        (Input::Amalgamate { from: 0, to: 1 }, Some((157, 0)), [0, 0, 20, 157]),
        (Input::WriteCheck { account: 0, amount: 150 }, Some((150, -150)), [100, -100, 20, 7]),
        (Input::WriteCheck { account: 0, amount: 151 }, Some((150, -251)), [100, -201, 20, 7]),
        (Input::SendPayment { from: 0, to: 1, amount: 50 }, Some((57, 0)), [100, 0, 20, 57]),
        (Input::SendPayment { from: 0, to: 1, amount: 51 }, None, [100, 50, 20, 7]),
    ];
    assert_eq!(OVERDRAFT_FEE, 100);
    for (input, output, balances) in cases {
        set(&mut store, [100, 50, 20, 7]);
        let expected = output.map(|(read, change)| Output { read, change }).ok_or(Abort::RolledBack);
        assert_eq!(run(&mut store, input), expected, "{input:?}");
        let mut after = Model::new();
        set(&mut after, balances);
        assert_eq!(store, after, "{input:?}");
    }
}

#[test]
fn mix_and_hotspot_are_as_stated() {
    let mut inputs = Inputs::new(ACCOUNTS, Hotspot::USUAL, Prng::stream(SEED, "inputs"));
    let mut payments = 0;
    let mut hot = 0;
    let mut others = BTreeMap::new();
    for _ in 0..20_000 {
        match inputs.next_input() {
            Input::SendPayment { from, to, amount } => {
                payments += 1;
                assert!(from != to && from < ACCOUNTS && to < ACCOUNTS && amount > 0);
                // A choice among all accounts may also fall on the 4 % that are hot.
                hot += u32::from(from < 40);
            }
            other => *others.entry(format!("{:?}", discriminant(&other))).or_insert(0) += 1,
        }
    }
    assert!((4700..5300).contains(&payments), "{payments}");
    assert!((payments * 89 / 100..payments * 92 / 100).contains(&hot), "{hot} of {payments}");
    assert_eq!(others.len(), 5);
    assert!(others.values().all(|count| (2750..3250).contains(count)), "{others:?}");
}

#[test]
fn two_accounts_are_enough_and_differ() {
    let mut inputs = Inputs::new(2, Hotspot::USUAL, Prng::new(1));
    for _ in 0..200 {
        if let Input::Amalgamate { from, to } = inputs.next_input() {
            assert_eq!(from + to, 1);
        }
    }
}

#[test]
fn damaged_balance_is_named() {
    let mut store = loaded(3);
    let at = RecordKey { table: CHECKING, key: 1 };
    store.load(at, vec![0; 7]);
    assert_eq!(total(store.records()).map_err(|(at, _)| at), Err(at));
}

//! SmallBank (Alomari et al., "The Cost of Serializability on Platforms That Use Snapshot
//! Isolation", ICDE 2008): each account has a savings and a checking balance, and six short
//! transactions move money.
//!
//! The look-up of an account by its owner's name is left out: a transaction names an account by its
//! number, as other systems over one-sided operations do.

use std::collections::BTreeMap;

use mitra_prng::Prng;
use mitra_txn::Access::{Read, Update};
use mitra_txn::{Abort, RecordKey, TableId, Transaction};

use crate::program::{Corrupt, Failure, Program, outcome, read};
use crate::value::{Damaged, Value, record};

/// An amount of money in cents.
pub type Cents = i64;

/// The table of savings balances. The key is the account's number.
pub const SAVINGS: TableId = TableId(16);

/// The table of checking balances. The key is the account's number.
pub const CHECKING: TableId = TableId(17);

/// The fee of a check that the account does not cover.
pub const OVERDRAFT_FEE: Cents = 1_00;

record! {
    /// A balance of an account.
    pub struct Balance {
        /// The amount. A checking balance may be below zero.
        pub amount: Cents,
    }
}

/// A transaction with its inputs. Amounts are above zero unless stated otherwise. The two accounts
/// of a transaction differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// Balance: reads both balances of an account.
    Balance {
        /// The account.
        account: u64,
    },
    /// DepositChecking: adds to the checking balance.
    DepositChecking {
        /// The account.
        account: u64,
        /// The amount.
        amount: Cents,
    },
    /// TransactSavings: adds to the savings balance, and rolls back if the savings balance would
    /// become negative.
    TransactSavings {
        /// The account.
        account: u64,
        /// The amount, below zero for a withdrawal.
        amount: Cents,
    },
    /// Amalgamate: moves both balances of an account to the checking balance of another account.
    Amalgamate {
        /// The account that is emptied.
        from: u64,
        /// The account that gets the sum.
        to: u64,
    },
    /// WriteCheck: takes the amount from the checking balance. If both balances together are less
    /// than the amount, it takes [`OVERDRAFT_FEE`] in addition.
    WriteCheck {
        /// The account.
        account: u64,
        /// The amount.
        amount: Cents,
    },
    /// SendPayment: moves between the checking balances of two accounts, and rolls back if the
    /// paying account has less than the amount.
    SendPayment {
        /// The account that pays.
        from: u64,
        /// The account that is paid.
        to: u64,
        /// The amount.
        amount: Cents,
    },
}

/// The result of a committed transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Output {
    /// The sum of the balances that the transaction has read, before it wrote. For SendPayment, the
    /// sum of the two checking balances.
    pub read: Cents,
    /// The change of the sum of all balances, in cents.
    pub change: Cents,
}

impl Input {
    async fn run(&self, tx: &mut impl Transaction) -> Result<Output, Failure> {
        match *self {
            Input::Balance { account } => {
                let [savings, checking] = balances(tx, [savings(account), checking(account)], Read).await?;
                Ok(Output { read: savings + checking, change: 0 })
            }
            Input::DepositChecking { account, amount } => {
                let [balance] = balances(tx, [checking(account)], Update).await?;
                put(tx, checking(account), balance + amount);
                Ok(Output { read: balance, change: amount })
            }
            Input::TransactSavings { account, amount } => {
                let [balance] = balances(tx, [savings(account)], Update).await?;
                if balance + amount < 0 {
                    return Err(Abort::RolledBack.into());
                }
                put(tx, savings(account), balance + amount);
                Ok(Output { read: balance, change: amount })
            }
            Input::Amalgamate { from, to } => {
                let accounts = [savings(from), checking(from), checking(to)];
                let [from_savings, from_checking, to_checking] = balances(tx, accounts, Update).await?;
                put(tx, savings(from), 0);
                put(tx, checking(from), 0);
                put(tx, checking(to), to_checking + from_savings + from_checking);
                Ok(Output { read: from_savings + from_checking + to_checking, change: 0 })
            }
            Input::WriteCheck { account, amount } => {
                let items = [(savings(account), Read), (checking(account), Update)];
                let mut found = read(tx, items).await?;
                let savings = found.required::<Balance>()?.amount;
                let balance = found.required::<Balance>()?.amount;
                let fee = if savings + balance < amount { OVERDRAFT_FEE } else { 0 };
                put(tx, checking(account), balance - amount - fee);
                Ok(Output { read: savings + balance, change: -amount - fee })
            }
            Input::SendPayment { from, to, amount } => {
                let [payer, payee] = balances(tx, [checking(from), checking(to)], Update).await?;
                if payer < amount {
                    return Err(Abort::RolledBack.into());
                }
                put(tx, checking(from), payer - amount);
                put(tx, checking(to), payee + amount);
                Ok(Output { read: payer + payee, change: 0 })
            }
        }
    }
}

impl Program for Input {
    type Output = Output;

    async fn execute<T: Transaction>(&self, tx: &mut T) -> Result<Result<Output, Corrupt>, Abort> {
        outcome(self.run(tx).await)
    }
}

fn savings(account: u64) -> RecordKey {
    RecordKey { table: SAVINGS, key: account }
}

fn checking(account: u64) -> RecordKey {
    RecordKey { table: CHECKING, key: account }
}

async fn balances<const N: usize>(
    tx: &mut impl Transaction,
    items: [RecordKey; N],
    access: mitra_txn::Access,
) -> Result<[Cents; N], Failure> {
    let mut found = read(tx, items.map(|at| (at, access))).await?;
    let mut amounts = [0; N];
    for amount in &mut amounts {
        *amount = found.required::<Balance>()?.amount;
    }
    Ok(amounts)
}

fn put(tx: &mut impl Transaction, at: RecordKey, amount: Cents) {
    tx.put(at, Balance { amount }.encode());
}

/// The records of a number of accounts before a run, with balances of 100.00 to 500.00 from a seed.
pub fn load(accounts: u64, seed: u64) -> impl Iterator<Item = (RecordKey, Vec<u8>)> {
    let mut prng = Prng::stream(seed, "smallbank load");
    (0..accounts)
        .flat_map(|account| [savings(account), checking(account)])
        .map(move |at| (at, Balance { amount: prng.between(100_00, 500_00) as Cents }.encode()))
}

/// How often accounts are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hotspot {
    /// The share of the choices that fall on the hot accounts, in percent.
    pub choices: u8,
    /// The share of the accounts that are hot, in percent. At least two accounts are hot.
    pub accounts: u8,
}

impl Hotspot {
    /// The hotspot of FORD and other systems over one-sided operations: 90 % of the choices fall on
    /// 4 % of the accounts.
    pub const USUAL: Hotspot = Hotspot { choices: 90, accounts: 4 };
}

/// The inputs of transactions.
#[derive(Clone, Debug)]
pub struct Inputs {
    accounts: u64,
    hotspot: Hotspot,
    prng: Prng,
}

impl Inputs {
    /// Inputs for a number of accounts.
    ///
    /// # Panics
    /// If there are fewer than two accounts.
    pub fn new(accounts: u64, hotspot: Hotspot, prng: Prng) -> Inputs {
        assert!(accounts >= 2, "SmallBank moves money between two accounts");
        Inputs { accounts, hotspot, prng }
    }

    /// The next transaction: a SendPayment with 25 %, every other kind with 15 %.
    pub fn next_input(&mut self) -> Input {
        let [account, other] = self.two_accounts();
        let amount = self.prng.between(1, 50_00) as Cents;
        match self.prng.below(100) {
            0..15 => Input::Balance { account },
            15..30 => Input::DepositChecking { account, amount },
            30..45 => {
                let is_withdrawal = self.prng.below(2) == 0;
                Input::TransactSavings { account, amount: if is_withdrawal { -amount } else { amount } }
            }
            45..60 => Input::Amalgamate { from: account, to: other },
            60..75 => Input::WriteCheck { account, amount },
            _ => Input::SendPayment { from: account, to: other, amount },
        }
    }

    /// Two accounts, either both hot or both drawn from all.
    fn two_accounts(&mut self) -> [u64; 2] {
        let hot = (u128::from(self.accounts) * u128::from(self.hotspot.accounts) / 100) as u64;
        let is_hot = self.prng.below(100) < u64::from(self.hotspot.choices);
        let from = if is_hot { hot.clamp(2, self.accounts) } else { self.accounts };
        let first = self.prng.below(from);
        let second = self.prng.below(from - 1);
        [first, if second < first { second } else { second + 1 }]
    }
}

/// The sum of all balances of a store at rest. Records of other tables are ignored.
///
/// The invariant of SmallBank: this sum changes by exactly the sum of [`Output::change`] of the
/// committed transactions.
///
/// # Errors
/// The first damaged balance.
pub fn total(records: &BTreeMap<RecordKey, Vec<u8>>) -> Result<i128, (RecordKey, Damaged)> {
    let balances = records.iter().filter(|(at, _)| [SAVINGS, CHECKING].contains(&at.table));
    balances
        .map(|(&at, value)| {
            Balance::decode(value).map(|row| i128::from(row.amount)).map_err(|damaged| (at, damaged))
        })
        .sum()
}

//! One run: clients that call transactions as fast as they can, and the processor time of all
//! processes.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use mitra_txn_workloads::tpcc::rows::Time;
use mitra_txn_workloads::tpcc::{Kind, Terminal};

use super::cluster::{Clusters, Server};
use super::cpu;
use super::database::RUN;
use super::session::{Isolation, Outcome, Session};

/// The time before a measurement, in which plans are made and the servers' processes fill their
/// caches.
const WARM_UP: Duration = Duration::from_secs(5);

/// The counts of the clients during the measurement.
#[derive(Clone, Default, Debug)]
pub(super) struct Tally {
    /// The committed transactions, in the order of [`Kind`]. A Delivery counts as one.
    pub committed: [u64; 5],
    /// The committed database transactions. A Delivery counts as one for each district.
    pub database_transactions: u64,
    /// The New-Orders that were rolled back because of an unused item.
    pub rolled_back: u64,
    /// The number of times that PostgreSQL has rolled a transaction back, which then runs again.
    pub conflicts: u64,
    /// The time of each committed New-Order, with its conflicts.
    pub new_order_times: Vec<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CpuTimes {
    pub primary: Duration,
    pub standby: Duration,
    pub clients: Duration,
}

/// The current time, as the records contain it.
pub(super) fn now() -> Time {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_micros() as Time)
}

pub(super) fn run(
    clusters: &Clusters,
    isolation: Isolation,
    clients: u32,
    time: Duration,
    new_terminal: impl Fn(u32) -> Terminal,
) -> Result<(Tally, CpuTimes)> {
    let config = clusters.config(Server::Primary, RUN);
    let sessions =
        (0..clients).map(|client| Ok((Session::connect(config.clone(), isolation)?, new_terminal(client))));
    let sessions: Vec<(Session, Terminal)> = sessions.collect::<Result<_>>()?;
    let begin = Instant::now() + WARM_UP;
    let window = begin..begin + time;
    thread::scope(|scope| {
        let start = |(session, terminal)| {
            let window = window.clone();
            scope.spawn(move || client(session, terminal, &window))
        };
        let threads: Vec<_> = sessions.into_iter().map(start).collect();
        thread::sleep(window.start.saturating_duration_since(Instant::now()));
        let before = cpu_times(clusters)?;
        thread::sleep(window.end.saturating_duration_since(Instant::now()));
        let after = cpu_times(clusters)?;
        let mut sum = Tally::default();
        for thread in threads {
            sum.add(thread.join().map_err(|_| anyhow!("a client has panicked"))??);
        }
        let times = CpuTimes {
            primary: after.primary - before.primary,
            standby: after.standby - before.standby,
            clients: after.clients - before.clients,
        };
        Ok((sum, times))
    })
}

fn cpu_times(clusters: &Clusters) -> Result<CpuTimes> {
    let [primary, standby] = clusters.postmasters()[..] else { return Err(anyhow!("a server has ended")) };
    Ok(CpuTimes {
        primary: cpu::of_process_and_children(primary)?,
        standby: cpu::of_process_and_children(standby)?,
        clients: cpu::of_this_process()?,
    })
}

/// Runs the transactions of a terminal until the end of the window. Transactions that end in the
/// window count.
fn client(mut session: Session, mut terminal: Terminal, window: &Range<Instant>) -> Result<Tally> {
    let mut tally = Tally::default();
    loop {
        let begin = Instant::now();
        let mut of_card = Tally::default();
        for input in terminal.next(now()) {
            let kind = input.kind();
            loop {
                match session.run(&input)? {
                    Outcome::Committed(_) => {
                        of_card.committed[kind as usize] = 1;
                        of_card.database_transactions += 1;
                    }
                    Outcome::RolledBack => of_card.rolled_back += 1,
                    Outcome::Conflict => {
                        of_card.conflicts += 1;
                        continue;
                    }
                }
                break;
            }
        }
        let end = Instant::now();
        if of_card.committed[Kind::NewOrder as usize] > 0 {
            of_card.new_order_times.push(end - begin);
        }
        if end >= window.end {
            return Ok(tally);
        }
        if end >= window.start {
            tally.add(of_card);
        }
    }
}

impl Tally {
    fn add(&mut self, mut other: Tally) {
        self.committed.iter_mut().zip(other.committed).for_each(|(sum, count)| *sum += count);
        self.database_transactions += other.database_transactions;
        self.rolled_back += other.rolled_back;
        self.conflicts += other.conflicts;
        self.new_order_times.append(&mut other.new_order_times);
    }
}

impl CpuTimes {
    pub(super) fn sum(&self) -> Duration {
        self.primary + self.standby + self.clients
    }
}

//! Tests one process of the log directly: submission, refusal, batching and outcomes.

use mitra_consensus::log::{Cell, CommitOutcome, Committed, Config, Delivery, Log, LogError, Payload};
use mitra_consensus::{Action, Input, Memory, MemoryId, Op, OpId, Process, ProcessId, ProcessSet, Response};

/// Entries hold two commands of two bytes each.
const CONFIG: Config = Config {
    processes: 2,
    memories: 1,
    max_inflight: 2,
    window: 2,
    ring_windows: 2,
    register_bytes: 62,
    snapshot_registers: 2,
    queue_capacity: 4,
};
const ME: ProcessId = ProcessId(1);

struct Driver {
    log: Log,
    memory: Memory<Cell>,
    actions: Vec<Action<Cell, Committed>>,
}

impl Driver {
    fn new() -> Driver {
        let memory = Memory::new(CONFIG.processes, &CONFIG.regions());
        Driver { log: Log::new(ME, CONFIG).expect("a valid configuration"), memory, actions: Vec::new() }
    }

    /// Creates a process, makes it the leader, and executes its operations until none is left.
    fn lead() -> Driver {
        let mut driver = Driver::new();
        driver.log.handle(Input::Leader(ME), &mut driver.actions);
        driver.run();
        assert!(driver.log.is_leader());
        driver
    }

    fn run(&mut self) {
        while !self.actions.is_empty() {
            for action in core::mem::take(&mut self.actions) {
                if let Action::Invoke { memory, id, op } = action {
                    let response = self.memory.execute(ME, &op);
                    self.log.handle(Input::Response { memory, id, response }, &mut self.actions);
                }
            }
        }
    }

    fn submit(&mut self, command: u8) -> Result<(), LogError> {
        self.log.submit(vec![command; 2], &mut self.actions).map(|_| ())
    }
}

#[test]
fn non_leader_refuses_submissions() {
    let mut driver = Driver::new();
    let all = ProcessSet::first(2);
    assert_eq!(driver.submit(0), Err(LogError::NotLeader));
    assert_eq!(driver.log.set_eligible_leaders(all, &mut driver.actions), Err(LogError::NotLeader));
    assert_eq!(driver.log.snapshot(Vec::new(), &mut driver.actions), Err(LogError::NotLeader));
    driver.log.handle(Input::Leader(ME), &mut driver.actions);
    assert_eq!(driver.submit(0), Err(LogError::NotLeader), "the takeover is not complete");
}

#[test]
fn queued_commands_share_entries_and_full_queue_refuses() {
    let mut driver = Driver::lead();
    assert_eq!(
        (0..7).map(|n| driver.submit(n)).collect::<Vec<_>>(),
        [Ok(()), Ok(()), Ok(()), Ok(()), Ok(()), Ok(()), Err(LogError::QueueFull)]
    );
    driver.run();
    let entries = driver.log.take_committed().into_iter().map(|delivery| match delivery {
        Delivery::Entry { payload: Payload::Commands(commands), .. } => commands.concat(),
        other => panic!("{other:?}"),
    });
    assert_eq!(entries.collect::<Vec<_>>(), [vec![0, 0], vec![1, 1], vec![2, 2, 3, 3], vec![4, 4, 5, 5]]);
    let outcomes: Vec<_> = driver.log.take_outcomes().into_iter().map(|(_, fate)| fate).collect();
    let at = [(1, 0), (2, 0), (3, 0), (3, 1), (4, 0), (4, 1)];
    assert_eq!(outcomes, at.map(|(index, position)| CommitOutcome::Committed { index, position }));
}

#[test]
fn full_ring_stalls_submissions_until_a_snapshot() {
    let mut driver = Driver::lead();
    let mut accepted = 0;
    for _ in 0..20 {
        accepted += usize::from(driver.submit(9).is_ok());
        driver.run();
    }
    assert_eq!(driver.log.commit_index(), 4, "the ring has room for 4");
    assert!(accepted < 20 && driver.log.needs_snapshot());
    let early = driver.log.snapshot(vec![1; 28], &mut driver.actions);
    assert_eq!(early, Err(LogError::NotReady), "not all deliveries are taken");
    driver.log.take_committed();
    let long = driver.log.snapshot(vec![1; 29], &mut driver.actions);
    assert_eq!(long, Err(LogError::TooLarge));
    assert_eq!(driver.log.snapshot(vec![1; 28], &mut driver.actions), Ok(()));
    driver.run();
    assert!(driver.log.commit_index() > 4, "the ring has room again");
}

#[test]
fn oversized_command_and_empty_leader_set_are_refused() {
    let mut driver = Driver::lead();
    let most = CONFIG.max_command_bytes();
    assert_eq!(driver.log.submit(vec![0; most + 1], &mut driver.actions).err(), Some(LogError::TooLarge));
    assert!(driver.log.submit(vec![0; most], &mut driver.actions).is_ok());
    for leaders in [ProcessSet::NONE, ProcessSet::only(ProcessId(2))] {
        assert_eq!(
            driver.log.set_eligible_leaders(leaders, &mut driver.actions).err(),
            Some(LogError::NoEligibleLeader)
        );
    }
    assert_eq!(
        driver.log.snapshot(Vec::new(), &mut driver.actions),
        Err(LogError::NotReady),
        "nothing has been committed"
    );
}

#[test]
fn deposed_leader_reports_unknown_outcomes() {
    let mut driver = Driver::lead();
    assert_eq!([driver.submit(0), driver.submit(1), driver.submit(2)], [Ok(()); 3]);
    driver.log.handle(Input::Leader(ProcessId(0)), &mut driver.actions);
    let outcomes: Vec<_> = driver.log.take_outcomes().into_iter().map(|(_, fate)| fate).collect();
    assert_eq!(outcomes, [CommitOutcome::Unknown; 3]);
    // The memory executes the outstanding operations although their term has ended. The process
    // finds the entries when it leads again.
    driver.run();
    driver.log.handle(Input::Leader(ME), &mut driver.actions);
    driver.run();
    assert_eq!((driver.log.commit_index(), driver.log.take_outcomes()), (2, Vec::new()));
}

#[test]
fn process_without_state_uses_a_new_ballot() {
    let mut driver = Driver::lead();
    assert_eq!([driver.submit(0), driver.submit(1)], [Ok(()); 2]);
    driver.run();
    let ballot =
        |driver: &mut Driver| match driver.memory.execute(ME, &Op::Read { region: 0, first: 0, count: 1 }) {
            Response::Cells(cells) => match cells[..] {
                [Cell::Header(header)] => header.ballot,
                _ => panic!("{cells:?}"),
            },
            other => panic!("{other:?}"),
        };
    let before = ballot(&mut driver);
    let memory = driver.memory.clone();
    let mut driver = Driver { memory, ..Driver::new() };
    driver.log.handle(Input::Leader(ME), &mut driver.actions);
    driver.run();
    assert!(driver.log.is_leader() && driver.log.commit_index() == 2 && ballot(&mut driver) > before);
    assert_eq!(driver.log.attempts(), 2, "the first ballot was used before the restart");
}

#[test]
fn response_with_unknown_id_is_ignored() {
    let mut driver = Driver::lead();
    let before = driver.log.clone();
    for (memory, id) in [(0, 0), (0, 9), (7, 0)] {
        let (memory, id, response) = (MemoryId(memory), OpId(id), Response::Nak);
        driver.log.handle(Input::Response { memory, id, response }, &mut driver.actions);
    }
    assert_eq!((driver.log, driver.actions), (before, Vec::new()));
}

/// A leader that makes itself ineligible must announce the commit index of its last entry at once,
/// because it begins no later term.
#[test]
fn leader_that_becomes_ineligible_announces_its_last_entry() {
    let mut driver = Driver::lead();
    let other = ProcessSet::only(ProcessId(0));
    driver.log.set_eligible_leaders(other, &mut driver.actions).expect("the process leads");
    driver.submit(1).expect("the queue has room");
    let actions = core::mem::take(&mut driver.actions);
    let entries: Vec<_> = actions
        .into_iter()
        .filter_map(|action| match action {
            Action::Invoke { memory, id, op } => Some((memory, id, op)),
            _ => None,
        })
        .collect();
    assert_eq!(entries.len(), 2, "both entries are in flight");
    let (memory, id, op) = entries.into_iter().next().expect("the first entry");
    let response = driver.memory.execute(ME, &op);
    driver.log.handle(Input::Response { memory, id, response }, &mut driver.actions);
    assert!(!driver.log.is_leader());
    let announces = |action: &Action<Cell, Committed>| {
        matches!(action, Action::Send { to: ProcessId(0), message: Committed { index: 1, .. } })
    };
    assert!(driver.actions.iter().any(announces), "{:?}", driver.actions);
}

//! Three processes of `mitra elect`, each a child process of the test, and the leaders that they
//! name.

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mitra_test_process::TestProcess;
use serde_json::Value;

/// The time after which a wait counts as a hang. A correct test on a busy machine takes a small
/// part of it.
const TIMEOUT: Duration = Duration::from_secs(100);

pub struct Election {
    processes: [Option<TestProcess>; 3],
    /// A process, and the leader that it names from now on.
    told: Receiver<(usize, usize)>,
    named: [Option<usize>; 3],
}

impl Election {
    /// Starts the command of each process. Its standard output must be a pipe.
    pub fn start(mut command: impl FnMut(usize) -> Command) -> Election {
        let (tell, told) = channel();
        let processes = [0, 1, 2].map(|id| {
            let mut program = TestProcess::start(&mut command(id));
            let (out, tell) = (BufReader::new(program.stdout.take().expect("piped")), tell.clone());
            std::thread::spawn(move || {
                out.lines().map_while(Result::ok).all(|line| {
                    let (process, leader) = parsed(&line);
                    assert_eq!(process, id, "each line names its process");
                    tell.send((id, leader)).is_ok()
                });
            });
            Some(program)
        });
        Election { processes, told, named: [None; 3] }
    }

    /// Waits until some processes name the same leader, and not `other_than`. Returns it.
    pub fn agreed(&mut self, some: &[usize], other_than: Option<usize>) -> usize {
        loop {
            let (id, leader) = self.told.recv_timeout(TIMEOUT).expect("they come to name the same");
            self.named[id] = Some(leader);
            let first = self.named[some[0]];
            if some.iter().all(|&process| self.named[process] == first) && first != other_than {
                return first.expect("all name it");
            }
        }
    }

    /// Kills the leader of all, and waits until the others agree on one of them. Returns both.
    pub fn leaders_before_and_after_a_kill(&mut self) -> (usize, usize) {
        let killed = self.agreed(&[0, 1, 2], None);
        // The drop sends SIGKILL.
        self.processes[killed] = None;
        let living = [(killed + 1) % 3, (killed + 2) % 3];
        let leader = self.agreed(&living, Some(killed));
        assert!(living.contains(&leader), "{leader}");
        (killed, leader)
    }
}

/// Returns the process that prints a line, and the leader that it names.
fn parsed(line: &str) -> (usize, usize) {
    let from_json = |report: Value| {
        let number = |field: &str| report[field].as_u64().map(|number| number as usize);
        number("process").zip(number("leader"))
    };
    let from_text = || {
        let rest = line.strip_prefix("process ")?.strip_suffix(" leads")?;
        let (process, leader) = rest.split_once(": process ")?;
        process.parse().ok().zip(leader.parse().ok())
    };
    let parsed = serde_json::from_str(line).map_or_else(|_| from_text(), from_json);
    parsed.unwrap_or_else(|| panic!("{line}"))
}

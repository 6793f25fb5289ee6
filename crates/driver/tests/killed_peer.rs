//! Ends whose peer is another process, which is killed or loses its NICs.

mod common;

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use mitra_driver::Driver;
use mitra_failover::{CloseReason, Config, ConnectInfo, Outcome, UnresolvedError, VirtualQp};
use mitra_softnic::fault::Failure;
use mitra_test_process::{TestProcess, command};
use mitra_verbs::{Data, SendOp, SendWr};

use common::Host;

/// The first argument of the peer process.
const PEER: &str = "--peer";

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|arg| arg == PEER) {
        return match peer() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let tests = vec![
        trial("killed_process_has_exited", || ends_as(Peer::kill, CloseReason::PeerExited)),
        trial("process_without_nics_is_unreachable", || {
            ends_as(Peer::lose_nics, CloseReason::PeerUnreachable)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, test: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || test().map_err(|e| Failed::from(e.to_string())))
}

fn config() -> Config {
    let mut config = Config { peer_timeout: Duration::from_secs(2), ..Config::default() };
    // The operation is still in flight when the vQP ends.
    config.rnr_retry = 7;
    config
}

fn hex(info: &ConnectInfo) -> String {
    info.encode().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(line: &str) -> Result<ConnectInfo> {
    let byte = |i: usize| u8::from_str_radix(&line[2 * i..2 * i + 2], 16);
    let bytes = (0..line.trim().len() / 2).map(byte).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(ConnectInfo::decode(&bytes)?)
}

/// The peer process: exchanges the connection data over its standard streams, and takes the NICs
/// away when it reads another line.
fn peer() -> Result<()> {
    let host = Host::open();
    let driver = Driver::start()?;
    let end = driver.serve(VirtualQp::builder(&host.domain).config(config()))?;
    println!("{}", hex(&end.lock().local_info()));
    let mut lines = stdin().lines();
    let info = unhex(&lines.next().ok_or("the parent sends its data")??)?;
    end.lock().connect(&info)?;
    println!("connected");
    lines.next().ok_or("the parent sends a line")??;
    host.nics.iter().for_each(|nic| nic.faults().fail(Failure::NicDead));
    stdin().read_to_end(&mut Vec::new())?; // until the parent ends
    Ok(())
}

struct Peer(Option<TestProcess>);

impl Peer {
    fn kill(&mut self) -> Result<()> {
        self.0 = None; // SIGKILL
        Ok(())
    }

    fn lose_nics(&mut self) -> Result<()> {
        self.write(b"\n")
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let input = self.0.as_mut().and_then(|process| process.stdin.as_mut());
        Ok(input.ok_or("a pipe")?.write_all(bytes)?)
    }
}

/// Connects to a peer process, lets it fail, and checks the reason for which this end closes.
fn ends_as(fail: fn(&mut Peer) -> Result<()>, reason: CloseReason) -> Result<()> {
    let mut command = command(std::env::current_exe()?);
    let mut process = TestProcess::start(command.arg(PEER).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut output = BufReader::new(process.stdout.take().ok_or("a pipe")?).lines();
    let mut peer = Peer(Some(process));
    let host = Host::open();
    let driver = Driver::start()?;
    let end = driver.serve(VirtualQp::builder(&host.domain).config(config()))?;
    let info = unhex(&output.next().ok_or("the peer sends its data")??)?;
    let mine = format!("{}\n", hex(&end.lock().local_info()));
    peer.write(mine.as_bytes())?;
    assert_eq!(output.next().ok_or("the peer connects")??, "connected");
    end.lock().connect(&info)?;
    // The peer has no receive for this message.
    end.lock().post_send(SendWr::new(7, SendOp::Send, Data::inline(&[0; 8])))?;
    fail(&mut peer)?;
    let mut completions = Vec::new();
    while completions.is_empty() {
        end.wait(&mut completions)?;
    }
    let undecided = Outcome::Unresolved(UnresolvedError::Undecided(reason));
    assert_eq!((completions[0].wr_id, completions[0].outcome), (7, undecided));
    assert_eq!(end.wait_closed(), reason);
    Ok(())
}

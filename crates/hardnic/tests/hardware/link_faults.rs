//! Failures of the links of the emulated machine (`xtask/rxe-vm/guest`), and their repair.

use std::io::Write;
use std::process::{Child, Command, Stdio};

/// How a rail fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// All packets of the responder's end are lost: the requests are executed, and their answers do
    /// not arrive.
    AnswersLost,
    /// 60 % of them are lost.
    AnswersRare,
    /// All packets of the requester's end are lost.
    RequestsLost,
    /// All packets of both ends are lost.
    Blackhole,
    /// The interface of the requester goes down.
    LinkDown,
    /// The requester's interface loses its address.
    AddressRemoved,
}

impl Fault {
    /// Those in which the ends differ.
    pub const ONE_SIDED: [Fault; 5] =
        [Fault::AnswersLost, Fault::AnswersRare, Fault::RequestsLost, Fault::LinkDown, Fault::AddressRemoved];

    /// Starts the program that lets link `k` fail, and waits for [`Injection::inject`].
    pub fn prepare(self, k: usize) -> Injection {
        let (program, command) = match self {
            Fault::AnswersLost => ("tc", format!("qdisc replace dev r{k}b root netem loss 100%\n")),
            Fault::AnswersRare => ("tc", format!("qdisc replace dev r{k}b root netem loss 60%\n")),
            Fault::RequestsLost => ("tc", format!("qdisc replace dev r{k}a root netem loss 100%\n")),
            Fault::Blackhole => (
                "tc",
                format!(
                    "qdisc replace dev r{k}a root netem loss 100%\nqdisc replace dev r{k}b root netem loss 100%\n"
                ),
            ),
            Fault::LinkDown => ("ip", format!("link set r{k}a down\n")),
            Fault::AddressRemoved => ("ip", format!("addr del 10.77.{k}.1/24 dev r{k}a\n")),
        };
        Injection { process: start(program), command }
    }

    /// Repairs link `k`. An interface that goes down loses its routes and neighbours.
    pub fn heal(self, k: usize) {
        match self {
            Fault::AnswersLost | Fault::AnswersRare => {
                finish(start("tc"), &format!("qdisc del dev r{k}b root\n"));
            }
            Fault::Blackhole => {
                finish(start("tc"), &format!("qdisc del dev r{k}a root\nqdisc del dev r{k}b root\n"));
            }
            Fault::RequestsLost => finish(start("tc"), &format!("qdisc del dev r{k}a root\n")),
            Fault::LinkDown | Fault::AddressRemoved => ip(&[
                format!("addr replace 10.77.{k}.1/24 dev r{k}a"),
                format!("link set r{k}a up"),
                format!("link set r{k}b up"),
                format!("route replace 10.77.{k}.0/24 dev r{k}a src 10.77.{k}.1 table 2{k}1"),
                format!("route replace 10.77.{k}.0/24 dev r{k}b src 10.77.{k}.2 table 2{k}2"),
                format!("neigh replace 10.77.{k}.2 lladdr 02:77:00:00:0{k}:02 dev r{k}a"),
                format!("neigh replace 10.77.{k}.1 lladdr 02:77:00:00:0{k}:01 dev r{k}b"),
            ]),
        }
    }
}

/// Changes the MTU of the requester's interface of link `k`.
pub fn set_mtu(k: usize, bytes: u32) {
    ip(&[format!("link set r{k}a mtu {bytes}")]);
}

/// A program that makes a link fail at once when it is told to. The start of one takes tens of
/// milliseconds in the emulated machine.
pub struct Injection {
    process: Child,
    command: String,
}

impl Injection {
    pub fn inject(self) {
        finish(self.process, &self.command);
    }
}

/// Starts a program that takes commands, one a line.
fn start(program: &str) -> Child {
    let mut process = Command::new(program);
    process.args(["-batch", "-"]).stdin(Stdio::piped());
    process.spawn().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn finish(mut process: Child, commands: &str) {
    let input = process.stdin.take().map(|mut input| input.write_all(commands.as_bytes()));
    assert!(input.is_some_and(|written| written.is_ok()), "nobody takes {commands}");
    assert!(process.wait().is_ok_and(|status| status.success()), "{commands} failed");
}

fn ip(commands: &[String]) {
    finish(start("ip"), &(commands.join("\n") + "\n"));
}

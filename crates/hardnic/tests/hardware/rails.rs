//! Two rails between two ends of this machine, and their failures. The failures are those of the
//! links of the emulated machine.

use std::process::Command;
use std::sync::Arc;

use mitra_failover::Domain;
use mitra_hardnic::HardNic;
use mitra_qualify::QualificationStore;
use mitra_verbs::Provider;

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
    /// The interface of the requester goes down.
    LinkDown,
    /// The requester's interface loses its address.
    AddressRemoved,
}

impl Fault {
    pub const ALL: [Fault; 5] =
        [Fault::AnswersLost, Fault::AnswersRare, Fault::RequestsLost, Fault::LinkDown, Fault::AddressRemoved];

    /// Lets link `k` fail.
    pub fn inject(self, k: usize) {
        match self {
            Fault::AnswersLost => tc(&format!("replace dev r{k}b root netem loss 100%")),
            Fault::AnswersRare => tc(&format!("replace dev r{k}b root netem loss 60%")),
            Fault::RequestsLost => tc(&format!("replace dev r{k}a root netem loss 100%")),
            Fault::LinkDown => ip(&[format!("link set r{k}a down")]),
            Fault::AddressRemoved => ip(&[format!("addr del 10.77.{k}.1/24 dev r{k}a")]),
        }
    }

    /// Repairs link `k`. An interface that goes down loses its routes and neighbours.
    pub fn heal(self, k: usize) {
        match self {
            Fault::AnswersLost | Fault::AnswersRare => tc(&format!("del dev r{k}b root")),
            Fault::RequestsLost => tc(&format!("del dev r{k}a root")),
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

fn tc(arguments: &str) {
    run("tc", &format!("qdisc {arguments}"));
}

fn ip(commands: &[String]) {
    for command in commands {
        run("ip", command);
    }
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The domains of two ends. Rail k leads from device 2k to device 2k + 1.
pub struct Ends {
    pub client: Arc<Domain>,
    pub server: Arc<Domain>,
    pub nics: Vec<Arc<HardNic>>,
}

impl Ends {
    /// Opens the devices. `wrap` may put another NIC around each.
    pub fn open(
        names: &[String],
        store: &QualificationStore,
        wrap: impl Fn(Arc<HardNic>) -> Arc<dyn Provider>,
    ) -> Ends {
        let open =
            |name: &String| HardNic::open_qualified(name, store).unwrap_or_else(|error| panic!("{error}"));
        let nics: Vec<_> = names.iter().map(open).collect();
        let end = |first: usize| {
            let providers = nics.iter().skip(first).step_by(2).map(|nic| wrap(Arc::clone(nic)));
            Domain::new(providers.collect()).expect("the NICs have the resources of a domain")
        };
        Ends { client: end(0), server: end(1), nics }
    }
}

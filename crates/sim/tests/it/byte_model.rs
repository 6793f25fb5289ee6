//! Checks overlapping WRITEs and READs against a model of every byte. While WRITEs are in flight, a
//! byte has an old or a new value, but never returns to an earlier value. When a WRITE has
//! completed, its bytes are in memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{Endpoint, EndpointCompletion, RcEndpoint, RcOptions, ReportedOutcome};
use mitra_sim::{AppContext, Config, Testbed, seeds};
use mitra_verbs::{Access, Buffer, Data, Mr, Mtu, Provider, SendFlags, SendOp, SendWr};

/// The size of the responder's memory, in bytes.
const REGION: usize = 1024;
/// The largest operation, in bytes.
const MAX_OP_BYTES: usize = 900;
/// The number of operations. Operation `n`, counted from 1, writes `n` to each of its bytes, so a
/// byte shows which operation wrote it last.
const OPS: u8 = 200;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Op {
    read: bool,
    from: usize,
    to: usize,
}

/// The values that each byte of the responder's memory may have.
struct Model {
    /// For each byte, the last WRITE that has completed.
    completed: Vec<u8>,
    /// For each byte, the last WRITE that was posted.
    posted: Vec<u8>,
    /// For each byte, the last value that was observed in the responder's memory.
    observed: Vec<u8>,
    /// How many observed bytes held the value of a WRITE in flight that was not the last posted
    /// WRITE.
    intermediate: u32,
}

impl Model {
    /// Checks that each byte has at least the value in `at_least` and at most the last posted
    /// value. With `in_place`, the bytes are the responder's memory, and must not return to an
    /// earlier value.
    fn check(&mut self, source_name: &str, from: usize, bytes: &[u8], at_least: &[u8], in_place: bool) {
        for (i, &byte) in bytes.iter().enumerate() {
            let at = from + i;
            let (low, high) = (at_least[at], self.posted[at]);
            assert!(
                (low..=high).contains(&byte),
                "{source_name}: byte {at} is {byte}, may be {low} to {high}"
            );
            if in_place {
                assert!(
                    byte >= self.observed[at],
                    "{source_name}: byte {at} went from {} back to {byte}",
                    self.observed[at]
                );
                self.observed[at] = byte;
                self.intermediate += u32::from(byte != high && byte != low);
            }
        }
    }
}

struct Requester {
    endpoint: RcEndpoint,
    local: (Arc<Buffer>, Mr),
    remote: Mr,
    model: Rc<RefCell<Model>>,
    in_flight: Vec<(u8, Op, Vec<u8>)>,
    next: u8,
    done: Rc<RefCell<bool>>,
    depth: usize,
}

impl Requester {
    fn step(&mut self, ctx: &mut AppContext<'_>) {
        let mut completions = Vec::new();
        self.endpoint.poll(&mut completions);
        for completion in completions {
            self.complete(completion);
        }
        while self.next < OPS && self.in_flight.len() < self.depth && ctx.rng().below(3) > 0 {
            self.next += 1;
            self.post(ctx);
        }
        *self.done.borrow_mut() = self.next == OPS && self.in_flight.is_empty();
    }

    fn post(&mut self, ctx: &mut AppContext<'_>) {
        let rng = ctx.rng();
        let limit = MAX_OP_BYTES >> rng.below(8);
        let len = 1 + rng.index(limit);
        let from = rng.index(REGION - len + 1);
        let op = Op { read: rng.below(3) == 0, from, to: from + len };
        let slot = self.next as usize * MAX_OP_BYTES;
        let sge = self.local.1.sge(slot as u64, len as u32);
        let mut model = self.model.borrow_mut();
        let target = self.remote.remote(from as u64);
        // A READ returns the data of all WRITEs that were posted before the READ. The data of later
        // WRITEs are also allowed.
        let at_least = model.posted.clone();
        let send = if op.read {
            SendOp::Read(target)
        } else {
            self.local.0.write_at(slot, &vec![self.next; len]);
            model.posted[from..op.to].fill(self.next);
            SendOp::Write(target)
        };
        let fence = if rng.below(8) == 0 { SendFlags::FENCE } else { SendFlags::empty() };
        let wr =
            SendWr::new(u64::from(self.next), send, Data::sge(sge)).with_flags(SendFlags::SIGNALED | fence);
        self.endpoint.post(wr).unwrap();
        self.in_flight.push((self.next, op, at_least));
    }

    fn complete(&mut self, completion: EndpointCompletion) {
        assert_eq!(completion.outcome, ReportedOutcome::Success, "{completion:?}");
        let (id, op, at_least) = self.in_flight.remove(0);
        assert_eq!(completion.wr_id, u64::from(id), "completions are in posting order");
        let mut model = self.model.borrow_mut();
        if op.read {
            let mut read = vec![0; op.to - op.from];
            self.local.0.read_at(id as usize * MAX_OP_BYTES, &mut read);
            model.check("READ", op.from, &read, &at_least, false);
        } else {
            for byte in &mut model.completed[op.from..op.to] {
                *byte = id.max(*byte);
            }
        }
    }
}

fn run(seed: u64) -> u32 {
    let mut config = Config::swarm(seed);
    config.capabilities.write_order = !seed.is_multiple_of(3);
    let mut testbed = Testbed::with_config(seed, config, 1);
    let rng = &mut testbed.world.test_rng("options");
    let options = RcOptions {
        mtu: *rng.pick(&[Mtu::M256, Mtu::M512]),
        timeout: 8,
        rd_atomic: 1 + rng.index(8) as u8,
        ..RcOptions::default()
    };
    let [a, b] = [0, 1]
        .map(|i| RcEndpoint::new(Arc::clone(&testbed.nics[i][0]) as Arc<dyn Provider>, &options).unwrap());
    a.connect(&b, &options, true).unwrap();
    b.connect(&a, &options, false).unwrap();
    let memory = Arc::new(Buffer::new(REGION));
    let remote = b.nic().reg_mr(b.pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let source = Arc::new(Buffer::new(MAX_OP_BYTES * (OPS as usize + 1)));
    let local = a.nic().reg_mr(a.pd, Arc::clone(&source), Access::LOCAL_WRITE).unwrap();
    let (completed, posted, observed) = (vec![0; REGION], vec![0; REGION], vec![0; REGION]);
    let model = Rc::new(RefCell::new(Model { completed, posted, observed, intermediate: 0 }));
    let done = Rc::new(RefCell::new(false));
    let depth = 1 + rng.index(30);
    let mut requester = Requester {
        endpoint: a,
        local: (source, local),
        remote,
        model: Rc::clone(&model),
        in_flight: Vec::new(),
        next: 0,
        done: Rc::clone(&done),
        depth,
    };
    testbed.world.add_app(testbed.hosts[0], move |ctx: &mut AppContext<'_>| requester.step(ctx));
    let (observed_model, observed_memory) = (Rc::clone(&model), Arc::clone(&memory));
    // With relaxed ordering, a later WRITE may become visible before an earlier WRITE to another
    // address. WRITEs to the same address stay in order.
    let check_memory = move || {
        let mut bytes = vec![0; REGION];
        observed_memory.read_at(0, &mut bytes);
        let at_least = observed_model.borrow().completed.clone();
        observed_model.borrow_mut().check("memory", 0, &bytes, &at_least, true);
    };
    let check_often = check_memory.clone();
    testbed.world.add_app(testbed.hosts[1], move |_: &mut AppContext<'_>| check_often());
    let is_done = move |_: &mitra_sim::World| *done.borrow();
    if testbed.world.run_until(&is_done, Duration::from_millis(40)).is_err() {
        testbed.world.heal();
        testbed.world.run_until(&is_done, Duration::from_secs(30)).unwrap_or_else(|e| panic!("{e}"));
    }
    testbed.world.run_until_quiet().unwrap_or_else(|e| panic!("{e}"));
    check_memory();
    let model = model.borrow();
    assert_eq!(model.completed, model.posted);
    assert_eq!(model.observed, model.posted);
    model.intermediate
}

#[test]
fn bytes_never_hold_an_impossible_value() {
    let intermediate: Vec<u32> = seeds(500).map(run).collect();
    let runs = intermediate.iter().filter(|&&t| t > 0).count();
    eprintln!("in-flight bytes were seen in {runs} of {} runs", intermediate.len());
    assert!(
        intermediate.len() < 100 || runs > intermediate.len() / 4,
        "only {runs} runs saw operations in flight"
    );
}

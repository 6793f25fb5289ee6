//! Loading a store and inspecting it, over links.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_txn::{
    Inspection, Inspector, Layout, Life, LifeState, LifeWord, Loader, Location, NodeId, Op, Outcome,
    RecordKey, Request, StoreError, StoreState, claim_store, read_store_state,
};

use crate::channels::LostNode;
use crate::links::Links;

/// The largest number of requests in flight, of up to 256 KiB each. More would wait so long behind
/// each other on a slow path that the NIC takes the first for lost and sends it again.
const MAX_POSTED: usize = 4;
/// The longest sleep between two polls.
const MAX_SLEEP: Duration = Duration::from_millis(1);
/// The number of records between two polls of the links: about a millisecond of work.
const RECORDS_PER_POLL: usize = 256;

/// Why a store was not loaded completely.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// A record has no place in the store.
    #[error(transparent)]
    Record(#[from] mitra_txn::LoadError),
    /// Another load has begun on this node. Nothing was written to it.
    #[error(
        "memory node {} is loaded by another process, or was by one that has ended; start new memory nodes, unless it runs",
        .0.0
    )]
    Claimed(NodeId),
    /// A node was lost, so the life is over.
    #[error(transparent)]
    Lost(#[from] LostNode),
}

/// Why the state of a store is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// The memory nodes do not have one store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A node was lost, so the life is over.
    #[error(transparent)]
    Lost(#[from] LostNode),
}

/// Returns how far the load of the store has come.
///
/// # Errors
/// A [`StateError`].
pub fn store_state(links: &mut Links, layout: &Layout) -> Result<StoreState, StateError> {
    loop {
        let outcomes = execute(links, read_store_state(layout))?;
        if let Some(state) = mitra_txn::store_state(layout, &outcomes) {
            return Ok(state?);
        }
    }
}

/// Claims the memory nodes, writes the first content of a store, and keeps the links alive
/// meanwhile. A part has all records of its partitions. Only one part at a time is in the memory of
/// this process. The store's `number` is written last; the caller draws it at random. Calls
/// `progress` with the number of written parts, and with the bytes written so far to all copies.
///
/// # Errors
/// A [`LoadError`]. The store is then partly written.
pub fn load<Records: IntoIterator<Item = (RecordKey, Vec<u8>)>>(
    links: &mut Links,
    layout: &Layout,
    number: NonZeroU64,
    parts: impl IntoIterator<Item = Records>,
    mut progress: impl FnMut(usize, u64),
) -> Result<(), LoadError> {
    layout.nodes().try_for_each(|node| claim(links, layout, node, number))?;
    let (mut loader, mut bytes) = (Loader::new(layout), 0);
    for (written_parts, records) in parts.into_iter().enumerate() {
        load_part(links, &mut loader, &mut records.into_iter(), &mut |written| {
            bytes += written as u64;
            progress(written_parts, bytes);
        })?;
        progress(written_parts + 1, bytes);
    }
    Ok(write_all(links, &mut loader.finish(number)?.into_iter(), &mut |_| ())?)
}

/// Writes the records of a part. Calls `written` with the length of each executed WRITE.
///
/// The function has no type parameters, so that it is compiled with the optimization of this crate,
/// and not with that of its callers: a warehouse of TPC-C has 540,000 records.
fn load_part(
    links: &mut Links,
    loader: &mut Loader<'_>,
    records: &mut dyn Iterator<Item = (RecordKey, Vec<u8>)>,
    written: &mut dyn FnMut(usize),
) -> Result<(), LoadError> {
    for (count, (at, value)) in (1..).zip(records) {
        loader.insert(at, value)?;
        // A node considers a coordinator silent if the coordinator does not poll.
        if count % RECORDS_PER_POLL == 0 {
            links.poll(&mut Vec::new())?;
        }
    }
    Ok(write_all(links, &mut loader.take_requests(), written)?)
}

/// Claims a node for a load.
fn claim(links: &mut Links, layout: &Layout, node: NodeId, number: NonZeroU64) -> Result<(), LoadError> {
    loop {
        match execute(links, vec![claim_store(layout, node, number)])?.first() {
            Some(Outcome::Executed(old))
                if [[0; 8], number.get().to_le_bytes()].iter().any(|it| it == &old[..]) =>
            {
                return Ok(());
            }
            Some(Outcome::Executed(_)) => return Err(LoadError::Claimed(node)),
            Some(Outcome::NodeDead) => return Ok(()),
            _ => {}
        }
    }
}

/// Executes WRITEs in any order, and repeats each until it is executed. Calls `written` with the
/// length of each executed WRITE.
fn write_all(
    links: &mut Links,
    requests: &mut dyn Iterator<Item = Request>,
    written: &mut dyn FnMut(usize),
) -> Result<(), LostNode> {
    let mut posted: Vec<Option<Request>> = vec![None; MAX_POSTED];
    let mut done = Vec::new();
    loop {
        for (ticket, slot) in posted.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            let Some(request) = requests.next() else { break };
            post(links, ticket as u64, vec![request.clone()]);
            *slot = Some(request);
        }
        if posted.iter().all(Option::is_none) {
            return Ok(());
        }
        links.wait(&mut done, MAX_SLEEP)?;
        for (ticket, outcomes) in done.drain(..) {
            let Some(request) = posted[ticket as usize].take() else { continue };
            if outcomes.iter().any(Outcome::needs_repetition) {
                post(links, ticket, vec![request.clone()]);
                posted[ticket as usize] = Some(request);
            } else if let Op::Write(bytes) = &request.op {
                written(bytes.len());
            }
        }
    }
}

/// Reads all tables of a store at rest. Returns what the inspection found, and all records. The
/// locks of lives that are recovered do not count as held, and those of lives that are not
/// recovered count as such.
///
/// # Errors
/// [`LostNode`]: the life is over.
pub fn inspect(
    links: &mut Links,
    layout: &Rc<Layout>,
) -> Result<(Inspection, BTreeMap<RecordKey, Vec<u8>>), LostNode> {
    let mut records = BTreeMap::new();
    let mut inspector = Inspector::new(Rc::clone(layout));
    for coordinator in 1..=layout.schema().coordinators {
        // At rest, the word is the same on all live nodes.
        let read = |node| Request { node, at: layout.life_line(coordinator), op: Op::Read(8) };
        let words = execute(links, layout.nodes().map(read).collect())?;
        let word = words.iter().find_map(|outcome| match outcome {
            Outcome::Executed(bytes) => Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?)),
            _ => None,
        });
        let word = LifeWord::from_bits(word.unwrap_or_default());
        let latest = Life { coordinator, incarnation: word.incarnation() };
        let earlier = Life { incarnation: latest.incarnation.saturating_sub(1), ..latest };
        if word.state() == LifeState::Recovered {
            inspector.set_recovered(latest);
        } else {
            inspector.set_recovered(earlier);
            inspector.set_unrecovered(latest);
        }
    }
    while let Some(requests) = inspector.requests() {
        let outcomes = execute(links, requests)?;
        inspector.on_outcomes(&outcomes, |at, value| _ = records.insert(at, value.to_vec()));
    }
    Ok((inspector.into_inspection(), records))
}

/// Measures `count` times the time of a single READ of 64 bytes.
///
/// # Errors
/// [`LostNode`]: the life is over.
pub fn round_trips(links: &mut Links, at: Location, count: usize) -> Result<Vec<Duration>, LostNode> {
    (0..count)
        .map(|_| {
            let (begin, mut done) = (std::time::Instant::now(), Vec::new());
            post(links, 0, vec![Request { node: at.node, at: at.at, op: Op::Read(64) }]);
            while done.is_empty() {
                links.poll(&mut done)?;
            }
            Ok(begin.elapsed())
        })
        .collect()
}

fn post(links: &mut Links, ticket: u64, requests: Vec<Request>) {
    links.post(ticket, requests).expect("a request lies in the memory of its node");
}

/// Executes requests, and waits for their outcomes. A thread that polls instead would take the
/// processor from soft-RoCE, whose answers are work of the kernel.
pub(crate) fn execute(links: &mut Links, requests: Vec<Request>) -> Result<Vec<Outcome>, LostNode> {
    post(links, 0, requests);
    let mut done = Vec::new();
    while done.is_empty() {
        links.wait(&mut done, MAX_SLEEP)?;
    }
    Ok(done.swap_remove(0).1)
}

//! The queue pairs of a coordinator to all memory nodes, without the handshake that connects them.

mod link;

use mitra_driver::ConnectionError;
use mitra_failover::FailoverReport;
use mitra_txn::{NodeId, Outcome, Request};

pub use self::link::Link;

/// The traffic of a coordinator's connections since they were made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// The requests that were posted.
    pub requests: u64,
    /// The payload of the requests: the bytes written and read, 8 for a compare-and-swap.
    pub bytes: u64,
    /// The lists in which the requests were posted.
    pub doorbells: u64,
}

/// A memory node that is not declared dead cannot be reached any more. The life of the coordinator
/// is over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "memory node {} is lost: {error}; the node has fenced this life, or has ended, or no rail reaches it: connect again as a new life, without the node if it is declared dead",
    node.0
)]
pub struct LostNode {
    /// The node.
    pub node: NodeId,
    /// The reason for the loss.
    pub error: ConnectionError,
}

/// Why requests were not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// There is no such node.
    #[error("there is no memory node {}; it is not in the list of nodes", .0.0)]
    Node(NodeId),
    /// The request does not lie in the memory of the node.
    #[error(
        "a request of {bytes} bytes at {at} is outside the {limit} bytes of the node; give both ends the same layout"
    )]
    Bounds {
        /// The offset of the request.
        at: u64,
        /// The length of the request, in bytes.
        bytes: u64,
        /// The size of the memory, in bytes.
        limit: u64,
    },
    /// The request is longer than the staging memory.
    #[error("a request of {bytes} bytes exceeds the staging memory of {limit} bytes; raise staging_bytes")]
    Length {
        /// The length of the request.
        bytes: u64,
        /// The size of the staging memory for one node.
        limit: u64,
    },
}

/// The requests of a ticket that have not all ended.
#[derive(Debug)]
struct Ticket {
    number: u64,
    requests: Vec<Request>,
    outcomes: Vec<Outcome>,
    /// The number of requests that have not ended.
    left: usize,
}

/// A request: the place of its ticket, and its index in the ticket.
#[derive(Clone, Copy, Debug)]
struct RequestRef {
    ticket: u32,
    index: u32,
}

impl RequestRef {
    /// The number of the request on its connection.
    fn id(self) -> u64 {
        u64::from(self.ticket) << 32 | u64::from(self.index)
    }

    fn from_id(id: u64) -> RequestRef {
        RequestRef { ticket: (id >> 32) as u32, index: id as u32 }
    }
}

/// The tickets in flight. Places are reused.
#[derive(Debug, Default)]
struct Tickets {
    places: Vec<Ticket>,
    free: Vec<u32>,
    /// The places whose requests have all ended.
    finished: Vec<u32>,
}

impl Tickets {
    fn insert(&mut self, ticket: Ticket) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = ticket;
                place
            }
            None => {
                self.places.push(ticket);
                (self.places.len() - 1) as u32
            }
        }
    }

    fn request(&self, at: RequestRef) -> &Request {
        &self.places[at.ticket as usize].requests[at.index as usize]
    }

    fn end(&mut self, at: RequestRef, outcome: Outcome) {
        let ticket = &mut self.places[at.ticket as usize];
        ticket.outcomes[at.index as usize] = outcome;
        ticket.left -= 1;
        if ticket.left == 0 {
            self.finished.push(at.ticket);
        }
    }

    fn take_finished(&mut self, done: &mut Vec<(u64, Vec<Outcome>)>) {
        for place in self.finished.drain(..) {
            let ticket = &mut self.places[place as usize];
            ticket.requests.clear();
            done.push((ticket.number, std::mem::take(&mut ticket.outcomes)));
            self.free.push(place);
        }
    }
}

/// The connections of one life of a coordinator to all memory nodes. They make progress only inside
/// [`Channels::poll`].
#[derive(Debug)]
pub struct Channels {
    /// Indexed by node; `None` for a node that is declared dead.
    links: Vec<Option<Link>>,
    tickets: Tickets,
    counters: Counters,
    lost: Option<LostNode>,
}

impl Channels {
    /// Creates the connections to this many nodes, all of which count as declared dead until they
    /// are [added](Channels::add).
    pub fn new(nodes: usize) -> Channels {
        let links = (0..nodes).map(|_| None).collect();
        Channels { links, tickets: Tickets::default(), counters: Counters::default(), lost: None }
    }

    /// Adds the connection to a node.
    pub fn add(&mut self, node: NodeId, link: Link) {
        self.links[usize::from(node.0)] = Some(link);
    }

    /// Takes the requests of a ticket. The next poll posts them. [`Channels::poll`] returns their
    /// outcomes together when all have ended. The caller chooses the ticket's number, which no
    /// unfinished ticket may have.
    ///
    /// A node executes the requests of a ticket in their order. After a request that is in doubt or
    /// was not executed, the node executes only requests that are already in flight. Requests to
    /// different nodes, and requests of different tickets, have no order.
    ///
    /// # Errors
    /// A [`PostError`]. No request is posted then.
    pub fn post(&mut self, ticket: u64, requests: Vec<Request>) -> Result<(), PostError> {
        for request in &requests {
            let link = self.links.get(usize::from(request.node.0)).ok_or(PostError::Node(request.node))?;
            link.as_ref().map_or(Ok(()), |link| link.check(request))?;
        }
        let (outcomes, left) = (vec![Outcome::NotExecuted; requests.len()], requests.len());
        let place = self.tickets.insert(Ticket { number: ticket, requests, outcomes, left });
        if left == 0 {
            self.tickets.finished.push(place);
        }
        for index in 0..left as u32 {
            let at = RequestRef { ticket: place, index };
            match &mut self.links[usize::from(self.tickets.request(at).node.0)] {
                Some(link) => link.queue(at),
                None => self.tickets.end(at, Outcome::NodeDead),
            }
        }
        Ok(())
    }

    /// Posts the waiting requests, and drives all connections. Appends to `done` the tickets whose
    /// requests have all ended, with the outcomes in the order of the requests.
    ///
    /// # Errors
    /// [`LostNode`], now and in every later call: the life is over. Unfinished tickets never end.
    pub fn poll(&mut self, done: &mut Vec<(u64, Vec<Outcome>)>) -> Result<(), LostNode> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        // All nodes get their requests before the first node is polled.
        let posted = self.for_each(|link, tickets, counters| link.post_waiting(tickets, counters));
        // Completions that have arrived count, although a post has failed.
        let polled = posted.and(self.for_each(|link, tickets, _| link.poll(tickets)));
        self.tickets.take_finished(done);
        polled.inspect_err(|lost| self.lost = Some(lost.clone()))
    }

    fn for_each(
        &mut self,
        mut step: impl FnMut(&mut Link, &mut Tickets, &mut Counters) -> Result<(), ConnectionError>,
    ) -> Result<(), LostNode> {
        for (node, link) in (0..).map(NodeId).zip(&mut self.links) {
            if let Some(link) = link {
                step(link, &mut self.tickets, &mut self.counters)
                    .map_err(|error| LostNode { node, error })?;
            }
        }
        Ok(())
    }

    pub(crate) fn arm(&self) {
        self.links.iter().flatten().for_each(Link::arm);
    }

    /// Returns why the life is over; `None` while it is not.
    pub fn lost(&self) -> Option<&LostNode> {
        self.lost.as_ref()
    }

    /// Returns what the connections have carried.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the report of the last failover of the connection to a node.
    pub fn last_failover(&self, node: NodeId) -> Option<FailoverReport> {
        self.links.get(usize::from(node.0))?.as_ref()?.last_failover()
    }
}

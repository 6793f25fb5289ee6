//! The process of a coordinator: drives a session over links.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_failover::Domain;
use mitra_txn::{Command, Ending, Layout, Location, Outcome, Session, Ticket, Timing, Watch, Watched};

use crate::bulk::execute;
use crate::channels::LostNode;
use crate::links::{ConnectError, Links, LinksConfig};

/// The time for which a driver polls without a result before it sleeps, while transactions are in
/// flight. Most failovers of a rail take less.
const SPIN: Duration = Duration::from_millis(5);
/// The shortest sleep. Sleeps last longer than requested, so a driver polls if work is due earlier.
const MIN_SLEEP: Duration = Duration::from_micros(100);
/// The longest sleep: links must be polled about every millisecond.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// One life of a coordinator, over its links to all memory nodes.
#[derive(Debug)]
pub struct Driver {
    session: Session,
    links: Links,
    done: Vec<(u64, Vec<Outcome>)>,
    begin: Instant,
    last_result: Instant,
}

impl Driver {
    /// Connects to the memory nodes as the coordinator's next life, and begins it. The repeatable
    /// ranges of `config` are set here.
    ///
    /// # Errors
    /// A [`ConnectError`].
    pub fn connect(
        domain: &Arc<Domain>,
        layout: &Rc<Layout>,
        config: LinksConfig,
        timing: Timing,
    ) -> Result<Driver, ConnectError> {
        let links = connect(domain, layout, &config)?;
        Ok(Driver::new(layout, &config, links, timing))
    }

    /// As [`Driver::connect`], but takes over no life of the coordinator that runs. Blocks for
    /// [`Timing::timeout`] in addition if the latest life is not recovered.
    ///
    /// A life that was silent for this time counts as ended. If its process has only paused, it
    /// finds its rights gone when it goes on: the nodes fence it before its log is read.
    ///
    /// # Errors
    /// A [`ConnectError`]; [`ConnectError::Runs`] if a process writes the coordinator's heartbeats.
    pub fn connect_if_silent(
        domain: &Arc<Domain>,
        layout: &Rc<Layout>,
        config: LinksConfig,
        timing: Timing,
    ) -> Result<Driver, ConnectError> {
        let mut links = connect(domain, layout, &config)?;
        let watched = watch(&mut links, layout, timing)?;
        let mut driver = Driver::new(layout, &config, links, timing);
        match watched {
            Some(Watched::Runs(life)) => return Err(ConnectError::Runs(life)),
            Some(Watched::Silent(word)) => driver.session.start_over(word),
            // All nodes are declared dead, which the session reports.
            None => {}
        }
        Ok(driver)
    }

    fn new(layout: &Rc<Layout>, config: &LinksConfig, links: Links, timing: Timing) -> Driver {
        let session = Session::new(Rc::clone(layout), links.life(), timing, &config.dead);
        let now = Instant::now();
        Driver { session, links, done: Vec::new(), begin: now, last_result: now }
    }

    /// Returns the session, to add tasks and to read its state.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Returns the links, to read their counters.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Makes progress. Sleeps for at most a millisecond if there was no result for some time. The
    /// caller repeats the call until [`Session::ending`] returns the reason for the end of the
    /// life.
    pub fn poll(&mut self) -> Option<Ending> {
        let now = Instant::now();
        for command in self.session.poll(now - self.begin) {
            match command {
                Command::Post(ticket, requests) => {
                    if self.links.post(ticket.0, requests).is_err() {
                        // The nodes have the same layout, so no request is refused here. A refused
                        // request would never get an outcome.
                        self.session.end(Ending::Disconnected);
                    }
                }
                Command::Fence(life) => self.links.fence(life),
            }
        }
        let timer = self.session.next_timer().map_or(MAX_SLEEP, |at| at.saturating_sub(now - self.begin));
        let is_busy = !self.session.coordinator().is_settled() && now - self.last_result < SPIN;
        let polled = if is_busy || timer < MIN_SLEEP {
            self.links.poll(&mut self.done)
        } else {
            self.links.wait(&mut self.done, timer.min(MAX_SLEEP))
        };
        if polled.is_err() {
            self.session.end(Ending::Disconnected);
        }
        if !self.done.is_empty() {
            self.last_result = now;
        } else if is_busy {
            // The memory nodes may need this CPU to return the results.
            std::thread::yield_now();
        }
        for (ticket, outcomes) in self.done.drain(..) {
            self.session.on_outcomes(Ticket(ticket), &outcomes);
        }
        while let Some(fenced) = self.links.take_fenced() {
            let life = fenced.life;
            match fenced.refused {
                None => self.session.on_fenced(life),
                Some((node, error)) => {
                    self.session.end(Ending::FenceRefused { node, life, reason: error.to_string() });
                }
            }
        }
        let ending = self.session.ending();
        if ending.is_some() {
            // The tasks see the end of the life.
            self.session.poll(now - self.begin);
        }
        ending
    }
}

/// Connects as the coordinator's next life, with the repeatable ranges of the coordinator.
fn connect(domain: &Arc<Domain>, layout: &Layout, config: &LinksConfig) -> Result<Links, ConnectError> {
    let coordinators = layout.schema().coordinators;
    if !(1..=coordinators).contains(&config.coordinator) {
        return Err(ConnectError::Coordinator(config.coordinator, coordinators));
    }
    let heartbeat = layout.life_line(config.coordinator) + 8;
    let repeatable = vec![heartbeat..heartbeat + 8, layout.log(config.coordinator)];
    let needed = layout.longest_request();
    if (config.staging_bytes as u64) < needed {
        return Err(ConnectError::Staging { bytes: config.staging_bytes, needed });
    }
    Links::connect(domain, &LinksConfig { repeatable, ..config.clone() })
}

/// Watches the line of the coordinator, until the state of its latest life is known; `None` if all
/// nodes are declared dead.
fn watch(links: &mut Links, layout: &Layout, timing: Timing) -> Result<Option<Watched>, LostNode> {
    let at = layout.life_line(links.life().coordinator);
    let line = layout.nodes().map(|node| Location { node, at }).collect();
    let mut watch = Watch::new(links.life().coordinator, line, timing.timeout);
    let begin = Instant::now();
    while let Some(request) = watch.request() {
        let outcomes = execute(links, vec![request])?;
        let read = begin.elapsed();
        let watched = outcomes.first().and_then(|outcome| watch.on_outcome(outcome, read));
        if watched.is_some() {
            return Ok(watched);
        }
        while begin.elapsed() < read + timing.interval {
            links.wait(&mut Vec::new(), MAX_SLEEP)?;
        }
    }
    Ok(None)
}

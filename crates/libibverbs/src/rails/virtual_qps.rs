//! The queue pairs of a device with several rails: creation, lookup by number, answers to peers,
//! and delayed destruction.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::{Config, Domain, VirtualQp, VirtualQpBuilder};
use mitra_verbs::{Codec, Error, Nic, Provider, Qpn, Result};

use super::datagrams::network::DatagramNetwork;
use super::datagrams::queue_pair::{DatagramParams, MultiRailUd};
use super::device::QueuePair;
use super::multi_rail_domain::MultiRailDomain;
use super::multi_rail_qp::{CreateParams, MultiRailQp};
use super::rendezvous::{ConnectionData, QUERY_TIMEOUT, Rendezvous, Subject, explain_refusal};
use crate::common::lock::lock;

/// The maximum time for which an exiting process waits until the progress thread has told all peers
/// that their connections end.
const EXIT_WAIT: Duration = Duration::from_millis(100);

/// The virtual queue pairs of a device with several rails.
pub(crate) struct MultiRail {
    domain: Arc<MultiRailDomain>,
    /// The queue pairs that the program has not destroyed.
    qps: Mutex<HashMap<Qpn, Weak<MultiRailQp>>>,
    datagrams: Arc<DatagramNetwork>,
    /// The UD queue pairs that the program has not destroyed.
    datagram_qps: Mutex<HashMap<Qpn, Weak<MultiRailUd>>>,
    /// The queue pairs that the program has destroyed, each with the time of its destruction, in
    /// this order. They are kept for [`LINGER`](super::multi_rail_domain::LINGER).
    lingering: Mutex<VecDeque<(Instant, Arc<MultiRailQp>)>>,
    /// Whether the process exits. If it does, the progress thread ends all connections.
    exiting: AtomicBool,
    /// Whether the progress thread has ended the connections of the exiting process.
    peers_notified: AtomicBool,
}

impl MultiRail {
    /// Creates the failover domain over at least two NICs, without queue pairs.
    ///
    /// # Errors
    /// `Limit` if there are too many NICs, or the error of a NIC that refuses to create an object.
    pub(super) fn new(nics: &[Arc<dyn Nic>], settings: &Settings) -> Result<Arc<MultiRail>> {
        let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let failover = Domain::with_completion_channels(providers)?;
        let rendezvous = Rendezvous::new(failover.nics(), QUERY_TIMEOUT)?;
        Ok(MultiRail::with_domain(MultiRailDomain::new(failover, rendezvous, settings)))
    }

    pub(super) fn with_domain(domain: MultiRailDomain) -> Arc<MultiRail> {
        let datagrams = DatagramNetwork::new(domain.failover.nics(), &domain.rendezvous);
        Arc::new(MultiRail {
            domain: Arc::new(domain),
            qps: Mutex::default(),
            datagrams,
            datagram_qps: Mutex::default(),
            lingering: Mutex::default(),
            exiting: AtomicBool::new(false),
            peers_notified: AtomicBool::new(false),
        })
    }

    pub(crate) fn domain(&self) -> &Arc<MultiRailDomain> {
        &self.domain
    }

    /// Creates a queue pair in RESET. Its capacities are within the device's limits.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`].
    pub(crate) fn create_qp(&self, params: CreateParams) -> Result<Arc<MultiRailQp>> {
        let cap = &params.init.cap;
        let config = Config {
            send_wrs: cap.send_wrs.max(1),
            recv_wrs: cap.recv_wrs,
            send_sges: cap.send_sges,
            recv_sges: cap.recv_sges,
            inline: cap.inline,
            ..self.domain.config(params.init.qp_type)
        };
        let pd = params.pd.clone().or_else(|| params.xrc.as_ref()?.pd());
        // An XRC receive queue pair may be created before the first shared receive queue of its XRC
        // domain, and then has no protection domain yet.
        let failover = pd.as_ref().map_or(&self.domain.failover, |pd| &pd.failover);
        let mut builder = VirtualQp::builder(failover).config(config);
        if let Some(srq) = &params.srq {
            builder = builder.shared_receive_queue(srq.queue());
        }
        if let Some(xrc) = &params.xrc {
            builder = builder.xrc_domain(&xrc.queues);
        }
        let waker = self.domain.drive_queue.waker();
        let builder = builder.waker(Arc::clone(&waker).into());
        let vqp = self.build_with_unused_number(&builder)?;
        let qp = MultiRailQp::new(Arc::clone(&self.domain), vqp, waker, params);
        lock(&self.qps).insert(qp.qpn(), Arc::downgrade(&qp));
        Ok(qp)
    }

    pub(crate) fn datagrams(&self) -> &Arc<DatagramNetwork> {
        &self.datagrams
    }

    /// Creates a UD queue pair in RESET.
    ///
    /// # Errors
    /// The errors of [`MultiRailUd::new`].
    pub(crate) fn create_datagram_qp(&self, params: &DatagramParams) -> Result<Arc<MultiRailUd>> {
        let qp = self.with_room(|| MultiRailUd::new(params.clone()))?;
        lock(&self.datagram_qps).insert(qp.qpn(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// # Errors
    /// The errors of [`MultiRailUd::destroy`].
    pub(crate) fn destroy_datagram_qp(&self, qp: &MultiRailUd) -> Result<()> {
        qp.destroy()?;
        lock(&self.datagram_qps).remove(&qp.qpn());
        Ok(())
    }

    /// Exchanges the directory's messages with other devices, and drives the UD queue pairs.
    pub(super) fn drive_datagrams(&self) {
        self.datagrams.observe_ports();
        self.datagrams.exchange();
        let qps: Vec<_> = lock(&self.datagram_qps).values().filter_map(Weak::upgrade).collect();
        for qp in qps {
            qp.make_progress();
            qp.rearm();
        }
    }

    /// Creates objects on the NICs. If a limit of a NIC forbids it, first closes the queue pairs
    /// that the program has destroyed or reset, because they still take objects of the NICs.
    ///
    /// # Errors
    /// The errors of `create`.
    pub(crate) fn with_room<T>(&self, create: impl Fn() -> Result<T>) -> Result<T> {
        match create() {
            Err(Error::Limit { .. }) => {
                self.close_ended(Duration::ZERO);
                create()
            }
            created => created,
        }
    }

    /// Builds a virtual queue pair with a number that no other queue pair of the program has. Makes
    /// room as [`MultiRail::with_room`] does. After the NIC of rail 0 has died, another NIC assigns
    /// the numbers, and may assign a number that is in use.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`].
    fn build_with_unused_number(&self, builder: &VirtualQpBuilder) -> Result<VirtualQp> {
        let mut taken = Vec::new(); // not dropped before the end, so that the NIC does not assign these numbers again
        loop {
            let vqp = self.with_room(|| Ok(builder.clone().build()?))?;
            let qpn = vqp.qpn();
            if !lock(&self.qps).contains_key(&qpn) && !lock(&self.datagram_qps).contains_key(&qpn) {
                return Ok(vqp);
            }
            taken.push(vqp);
        }
    }

    /// Destroys a queue pair for the program. Its queue pairs on the rails are destroyed after
    /// [`LINGER`](super::multi_rail_domain::LINGER).
    pub(crate) fn destroy_qp(&self, qp: Arc<MultiRailQp>) {
        qp.destroy();
        lock(&self.qps).remove(&qp.qpn());
        let mut lingering = lock(&self.lingering);
        lingering.push_back((Instant::now(), qp));
    }

    pub(super) fn qps(&self) -> Vec<Arc<MultiRailQp>> {
        lock(&self.qps).values().filter_map(Weak::upgrade).collect()
    }

    /// Returns `None` if the program has destroyed the queue pair.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<MultiRailQp>> {
        lock(&self.qps).get(&qpn).and_then(Weak::upgrade)
    }

    /// Answers the queries that have arrived. The answer is negative for a queue pair that connects
    /// to a device other than the sender's, and for a region outside the queue pair's protection
    /// domain. A query for a region from an unknown address of the peer's device gets no answer.
    pub(super) fn answer_queries(&self) {
        let rendezvous = &self.domain.rendezvous;
        for query in rendezvous.take_received() {
            let answer = match query.subject {
                Subject::Connection { qpn, terms } => {
                    let qp = self.qp(qpn).filter(|qp| qp.accepts_peer(query.from.gid, &query.device));
                    // Without its protection domain, the queue pair has no connection data yet. The
                    // peer asks again.
                    if qp.as_ref().is_some_and(|qp| !matches!(qp.enter_pd_of_xrc_domain(), Ok(true))) {
                        continue;
                    }
                    let info = qp.as_ref().map(|qp| qp.local_info());
                    if let (Some(qp), Some(info)) = (&qp, &info) {
                        qp.note_peer_terms(query.from.gid, &query.device, terms);
                        explain_refusal(&qp.terms(), &terms);
                        if qp.has_ended() {
                            rendezvous.answer_ended(&query, info);
                            continue;
                        }
                        // The peer connects, so its queue pair is reset, and the peer can answer
                        // this end's query.
                        qp.hasten_connection();
                    }
                    qp.zip(info).map(|(qp, info)| {
                        ConnectionData { terms: qp.terms(), info: info.encode() }.to_bytes()
                    })
                }
                Subject::Connected { qpn, asker } => {
                    match self.qp(qpn).map(|qp| qp.is_connected_to(asker, query.from.gid, &query.device)) {
                        Some(None) => continue,
                        Some(Some(true)) => Some(Vec::new()),
                        Some(Some(false)) | None => None,
                    }
                }
                Subject::Region { qpn, .. } | Subject::SharedReceiveQueue { qpn, .. } => match self.qp(qpn) {
                    Some(qp) if !qp.accepts_peer(query.from.gid, &query.device) => {
                        if qp.may_be_peer(&query.device) {
                            // The peer's address may have changed, which this end detects soon. The
                            // sender queries again.
                            continue;
                        }
                        None
                    }
                    qp => qp.and_then(|qp| qp.describe(query.subject)),
                },
            };
            rendezvous.answer(&query, answer);
        }
    }

    /// Closes the virtual queue pairs that were destroyed, or replaced by a reset, at least `age`
    /// ago. Drives the replaced ones.
    pub(super) fn close_ended(&self, age: Duration) {
        let next_expired = || lock(&self.lingering).pop_front_if(|(since, _)| since.elapsed() >= age);
        while let Some((_, qp)) = next_expired() {
            // Closing fails only on a dead NIC, whose objects no longer exist.
            let _ = qp.close();
        }
        self.domain.close_retired(age);
    }

    /// Requests the progress thread to end all connections, which notifies the peers. Waits until
    /// the thread has done so, but at most for [`EXIT_WAIT`]. The exiting thread cannot end the
    /// connections itself, because it may hold a queue pair's lock, for instance if a signal
    /// handler called `exit`.
    pub(super) fn shut_down_at_exit(&self) {
        self.exiting.store(true, Ordering::Release);
        let started = Instant::now();
        while !self.peers_notified.load(Ordering::Acquire) && started.elapsed() < EXIT_WAIT {
            thread::sleep(EXIT_WAIT / 100);
        }
    }

    /// When the process exits, ends all connections once, so that the peers are notified. Skips a
    /// queue pair whose lock is held.
    pub(super) fn notify_peers_at_exit(&self) {
        if self.exiting.load(Ordering::Acquire) && !self.peers_notified.load(Ordering::Relaxed) {
            self.qps().iter().for_each(|qp| qp.try_shutdown());
            self.peers_notified.store(true, Ordering::Release);
        }
    }
}

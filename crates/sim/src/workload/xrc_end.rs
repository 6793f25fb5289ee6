//! Two XRC connections, one in each direction, as one connection of the workload.

use std::sync::Arc;

use mitra_failover::{
    CloseReason, Completion, Config, Contradiction, Domain, OwnFailover, Secret, Service, SharedReceiveQueue,
    StateLengths, VirtualQp, XrcDomain,
};
use mitra_verbs::{Error, Qpn, RecvWr, Result, SendWr, Srqn};

use super::FailoverQp;

/// The numbers of the shared receive queues of an end.
const NUMBERS: [u32; 3] = [0xff_ffff, 1, 0x5a_5a5a];

/// One end: the sending end of one XRC connection, and the receiving end of the other.
///
/// The `wr_id` of a message selects a shared receive queue. A receive goes to the queue with the
/// fewest receives.
#[derive(Debug)]
pub struct XrcEnd {
    sender: VirtualQp,
    receiver: VirtualQp,
    queues: Vec<Arc<SharedReceiveQueue>>,
    depth: usize,
}

impl XrcEnd {
    fn new(domain: &Arc<Domain>, config: Config, secrets: [Secret; 2], queues: usize) -> Result<XrcEnd> {
        let depth = config.recv_wrs;
        let xrc = XrcDomain::new();
        let queues: Vec<_> =
            NUMBERS.iter().take(queues).map(|_| SharedReceiveQueue::new(domain, depth)).collect();
        for (&number, queue) in NUMBERS.iter().zip(&queues) {
            xrc.insert(Srqn::new(number), queue)?;
        }
        let [to, from] = secrets.map(|secret| VirtualQp::builder(domain).config(config).secret(secret));
        let sender = to.service(Service::XrcSend).build()?;
        let receiver = from.xrc_domain(&xrc).build()?;
        Ok(XrcEnd { sender, receiver, queues, depth: depth as usize })
    }

    /// Makes two ends and connects them. Each end has `queues` shared receive queues, at most
    /// three. Each configuration must allow a receive for each queue. `secrets[0]` belongs to the
    /// connection from the first end, and `secrets[1]` to the connection from the second end.
    ///
    /// # Errors
    /// Returns the error of the first call to a NIC or a virtual queue pair that failed.
    pub fn pair(
        [a, b]: [Arc<Domain>; 2],
        configs: [Config; 2],
        secrets: [[Secret; 2]; 2],
        queues: usize,
    ) -> Result<[XrcEnd; 2]> {
        let [[a_sends, b_receives], [b_sends, a_receives]] = secrets;
        let mut a = XrcEnd::new(&a, configs[0], [a_sends, a_receives], queues)?;
        let mut b = XrcEnd::new(&b, configs[1], [b_sends, b_receives], queues)?;
        connect(&mut a.sender, &mut b.receiver)?;
        connect(&mut b.sender, &mut a.receiver)?;
        Ok([a, b])
    }

    /// See [`VirtualQp::begin_at`].
    pub fn begin_at(&mut self, epoch: u16, seq: u64) {
        self.sender.begin_at(epoch, seq);
        self.receiver.begin_at(epoch, seq);
    }
}

fn connect(sender: &mut VirtualQp, receiver: &mut VirtualQp) -> Result<()> {
    let info = sender.local_info();
    sender.connect(&receiver.local_info())?;
    receiver.connect(&info)
}

impl FailoverQp for XrcEnd {
    type Kind = OwnFailover;

    fn sender(&self) -> &VirtualQp {
        &self.sender
    }

    fn sender_mut(&mut self) -> &mut VirtualQp {
        &mut self.sender
    }

    fn receiver(&self) -> &VirtualQp {
        &self.receiver
    }

    fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        let number = NUMBERS[wr.wr_id as usize % self.queues.len()];
        self.sender.post_send(wr.to_srq(Srqn::new(number)))
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        let depth = self.depth;
        let full = Error::QueueFull { queue: "receive queue", qpn: Qpn::new(0), depth: depth as u32 };
        if self.queues.iter().map(|queue| queue.len()).sum::<usize>() >= depth {
            return Err(full);
        }
        let fewest = self.queues.iter().min_by_key(|queue| queue.len()).ok_or(full)?;
        fewest.post_recv(&[wr]).map_err(|refused| refused.error)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        self.sender.poll(out);
        self.receiver.poll(out);
    }

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        self.sender.poll_completions(out);
        self.receiver.poll_completions(out);
    }

    fn close_reason(&self) -> Option<CloseReason> {
        // If one vQP closes for a reason of its own, the other vQP learns at most that its peer has
        // closed. So `PeerClosed` counts only if no vQP has another reason.
        let reasons = [self.sender.close_reason(), self.receiver.close_reason()];
        let own = reasons.into_iter().flatten().find(|&reason| reason != CloseReason::PeerClosed);
        own.or(reasons[0]).or(reasons[1])
    }

    fn contradiction(&self) -> Option<Contradiction> {
        self.sender.contradiction().or(self.receiver.contradiction())
    }

    fn state_lengths(&self) -> Vec<StateLengths> {
        vec![self.sender.state_lengths(), self.receiver.state_lengths()]
    }

    fn rejected_messages(&self) -> u64 {
        self.sender.rejected_messages() + self.receiver.rejected_messages()
    }

    fn leave(&mut self, abruptly: bool) {
        self.sender.leave(abruptly);
        self.receiver.leave(abruptly);
    }
}

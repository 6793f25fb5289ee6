use core::fmt;

/// How a [`VirtualQp`](crate::VirtualQp) fails over: [`OwnFailover`](crate::OwnFailover) by itself,
/// or [`SharedFailover`](crate::SharedFailover) with a shared backup.
pub trait Failover: sealed::Failover + fmt::Debug {}

impl<F: sealed::Failover + fmt::Debug> Failover for F {}

pub(super) mod sealed {
    use mitra_verbs::{Access, Result, RnrTimer};

    use crate::close_reason::CloseReason;
    use crate::failover_report::FailoverReport;
    use crate::memory_region::RemoteRegion;
    use crate::vqp::datapath::{DataQps, Datapath};
    use crate::vqp::failure::Failure;
    use crate::vqp::termination::Termination;

    /// What a virtual queue pair does with its datapath: it drives the queue pairs, and moves the
    /// datapath to others after a failure. The documentation of `VirtualQp` says what its methods
    /// of these names do.
    pub trait Failover {
        /// The queue pairs of the datapath.
        type Qps: DataQps;
        /// The connection parameters of one end.
        type Info;

        fn local_info(&self, dp: &Datapath<Self::Qps>) -> Self::Info;

        fn modify_to_rtr(
            &mut self,
            dp: &mut Datapath<Self::Qps>,
            peer: &Self::Info,
            min_rnr_timer: RnrTimer,
        ) -> Result<()>;

        fn modify_to_rts(&mut self, dp: &mut Datapath<Self::Qps>, rnr_retry: u8) -> Result<()>;

        /// The vQP is open.
        fn set_access(&mut self, dp: &mut Datapath<Self::Qps>, access: Access) -> Result<()>;

        fn is_connected(&self) -> bool;

        /// Returns whether sends may be posted, unless the vQP has closed.
        fn may_send(&self) -> bool;

        fn termination(&self) -> &Termination;

        /// The region was added to those that sends may name.
        fn on_import(&mut self, dp: &mut Datapath<Self::Qps>, region: &RemoteRegion);

        /// Returns the rail on which a new send may be posted at once.
        fn open_rail(&self, dp: &Datapath<Self::Qps>) -> Option<usize>;

        /// Records a failure, which [`Failover::post_pending_sends`] handles.
        fn note_failure(&mut self, failure: Option<Failure>);

        /// Posts the sends that wait.
        fn post_pending_sends(&mut self, dp: &mut Datapath<Self::Qps>);

        /// Posts the receives that are not posted yet.
        fn post_added_recvs(&mut self, dp: &mut Datapath<Self::Qps>);

        /// Has the slots replaced, because they are shorter than a shared receive.
        fn lengthen_slots(&mut self, dp: &mut Datapath<Self::Qps>);

        fn poll(&mut self, dp: &mut Datapath<Self::Qps>);

        fn poll_completions(&mut self, dp: &mut Datapath<Self::Qps>);

        fn progress(&mut self, dp: &mut Datapath<Self::Qps>);

        fn arm(&self, dp: &Datapath<Self::Qps>) -> Result<()>;

        /// The send queue accepts sends again.
        fn resume(&mut self, dp: &mut Datapath<Self::Qps>);

        fn take_established(&mut self, dp: &mut Datapath<Self::Qps>) -> bool;

        fn active_rail(&self) -> usize;

        fn last_failover(&self) -> Option<FailoverReport>;

        fn rejected_messages(&self) -> u64;

        /// The number of actions of the rail negotiation that were not executed.
        fn queued_actions(&self) -> usize;

        /// Closes the vQP because a message of the peer names no shared receive queue of the XRC
        /// domain.
        fn close_on_access_error(&mut self, dp: &mut Datapath<Self::Qps>);

        fn close(&mut self, dp: &mut Datapath<Self::Qps>, reason: CloseReason);

        /// Closes the vQP, and destroys what it need not keep for the completions that can still be
        /// polled.
        fn destroy(&mut self, dp: &mut Datapath<Self::Qps>) -> Result<()>;

        fn on_drop(&mut self, dp: &mut Datapath<Self::Qps>);
    }
}

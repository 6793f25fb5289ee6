use core::fmt;

/// How a [`VirtualQp`](crate::VirtualQp) fails over: [`OwnFailover`](crate::OwnFailover) by itself,
/// or [`SharedFailover`](crate::SharedFailover) with a shared backup.
pub trait Failover: sealed::Failover + fmt::Debug {}

impl<F: sealed::Failover + fmt::Debug> Failover for F {}

pub(super) mod sealed {
    use mitra_verbs::{Access, Result, RnrTimer, SendWr};

    use crate::close_reason::CloseReason;
    use crate::config::WritePolicy;
    use crate::memory_region::RemoteRegion;
    use crate::vqp::datapath::{DataQps, Datapath};
    use crate::vqp::recovery::Recovery;

    /// Drives the queue pairs of a datapath, and moves the datapath to other queue pairs after a
    /// failure. `VirtualQp` documents the methods that have the same names there.
    pub trait Failover {
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

        /// Called only while the vQP is open.
        fn set_access(&mut self, dp: &mut Datapath<Self::Qps>, access: Access) -> Result<()>;

        fn is_connected(&self) -> bool;

        /// Returns whether an open vQP may post sends.
        fn may_send(&self) -> bool;

        /// Called after the send queue knows the region.
        fn on_import(&mut self, dp: &mut Datapath<Self::Qps>, region: &RemoteRegion);

        /// Records a prepared send and returns its sequence number. Posts the send, unless it has
        /// to wait.
        fn submit(&mut self, dp: &mut Datapath<Self::Qps>, wr: SendWr, policy: WritePolicy) -> u64;

        /// Posts the sends that wait.
        fn post_pending_sends(&mut self, dp: &mut Datapath<Self::Qps>);

        /// Posts the receives that are not posted yet.
        fn post_added_recvs(&mut self, dp: &mut Datapath<Self::Qps>);

        fn poll(&mut self, dp: &mut Datapath<Self::Qps>) {
            self.progress(dp);
        }

        fn poll_completions(&mut self, dp: &mut Datapath<Self::Qps>);

        fn progress(&mut self, dp: &mut Datapath<Self::Qps>);

        fn arm(&self, dp: &Datapath<Self::Qps>) -> Result<()>;

        /// Called after the send queue accepts sends again.
        fn resume(&mut self, _dp: &mut Datapath<Self::Qps>) {}

        /// Calls `read` with the failover state of the vQP or, if it has a shared backup, of the
        /// backup.
        fn with_recovery<T>(&self, read: impl FnOnce(&Recovery) -> T) -> T;

        fn rejected_messages(&self) -> u64;

        fn close(&mut self, dp: &mut Datapath<Self::Qps>, reason: CloseReason);

        /// Closes the vQP, and destroys what its completions do not need.
        fn destroy(&mut self, dp: &mut Datapath<Self::Qps>) -> Result<()>;

        fn on_drop(&mut self, dp: &mut Datapath<Self::Qps>) {
            let _ = self.destroy(dp); // a caller cannot handle the error of a NIC
        }
    }
}

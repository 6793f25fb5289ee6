//! What a virtual queue pair of the program is made of: one [`VirtualQp`], or two if it is connected to itself.

use std::collections::HashSet;

use mitra_failover::{Completion, ConnectInfo, VirtualQp};
use mitra_verbs::{Key, QpAttr, QpState, Result, RnrTimer};

use crate::rails::bounce::Bounce;
use crate::rails::parted::Parted;
use crate::rails::spanning::Spanning;

/// What changes of a queue pair.
pub(super) struct Inner {
    pub(super) vqp: VirtualQp,
    /// Of a queue pair that is connected to itself: what sends. `vqp` is its peer then, and receives.
    pub(super) sender: Option<VirtualQp>,
    pub(super) state: QpState,
    /// The program has destroyed it: nothing completes any more.
    pub(super) gone: bool,
    pub(super) attr: QpAttr,
    /// Keys of the peer that the queue pair knows on every rail.
    pub(super) known: HashSet<Key>,
    pub(super) scratch: Vec<Completion>,
    /// What is kept since the peer closed its end.
    pub(super) parted: Option<Parted>,
    /// Where messages arrive for a shared receive queue, once it can receive.
    pub(super) bounce: Option<Bounce>,
    /// The last failover that was told.
    pub(super) told_epoch: Option<u16>,
    /// It was told that the shared receive queue gives it no more.
    pub(super) told_last: bool,
    /// It was told that the peer's request broke a rule.
    pub(super) told_rule: bool,
    pub(super) lines: u32,
}

impl Inner {
    /// In RESET.
    pub(super) fn new(vqp: VirtualQp) -> Inner {
        Inner {
            vqp,
            sender: None,
            state: QpState::Reset,
            gone: false,
            attr: QpAttr::default(),
            known: HashSet::new(),
            scratch: Vec::new(),
            parted: None,
            bounce: None,
            told_epoch: None,
            told_last: false,
            told_rule: false,
            lines: 0,
        }
    }

    /// What sends.
    pub(super) fn sender(&mut self) -> &mut VirtualQp {
        self.sender.as_mut().unwrap_or(&mut self.vqp)
    }

    /// All that it is made of.
    pub(super) fn halves(&mut self) -> impl Iterator<Item = &mut VirtualQp> {
        std::iter::once(&mut self.vqp).chain(&mut self.sender)
    }

    pub(super) fn shutdown(&mut self) {
        self.halves().for_each(VirtualQp::shutdown);
    }

    /// Connects it to itself.
    pub(super) fn connect_to_itself(
        &mut self,
        spanning: &Spanning,
        min_rnr_timer: RnrTimer,
    ) -> Result<ConnectInfo> {
        let mut sender = spanning.twin(&self.vqp)?;
        let info = self.vqp.local_info()?;
        self.vqp.modify_to_rtr(&sender.local_info()?, min_rnr_timer)?;
        sender.modify_to_rtr(&info, min_rnr_timer)?;
        self.sender = Some(sender);
        Ok(info)
    }
}

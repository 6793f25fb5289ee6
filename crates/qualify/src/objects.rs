//! The objects that a test creates on a NIC. They are destroyed on every path.

use std::sync::Arc;
use std::time::Duration;

use mitra_verbs::{Access, Buffer, CqId, Error, Mr, MrId, PdId, Provider, QpBuilder, Qpn, Result};

/// A NIC may destroy queue pairs in the background. Until then, what they use is busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The objects of a NIC, destroyed in the reverse order of their creation.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    nic: &'a dyn Provider,
    created: Vec<Object>,
}

#[derive(Clone, Copy, Debug)]
enum Object {
    Pd(PdId),
    Mr(MrId),
    Cq(CqId),
    Qp(Qpn),
}

impl<'a> Objects<'a> {
    pub(crate) fn on(nic: &'a dyn Provider) -> Objects<'a> {
        Objects { nic, created: Vec::new() }
    }

    pub(crate) fn nic(&self) -> &'a dyn Provider {
        self.nic
    }

    pub(crate) fn pd(&mut self) -> Result<PdId> {
        let pd = self.nic.alloc_pd()?;
        self.created.push(Object::Pd(pd));
        Ok(pd)
    }

    pub(crate) fn mr(&mut self, pd: PdId, memory: Arc<Buffer>, access: Access) -> Result<Mr> {
        let mr = self.nic.reg_mr(pd, memory, access)?;
        self.created.push(Object::Mr(mr.id));
        Ok(mr)
    }

    pub(crate) fn cq(&mut self, depth: u32) -> Result<CqId> {
        let cq = self.nic.create_cq(depth, None)?;
        self.created.push(Object::Cq(cq));
        Ok(cq)
    }

    pub(crate) fn qp(&mut self, builder: QpBuilder) -> Result<Qpn> {
        let qp = builder.build(self.nic)?;
        self.created.push(Object::Qp(qp));
        Ok(qp)
    }

    /// Destroys the objects.
    ///
    /// # Errors
    /// The first error. Objects on a dead NIC count as destroyed.
    pub(crate) fn destroy(mut self) -> Result<()> {
        self.destroy_all()
    }

    fn destroy_all(&mut self) -> Result<()> {
        let nic = self.nic;
        let mut result = Ok(());
        while let Some(object) = self.created.pop() {
            let destroy = || match object {
                Object::Pd(pd) => nic.dealloc_pd(pd),
                Object::Mr(mr) => nic.dereg_mr(mr),
                Object::Cq(cq) => nic.destroy_cq(cq),
                Object::Qp(qp) => nic.destroy_qp(qp),
            };
            let deadline = nic.now() + BUSY_TIMEOUT;
            let mut step = destroy();
            while matches!(step, Err(Error::Busy { .. })) && nic.now() < deadline {
                std::thread::yield_now();
                step = destroy();
            }
            if !matches!(step, Err(Error::DeviceFatal)) {
                result = result.and(step);
            }
        }
        result
    }
}

impl Drop for Objects<'_> {
    fn drop(&mut self) {
        // An error of the test is on its way to the caller. An error of the destruction would say
        // less.
        let _ = self.destroy_all();
    }
}

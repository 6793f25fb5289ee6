//! Random histories of the table, compared with a reference model.

use proptest::prelude::*;

use super::*;

/// One step of a random history. A `usize` is an index into all objects or keys of the history so
/// far, valid or not.
#[derive(Clone, Debug)]
enum Step {
    Reg { pd: u32, addr: u64, len: u64, access: Access },
    Rereg { mr: usize, pd: u32, addr: u64, len: u64, access: Access },
    Dereg(usize),
    Alloc { pd: u32, window_type: WindowType },
    Dealloc(usize),
    Bind { qp: u32, pd: u32, mw: usize, mr: usize, low: u8, addr: u64, len: u64, access: Access },
    Invalidate { qp: u32, pd: u32, key: usize },
    Release { qp: u32 },
    Wait(u64),
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..40u64, 1 => u64::MAX - 40..=u64::MAX]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..40u64, 1 => u64::MAX - 40..=u64::MAX]
}

fn rights() -> impl Strategy<Value = Access> {
    prop_oneof![3 => Just(ALL), 2 => (0..32u8).prop_map(Access::from_bits_truncate)]
}

fn window_type() -> impl Strategy<Value = WindowType> {
    prop_oneof![Just(WindowType::Type1), Just(WindowType::Type2)]
}

fn step() -> impl Strategy<Value = Step> {
    let (pd, qp, n) = (0..2u32, 0..2u32, 0..64usize);
    prop_oneof![
        4 => (pd.clone(), address(), length(), rights())
            .prop_map(|(pd, addr, len, access)| Step::Reg { pd, addr, len, access }),
        2 => (n.clone(), pd.clone(), address(), length(), rights())
            .prop_map(|(mr, pd, addr, len, access)| Step::Rereg { mr, pd, addr, len, access }),
        2 => n.clone().prop_map(Step::Dereg),
        2 => (pd.clone(), window_type()).prop_map(|(pd, window_type)| Step::Alloc { pd, window_type }),
        1 => n.clone().prop_map(Step::Dealloc),
        6 => (qp.clone(), pd.clone(), n.clone(), n.clone(), any::<u8>(), address(), length(), rights()).prop_map(
            |(qp, pd, mw, mr, low, addr, len, access)| Step::Bind { qp, pd, mw, mr, low, addr, len, access }
        ),
        2 => (qp.clone(), pd.clone(), n).prop_map(|(qp, pd, key)| Step::Invalidate { qp, pd, key }),
        1 => qp.prop_map(|qp| Step::Release { qp }),
        1 => (0..3000u64).prop_map(Step::Wait),
    ]
}

#[derive(Default)]
struct ReferenceModel {
    regions: Vec<ModelRegion>,
    windows: Vec<ModelWindow>,
    /// All regions that were ever registered.
    mrs: Vec<MrId>,
    /// All windows that were ever created.
    mws: Vec<Mw>,
    /// All keys that the table has returned, and all keys to which a window was bound.
    keys: Vec<Key>,
    revoked: Vec<(Key, Time)>,
    regions_made: u32,
}

struct ModelRegion {
    mr: Mr,
    region: RegionId,
    access: Access,
}

struct ModelWindow {
    mw: Mw,
    window_type: WindowType,
    /// The queue pair is `None` for a type 1 window.
    bound: Option<(Option<Qpn>, WindowBind)>,
}

impl ModelWindow {
    fn binding(&self, qp: Qpn, pd: PdId, key: Key) -> Option<WindowBind> {
        let (qpn, bind) = self.bound?;
        (self.mw.pd == pd && qpn.is_none_or(|qpn| qpn == qp) && bind.rkey == key).then_some(bind)
    }
}

/// Returns whether a region may have these addresses and rights.
fn is_region(addr: u64, len: u64, access: Access) -> bool {
    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    (!writes || access.contains(Access::LOCAL_WRITE)) && addr.checked_add(len).is_some()
}

fn is_inside(addr: u64, len: u64, of: (u64, u64)) -> bool {
    addr >= of.0 && u128::from(addr) + u128::from(len) <= u128::from(of.0) + u128::from(of.1)
}

impl ReferenceModel {
    fn region(&self, id: MrId) -> Option<&ModelRegion> {
        self.regions.iter().find(|r| r.mr.id == id)
    }

    fn has_window(&self, id: MrId) -> bool {
        self.windows.iter().any(|w| w.bound.is_some_and(|(_, bind)| bind.mr == id))
    }

    fn may_bind(&self, qp_pd: PdId, bind: &WindowBind) -> bool {
        let Some(window) = self.windows.iter().find(|w| w.mw.id == bind.mw) else { return false };
        if (window.window_type, bind.len) == (WindowType::Type1, 0) {
            return window.mw.pd == qp_pd;
        }
        let Some(region) = self.region(bind.mr) else { return false };
        (window.window_type == WindowType::Type1 || window.bound.is_none())
            && window.mw.pd == qp_pd
            && region.mr.pd == qp_pd
            && bind.len > 0
            && is_inside(bind.addr, bind.len, (region.mr.addr, region.mr.len))
            && region.access.contains(Access::WINDOW_BIND)
            && (region.access.contains(Access::LOCAL_WRITE)
                || !bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC))
    }

    fn remote(&self, qp: Qpn, pd: PdId, key: Key, addr: u64, len: u64, needs: Access) -> Option<RegionSpan> {
        for r in self.regions.iter().filter(|r| r.mr.rkey == key && r.mr.pd == pd) {
            if r.access.contains(needs) && is_inside(addr, len, (r.mr.addr, r.mr.len)) {
                return Some(RegionSpan { region: r.region, offset: addr - r.mr.addr });
            }
        }
        for w in &self.windows {
            if let Some(bind) = w.binding(qp, pd, key)
                && (bind.access & Access::REMOTE).contains(needs)
                && is_inside(addr, len, (bind.addr, bind.len))
            {
                let r = self.region(bind.mr).expect("the region of a bound window exists");
                return Some(RegionSpan { region: r.region, offset: addr - r.mr.addr });
            }
        }
        None
    }

    fn local(&self, pd: PdId, key: Key, addr: u64, len: u64, needs: Access) -> Option<RegionSpan> {
        let r = self.regions.iter().find(|r| r.mr.lkey == key && r.mr.pd == pd)?;
        let allowed = r.access.contains(needs) && is_inside(addr, len, (r.mr.addr, r.mr.len));
        allowed.then(|| RegionSpan { region: r.region, offset: addr - r.mr.addr })
    }

    fn record_new_key(&mut self, now: Time, key: Key) {
        for &(old, at) in &self.revoked {
            assert!(
                old.index_part() != key.index_part() || now - at >= QUARANTINE,
                "{key} reuses the quarantined key {old}"
            );
        }
        let live = self.regions.iter().map(|r| r.mr.rkey).chain(self.windows.iter().map(|w| w.mw.rkey));
        assert!(
            live.into_iter().all(|k| k.index_part() != key.index_part()),
            "another object has the key {key} too"
        );
        self.keys.push(key);
    }
}

fn apply_step(
    keys: &mut KeyTable,
    model: &mut ReferenceModel,
    rng: &mut ChaCha8Rng,
    now: &mut Time,
    step: &Step,
) {
    match *step {
        Step::Reg { pd, addr, len, access } => {
            model.regions_made += 1;
            let (pd, region) = (PdId(pd), RegionId(model.regions_made));
            let good = is_region(addr, len, access);
            match keys.reg_mr(*now, rng, pd, region, addr, len, access) {
                Ok(mr) => {
                    assert!(good);
                    assert_eq!((mr.pd, mr.addr, mr.len), (pd, addr, len));
                    model.record_new_key(*now, mr.rkey);
                    model.mrs.push(mr.id);
                    model.regions.push(ModelRegion { mr, region, access });
                }
                Err(error) => assert!(!good, "{error}"),
            }
        }
        Step::Rereg { mr, pd, addr, len, access } => {
            let Some(&id) = model.mrs.get(mr % model.mrs.len().max(1)) else { return };
            model.regions_made += 1;
            let (pd, region, busy) = (PdId(pd), RegionId(model.regions_made), model.has_window(id));
            let changed = model.regions.iter_mut().find(|r| r.mr.id == id).filter(|_| !busy);
            let result = keys.rereg_mr(id, pd, region, addr, len, access);
            assert_eq!(result.is_ok(), is_region(addr, len, access) && changed.is_some(), "{result:?}");
            if let (Ok((mr, earlier)), Some(changed)) = (result, changed) {
                assert_eq!((mr, earlier), (Mr { pd, addr, len, ..changed.mr }, changed.region));
                *changed = ModelRegion { mr, region, access };
            }
        }
        Step::Dereg(n) => {
            let Some(&id) = model.mrs.get(n % model.mrs.len().max(1)) else { return };
            let busy = model.has_window(id);
            let at = model.regions.iter().position(|r| r.mr.id == id);
            match keys.dereg_mr(*now, id) {
                Ok(region) => {
                    assert!(!busy);
                    let removed = model.regions.remove(at.expect("a region that was deregistered existed"));
                    assert_eq!(removed.region, region);
                    model.revoked.push((removed.mr.rkey, *now));
                }
                Err(Error::Busy { .. }) => assert!(busy),
                Err(error) => assert!(at.is_none(), "{error}"),
            }
        }
        Step::Alloc { pd, window_type } => {
            let mw = keys.alloc_mw(*now, PdId(pd), window_type).unwrap();
            model.record_new_key(*now, mw.rkey);
            model.mws.push(mw);
            model.windows.push(ModelWindow { mw, window_type, bound: None });
        }
        Step::Dealloc(n) => {
            let Some(&mw) = model.mws.get(n % model.mws.len().max(1)) else { return };
            let at = model.windows.iter().position(|w| w.mw.id == mw.id);
            assert_eq!(keys.dealloc_mw(*now, mw.id).is_ok(), at.is_some());
            if let Some(at) = at {
                model.revoked.push((model.windows.remove(at).mw.rkey, *now));
            }
        }
        Step::Bind { qp, pd, mw, mr, low, addr, len, access } => {
            let Some(&mw) = model.mws.get(mw % model.mws.len().max(1)) else { return };
            let Some(&mr) = model.mrs.get(mr % model.mrs.len().max(1)) else { return };
            let rkey = mw.rkey.with_consumer_bits(low);
            let bind = WindowBind { mw: mw.id, rkey, mr, addr, len, access, zero_based: false };
            let expected = model.may_bind(PdId(pd), &bind);
            // The table ignores the upper bits of the key.
            let request = WindowBind { rkey: Key(!rkey.0).with_consumer_bits(low), ..bind };
            let result = keys.bind(Qpn::new(qp), PdId(pd), &request);
            assert_eq!(result.is_ok(), expected, "{result:?} {bind:?}");
            if expected {
                let window = model
                    .windows
                    .iter_mut()
                    .find(|w| w.mw.id == mw.id)
                    .expect("a window that was bound exists");
                window.bound = (len > 0)
                    .then(|| ((window.window_type == WindowType::Type2).then_some(Qpn::new(qp)), bind));
                model.keys.push(rkey);
            }
        }
        Step::Invalidate { qp, pd, key } => {
            let Some(&key) = model.keys.get(key % model.keys.len().max(1)) else { return };
            let (qp, pd) = (Qpn::new(qp), PdId(pd));
            let is_bound =
                |w: &&mut ModelWindow| w.window_type == WindowType::Type2 && w.binding(qp, pd, key).is_some();
            let window = model.windows.iter_mut().find(is_bound);
            let result = keys.invalidate(qp, pd, key);
            assert_eq!(result.is_ok(), window.is_some(), "{result:?} {key}");
            if let Some(window) = window {
                window.bound = None;
            }
        }
        Step::Release { qp } => {
            keys.unbind_windows_of(Qpn::new(qp));
            for window in &mut model.windows {
                window.bound = window.bound.filter(|(qpn, _)| *qpn != Some(Qpn::new(qp)));
            }
        }
        Step::Wait(ms) => *now += Duration::from_millis(ms),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn key_table_agrees_with_reference_model(
        seed: [u8; 32],
        few in any::<bool>(),
        steps in prop::collection::vec(step(), 0..120),
        probes in prop::collection::vec((0..2u32, 0..2u32, address(), length(), 0..32u8), 1..6),
        guesses in prop::collection::vec(any::<u32>(), 4),
    ) {
        let mut rng = ChaCha8Rng::from_seed(seed);
        // With the larger limit, a slot has only 16 generations, so that keys are reused within the
        // history.
        let n = if few { 1 << 20 } else { 200 };
        let mut keys = KeyTable::new(&limits(n, n), QUARANTINE, &mut rng);
        let (mut model, mut now) = (ReferenceModel::default(), Time::ZERO);
        for step in &steps {
            apply_step(&mut keys, &mut model, &mut rng, &mut now, step);
            let tested_keys = model.keys.iter().copied().chain(guesses.iter().map(|&g| Key(g)));
            for key in tested_keys {
                for &(qp, pd, addr, len, needs) in &probes {
                    let (qp, pd, needs) = (Qpn::new(qp), PdId(pd), Access::from_bits_truncate(needs));
                    let remote = keys.check_remote(qp, pd, key, addr, len, needs);
                    prop_assert_eq!(remote.ok(), model.remote(qp, pd, key, addr, len, needs), "{}", key);
                    let local = keys.check_local(pd, key, addr, len, needs);
                    prop_assert_eq!(local.ok(), model.local(pd, key, addr, len, needs), "{}", key);
                }
            }
            for pd in 0..2 {
                let used = model.regions.iter().map(|r| r.mr.pd).chain(model.windows.iter().map(|w| w.mw.pd));
                prop_assert_eq!(keys.pd_in_use(PdId(pd)), used.into_iter().any(|p| p == PdId(pd)));
            }
        }
    }
}

use mitra_verbs::{Mw, WindowBind};
use rand_core::SeedableRng;

use super::*;

mod reference_model;

const QUARANTINE: Duration = Duration::from_secs(2);
const PD: PdId = PdId(1);
const QP: Qpn = Qpn::new(0x11);
const ALL: Access = Access::all();
const NOW: Time = Time::ZERO;

fn limits(mrs: u32, mws: u32) -> Limits {
    let config = crate::NicConfig::new("test", mitra_verbs::Gid([0; 16]), [0; 32]);
    Limits { mrs, mws, ..config.limits }
}

fn keys(mrs: u32, mws: u32) -> (KeyTable, ChaCha8Rng) {
    let mut rng = ChaCha8Rng::from_seed([7; 32]);
    (KeyTable::new(&limits(mrs, mws), QUARANTINE, &mut rng), rng)
}

/// Returns a table with a region of 64 bytes at 0x1000, and a window that is bound to its bytes 16
/// to 48 for reading.
fn table_with_window() -> (KeyTable, ChaCha8Rng, Mr, WindowBind) {
    let (mut keys, mut rng) = keys(4, 4);
    let mr = keys.reg_mr(NOW, &mut rng, PD, RegionId(5), 0x1000, 64, ALL).unwrap();
    let mw = keys.alloc_mw(NOW, PD, WindowType::Type2).unwrap();
    let rkey = mw.rkey.with_consumer_bits(0xab);
    let bind = WindowBind {
        mw: mw.id,
        rkey,
        mr: mr.id,
        addr: 0x1010,
        len: 32,
        access: Access::REMOTE_READ,
        zero_based: false,
    };
    keys.bind(QP, PD, &bind).unwrap();
    (keys, rng, mr, bind)
}

fn span(offset: u64) -> Result<RegionSpan, KeyError> {
    Ok(RegionSpan { region: RegionId(5), offset })
}

#[test]
fn region_grants_only_its_bytes() {
    let (keys, _, mr, _) = table_with_window();
    let remote = |addr, len| keys.check_remote(QP, PD, mr.rkey, addr, len, Access::REMOTE_WRITE);
    assert_eq!(remote(0x1000, 64), span(0));
    assert_eq!(remote(0x103f, 1), span(63));
    assert_eq!(remote(0x1040, 0), span(64));
    for (addr, len) in [(0xfff, 1), (0x1000, 65), (0x1040, 1), (0x1041, 0), (u64::MAX, 2), (0x1001, u64::MAX)]
    {
        assert_eq!(remote(addr, len), Err(KeyError::OutOfBounds), "{len} at {addr:#x}");
    }
    assert_eq!(keys.check_local(PD, mr.lkey, 0x1008, 8, Access::LOCAL_WRITE), span(8));
    assert_eq!(keys.check_local(PdId(2), mr.lkey, 0x1008, 8, Access::empty()), Err(KeyError::WrongPd));
}

#[test]
fn region_may_end_at_last_address() {
    let (mut keys, mut rng) = keys(2, 0);
    let mr = keys.reg_mr(NOW, &mut rng, PD, RegionId(5), u64::MAX - 8, 8, ALL).unwrap();
    assert_eq!(keys.check_local(PD, mr.lkey, u64::MAX - 1, 1, ALL), span(7));
    assert_eq!(keys.check_local(PD, mr.lkey, u64::MAX - 1, 2, ALL), Err(KeyError::OutOfBounds));
    assert_eq!(keys.check_local(PD, mr.lkey, u64::MAX - 1, u64::MAX, ALL), Err(KeyError::OutOfBounds));
    let refused = keys.reg_mr(NOW, &mut rng, PD, RegionId(6), u64::MAX - 8, 9, ALL);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

#[test]
fn low_key_bits_of_region_are_checked() {
    let (mut keys, _, mr, _) = table_with_window();
    for bits in (0..=255).filter(|&bits| mr.rkey.with_consumer_bits(bits) != mr.rkey) {
        let key = mr.rkey.with_consumer_bits(bits);
        assert_eq!(keys.check_remote(QP, PD, key, 0x1000, 1, Access::empty()), Err(KeyError::Unknown));
        assert_eq!(keys.check_local(PD, key, 0x1000, 1, Access::empty()), Err(KeyError::Unknown));
        assert_eq!(keys.invalidate(QP, PD, key), Err(KeyError::Unknown));
    }
}

#[test]
fn only_granted_rights_are_allowed() {
    let (mut keys, mut rng) = keys(8, 0);
    let read = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let mr = keys.reg_mr(NOW, &mut rng, PD, RegionId(5), 0, 8, read).unwrap();
    assert_eq!(keys.check_remote(QP, PD, mr.rkey, 0, 8, Access::REMOTE_READ), span(0));
    for needs in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE] {
        assert_eq!(keys.check_remote(QP, PD, mr.rkey, 0, 8, needs), Err(KeyError::NoRight));
    }
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = keys.reg_mr(NOW, &mut rng, PD, RegionId(6), 0, 8, access);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let mr = keys.reg_mr(NOW, &mut rng, PD, RegionId(7), 0, 8, Access::empty()).unwrap();
    assert_eq!(keys.check_local(PD, mr.lkey, 0, 8, Access::LOCAL_WRITE), Err(KeyError::NoRight));
    assert!(keys.check_local(PD, mr.lkey, 0, 8, Access::empty()).is_ok());
}

#[test]
fn window_grants_its_bytes_only_to_its_qp() {
    let (keys, _, _, bind) = table_with_window();
    let read = |qpn, pd, addr, len| keys.check_remote(qpn, pd, bind.rkey, addr, len, Access::REMOTE_READ);
    assert_eq!(read(QP, PD, 0x1010, 32), span(16));
    assert_eq!(read(QP, PD, 0x100f, 2), Err(KeyError::OutOfBounds));
    assert_eq!(read(QP, PD, 0x1010, 33), Err(KeyError::OutOfBounds));
    assert_eq!(read(Qpn::new(0x12), PD, 0x1010, 1), Err(KeyError::WrongQp));
    assert_eq!(read(QP, PdId(2), 0x1010, 1), Err(KeyError::WrongPd));
    let write = keys.check_remote(QP, PD, bind.rkey, 0x1010, 1, Access::REMOTE_WRITE);
    assert_eq!(write, Err(KeyError::NoRight));
    let other = bind.rkey.with_consumer_bits(0xac);
    assert_eq!(keys.check_remote(QP, PD, other, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
    assert_eq!(keys.check_local(PD, bind.rkey, 0x1010, 1, Access::empty()), Err(KeyError::Unknown));
}

#[test]
fn bound_window_can_be_bound_again_after_invalidation() {
    let (mut keys, _, mr, bind) = table_with_window();
    let again = WindowBind { rkey: bind.rkey.with_consumer_bits(0xac), ..bind };
    assert_eq!(keys.bind(QP, PD, &again), Err(KeyError::AlreadyBound));
    assert_eq!(keys.invalidate(Qpn::new(0x12), PD, bind.rkey), Err(KeyError::WrongQp));
    assert_eq!(keys.invalidate(QP, PdId(2), bind.rkey), Err(KeyError::WrongPd));
    assert_eq!(keys.invalidate(QP, PD, again.rkey), Err(KeyError::Unknown));
    assert_eq!(keys.invalidate(QP, PD, mr.rkey), Err(KeyError::NotInvalidatable));

    assert_eq!(keys.invalidate(QP, PD, bind.rkey), Ok(()));
    assert_eq!(keys.check_remote(QP, PD, bind.rkey, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
    assert_eq!(keys.invalidate(QP, PD, bind.rkey), Err(KeyError::Unknown));
    assert_eq!(keys.bind(QP, PD, &again), Ok(()));
    assert_eq!(keys.check_remote(QP, PD, bind.rkey, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
    assert_eq!(keys.check_remote(QP, PD, again.rkey, 0x1010, 1, Access::REMOTE_READ), span(16));
}

#[test]
fn bind_takes_only_low_bits_of_key() {
    let (mut keys, _, _, bind) = table_with_window();
    keys.invalidate(QP, PD, bind.rkey).unwrap();
    let other = WindowBind { rkey: Key(!bind.rkey.0).with_consumer_bits(0x5f), ..bind };
    assert_eq!(keys.bind(QP, PD, &other), Ok(()));
    let bound = bind.rkey.with_consumer_bits(0x5f);
    assert_eq!(keys.check_remote(QP, PD, bound, 0x1010, 1, Access::REMOTE_READ), span(16));
    assert_eq!(keys.check_remote(QP, PD, other.rkey, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
}

#[test]
fn type_1_window_is_bound_again_and_unbound_by_binds() {
    let (mut keys, _, mr, type_2) = table_with_window();
    keys.invalidate(QP, PD, type_2.rkey).unwrap();
    let mw = keys.alloc_mw(NOW, PD, WindowType::Type1).unwrap();
    let bind = |low, addr, len| WindowBind { mw: mw.id, rkey: Key(low), mr: mr.id, addr, len, ..type_2 };
    let read = |keys: &KeyTable, qp, low, addr| {
        keys.check_remote(qp, PD, mw.rkey.with_consumer_bits(low), addr, 1, Access::REMOTE_READ)
    };
    assert_eq!(keys.bind(QP, PdId(2), &bind(1, 0x1010, 8)), Err(KeyError::WrongPd));
    assert_eq!(keys.bind(QP, PD, &bind(1, 0x1010, 8)), Ok(()));
    let other_qp = Qpn::new(0x12);
    assert_eq!((read(&keys, QP, 1, 0x1010), read(&keys, other_qp, 1, 0x1017)), (span(16), span(23)));
    assert_eq!(keys.invalidate(QP, PD, mw.rkey.with_consumer_bits(1)), Err(KeyError::NotInvalidatable));
    keys.unbind_windows_of(QP);
    assert_eq!(read(&keys, QP, 1, 0x1010), span(16), "the window belongs to no queue pair");
    // A refused bind changes nothing.
    assert_eq!(keys.bind(QP, PD, &bind(2, 0x1010, 65)), Err(KeyError::OutOfBounds));
    assert_eq!(read(&keys, QP, 1, 0x1010), span(16));
    assert_eq!(keys.bind(other_qp, PD, &bind(2, 0x1020, 8)), Ok(()));
    assert_eq!((read(&keys, QP, 1, 0x1020), read(&keys, QP, 2, 0x1020)), (Err(KeyError::Unknown), span(32)));
    assert!(matches!(keys.dereg_mr(NOW, mr.id), Err(Error::Busy { .. })));
    let zero_based = WindowBind { zero_based: true, ..bind(3, 0x1010, 8) };
    assert_eq!(keys.bind(QP, PD, &zero_based), Err(KeyError::ZeroBased));
    let unbind = WindowBind { mr: MrId(!0), ..bind(3, 0, 0) };
    assert_eq!(keys.bind(QP, PD, &unbind), Ok(()));
    assert_eq!(
        (read(&keys, QP, 2, 0x1020), read(&keys, QP, 3, 0)),
        (Err(KeyError::Unknown), Err(KeyError::Unknown))
    );
    assert_eq!(keys.dereg_mr(NOW, mr.id), Ok(RegionId(5)));
}

#[test]
fn zero_based_window_is_addressed_by_offsets() {
    let (mut keys, _, _, bind) = table_with_window();
    keys.invalidate(QP, PD, bind.rkey).unwrap();
    let bind = WindowBind { zero_based: true, ..bind };
    let at_0 = WindowBind { addr: 0, ..bind };
    assert_eq!(
        keys.bind(QP, PD, &at_0),
        Err(KeyError::OutOfBounds),
        "the bind has the address in the region"
    );
    assert_eq!(keys.bind(QP, PD, &bind), Ok(()));
    let read = |addr, len| keys.check_remote(QP, PD, bind.rkey, addr, len, Access::REMOTE_READ);
    assert_eq!((read(0, 32), read(31, 1), read(32, 0)), (span(16), span(47), span(48)));
    for (addr, len) in [(0, 33), (31, 2), (33, 0), (0x1010, 1), (u64::MAX, 1), (u64::MAX, 2)] {
        assert_eq!(read(addr, len), Err(KeyError::OutOfBounds), "{addr:#x} {len}");
    }
}

#[test]
fn bind_is_limited_to_region_and_its_rights() {
    let (mut keys, mut rng, mr, good) = table_with_window();
    keys.invalidate(QP, PD, good.rkey).unwrap();
    let no_window = Access::LOCAL_WRITE | Access::REMOTE;
    let no_window = keys.reg_mr(NOW, &mut rng, PD, RegionId(6), 0x1000, 64, no_window).unwrap().id;
    let read_only = keys.reg_mr(NOW, &mut rng, PD, RegionId(7), 0x1000, 64, Access::WINDOW_BIND).unwrap().id;
    let other_pd = keys.reg_mr(NOW, &mut rng, PdId(2), RegionId(8), 0x1000, 64, ALL).unwrap().id;
    let stale = MrId(mr.id.0 ^ 1 << 20);
    for (bind, error) in [
        (WindowBind { len: 0, ..good }, KeyError::ZeroLength),
        (WindowBind { addr: 0xfff, ..good }, KeyError::OutOfBounds),
        (WindowBind { len: 49, ..good }, KeyError::OutOfBounds),
        (WindowBind { len: u64::MAX, ..good }, KeyError::OutOfBounds),
        (WindowBind { mr: no_window, ..good }, KeyError::NoRight),
        (WindowBind { mr: read_only, access: Access::REMOTE_WRITE, ..good }, KeyError::NoRight),
        (WindowBind { mr: read_only, access: Access::REMOTE_ATOMIC, ..good }, KeyError::NoRight),
        (WindowBind { mr: other_pd, ..good }, KeyError::WrongPd),
        (WindowBind { mr: stale, ..good }, KeyError::Unknown),
        (WindowBind { mr: MrId(good.mw.0), ..good }, KeyError::Unknown),
        (WindowBind { mw: MwId(mr.id.0), ..good }, KeyError::Unknown),
    ] {
        assert_eq!(keys.bind(QP, PD, &bind), Err(error), "{bind:?}");
    }
    assert_eq!(keys.bind(QP, PdId(2), &good), Err(KeyError::WrongPd));
    let local_too =
        WindowBind { mr: read_only, access: (ALL - Access::REMOTE) | Access::REMOTE_READ, ..good };
    assert_eq!(keys.bind(QP, PD, &local_too), Ok(()), "only remote rights count");
    assert_eq!(keys.check_remote(QP, PD, good.rkey, 0x1010, 1, Access::LOCAL_WRITE), Err(KeyError::NoRight));
}

#[test]
fn region_cannot_be_deregistered_while_window_is_bound() {
    let (mut keys, _, mr, bind) = table_with_window();
    assert!(matches!(keys.dereg_mr(NOW, mr.id), Err(Error::Busy { .. })));
    keys.dealloc_mw(NOW, bind.mw).unwrap();
    assert_eq!(keys.check_remote(QP, PD, bind.rkey, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
    assert_eq!(keys.dereg_mr(NOW, mr.id), Ok(RegionId(5)));
    assert_eq!(keys.check_remote(QP, PD, mr.rkey, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
    assert!(matches!(keys.dereg_mr(NOW, mr.id), Err(Error::NoSuchObject { .. })));
    assert!(matches!(keys.dealloc_mw(NOW, bind.mw), Err(Error::NoSuchObject { .. })));
}

#[test]
fn unbind_windows_of_affects_only_that_qp() {
    let (mut keys, _, mr, bind) = table_with_window();
    keys.unbind_windows_of(Qpn::new(0x12));
    assert!(keys.check_remote(QP, PD, bind.rkey, 0x1010, 1, Access::REMOTE_READ).is_ok());
    keys.unbind_windows_of(QP);
    assert_eq!(keys.check_remote(QP, PD, bind.rkey, 0x1010, 1, Access::REMOTE_READ), Err(KeyError::Unknown));
    assert_eq!(keys.dereg_mr(NOW, mr.id), Ok(RegionId(5)));
}

#[test]
fn pd_is_in_use_while_it_has_objects() {
    let (mut keys, _, mr, bind) = table_with_window();
    assert!(keys.pd_in_use(PD) && !keys.pd_in_use(PdId(2)));
    keys.dealloc_mw(NOW, bind.mw).unwrap();
    assert!(keys.pd_in_use(PD));
    keys.dereg_mr(NOW, mr.id).unwrap();
    assert!(!keys.pd_in_use(PD));
}

#[test]
fn limits_count_live_objects() {
    let (mut keys, mut rng) = keys(2, 1);
    let ids: Vec<MrId> =
        (0..2).map(|n| keys.reg_mr(NOW, &mut rng, PD, RegionId(n), 0, 8, ALL).unwrap().id).collect();
    let full = keys.reg_mr(NOW, &mut rng, PD, RegionId(9), 0, 8, ALL).unwrap_err();
    assert_eq!(full.to_string(), "memory regions: 3 exceeds this device's limit; use at most 2");
    for _ in 0..2 {
        let window = keys.alloc_mw(NOW, PD, WindowType::Type2).unwrap();
        assert!(matches!(keys.alloc_mw(NOW, PD, WindowType::Type2), Err(Error::Limit { limit: 1, .. })));
        keys.dealloc_mw(NOW, window.id).unwrap();
    }
    keys.dereg_mr(NOW, ids[0]).unwrap();
    assert!(keys.reg_mr(NOW, &mut rng, PD, RegionId(9), 0, 8, ALL).is_ok());
}

#[test]
fn key_is_quarantined_before_reuse() {
    // With this limit, a slot has only 16 generations.
    let (mut keys, mut rng) = keys(1 << 20, 0);
    let mut last_registered: std::collections::HashMap<u32, Time> = Default::default();
    let step = Duration::from_millis(10);
    let mut now = Time::ZERO;
    let mut repeats = 0;
    for _ in 0..2000 {
        let mr = keys.reg_mr(now, &mut rng, PD, RegionId(1), 0, 8, ALL).unwrap();
        if let Some(revoked) = last_registered.insert(mr.rkey.index_part(), now) {
            assert!(now - revoked >= QUARANTINE, "reused after {:?}", now - revoked);
            repeats += 1;
        }
        keys.dereg_mr(now, mr.id).unwrap();
        now += step;
    }
    // A slot serves 16 registrations and is then quarantined for 200 steps, so that about 14 slots
    // suffice.
    assert!(repeats > 1500, "{repeats}");
    assert!(keys.slots.len() <= 20, "{}", keys.slots.len());
}

#[test]
fn fully_quarantined_table_refuses_until_quarantine_ends() {
    let (mut keys, mut rng) = keys(4, 4);
    keys.slots = vec![Slot { generation: (1 << 20) - 1, object: Object::None }; 16];
    keys.quarantined = (1..16).map(|index| (NOW + QUARANTINE, index)).collect();
    keys.free = [0].into();
    let mr = keys.reg_mr(NOW, &mut rng, PD, RegionId(1), 0, 8, ALL).unwrap();
    keys.dereg_mr(NOW, mr.id).unwrap();
    let full = keys.reg_mr(NOW, &mut rng, PD, RegionId(1), 0, 8, ALL);
    assert!(matches!(full, Err(Error::Limit { requested: 17, limit: 16, .. })), "{full:?}");
    assert!(keys.reg_mr(NOW + QUARANTINE, &mut rng, PD, RegionId(1), 0, 8, ALL).is_ok());
}

#[test]
fn keys_depend_on_seed() {
    let key = |seed: u8| {
        let mut rng = ChaCha8Rng::from_seed([seed; 32]);
        let mut keys = KeyTable::new(&limits(4, 4), QUARANTINE, &mut rng);
        keys.reg_mr(NOW, &mut rng, PD, RegionId(1), 0, 8, ALL).unwrap().rkey
    };
    assert_eq!(key(1), key(1));
    assert_ne!(key(1).index_part(), key(2).index_part());
}

#[test]
fn cipher_is_a_permutation() {
    let cipher = Cipher::new(&mut ChaCha8Rng::from_seed([3; 32]));
    for x in 0..1 << HANDLE_BITS {
        let y = cipher.encrypt(x);
        assert!(y < 1 << HANDLE_BITS);
        assert_eq!(cipher.decrypt(y), x);
    }
}

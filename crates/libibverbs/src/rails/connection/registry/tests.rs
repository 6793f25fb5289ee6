//! The backups of two devices in one process. Nothing drives them but the tests.

use mitra_control::Settings;
use mitra_softnic::SoftNic;

use super::*;
use crate::rails::multi_rail_domain::MultiRailDomain;

/// A device with shared backups, and a protection domain of it.
pub(in crate::rails::connection) struct End {
    pub(in crate::rails::connection) device: MultiRailDomain,
    pub(in crate::rails::connection) pd: Arc<MultiRailPd>,
}

impl End {
    pub(in crate::rails::connection) fn new() -> End {
        let open = |_| SoftNic::open(mitra_softnic::Config::loopback()).expect("loopback NICs can be opened");
        let nics: Vec<_> = (0..2).map(open).collect();
        let settings = Settings { shared_backups: true, ..Settings::default() };
        let device = MultiRailDomain::new(&nics, &settings).expect("two NICs form a domain");
        let pd = device.alloc_pd().expect("the NICs have room");
        End { device, pd }
    }

    fn registry(&self) -> &Registry {
        &self.device.backups
    }

    fn open(&self, peer: u64) -> Arc<Backup> {
        let pair = PairId { own: self.pd.token(), peer, is_second: false };
        self.registry().open(&self.pd, pair).expect("the NICs have room")
    }

    /// Returns this end's backup for an offered one. `None` if it has closed.
    fn accept(&self, peer: &Backup) -> Option<Arc<Backup>> {
        self.registry().accept(&self.pd, &offer(peer)).expect("the ends match")
    }

    fn backups(&self) -> usize {
        lock(&self.registry().backups).len()
    }
}

fn offer(backup: &Backup) -> Offer {
    backup.offer().expect("the NICs are alive")
}

/// Returns whether `backup` is connected to this end of the peer.
fn connect(backup: &Backup, peer: &Backup) -> bool {
    let Offer { id, info, .. } = offer(peer);
    backup.connect(id, &info).expect("the ends match")
}

/// Closes a backup that is connected. Another one stays open.
fn close(backup: &Backup) {
    backup.shared.shutdown();
    assert!(!backup.is_open());
}

/// Creates a backup between two devices, which the first offers.
pub(in crate::rails::connection) fn connected(a: &End, b: &End) -> [Arc<Backup>; 2] {
    let ours = a.open(b.pd.token());
    let theirs = b.accept(&ours).expect("it is open");
    assert!(connect(&ours, &theirs));
    [ours, theirs]
}

#[test]
fn ends_that_offer_at_once_connect_the_same_two() {
    let (a, b) = (End::new(), End::new());
    let (ours, theirs) = (a.open(b.pd.token()), b.open(a.pd.token()));
    for _ in 0..2 {
        assert!(b.accept(&ours).is_some_and(|backup| Arc::ptr_eq(&backup, &theirs)));
        assert!(a.accept(&theirs).is_some_and(|backup| Arc::ptr_eq(&backup, &ours)));
        assert!(connect(&ours, &theirs) && connect(&theirs, &ours));
    }
    assert_eq!((a.backups(), b.backups()), (1, 1));
}

#[test]
fn backup_is_used_until_it_closes_or_is_gone_at_the_peer() {
    let (a, b) = (End::new(), End::new());
    let [first, _theirs] = connected(&a, &b);
    let again = || a.open(b.pd.token());
    assert!(Arc::ptr_eq(&first, &again()));
    first.set_gone();
    let second = again();
    assert!(!Arc::ptr_eq(&first, &second));
    let theirs = b.accept(&second).expect("it is open");
    assert!(connect(&second, &theirs));
    close(&second);
    let third = again();
    assert!(![&first, &second].into_iter().any(|other| Arc::ptr_eq(other, &third)));
}

/// The peer's end has closed, which this end has not noticed. The peer offers another one, and that is used from then on.
#[test]
fn backup_that_the_peer_has_offered_last_is_used() {
    let (a, b) = (End::new(), End::new());
    let [ours, theirs] = connected(&a, &b);
    close(&theirs);
    assert!(b.accept(&ours).is_none(), "its end is gone");
    let offered = b.open(a.pd.token());
    let accepted = a.accept(&offered).expect("it is open");
    assert!(ours.is_open() && !Arc::ptr_eq(&accepted, &ours));
    assert!(Arc::ptr_eq(&a.open(b.pd.token()), &accepted));
}

#[test]
fn connected_backup_is_connected_to_no_other() {
    let (a, b) = (End::new(), End::new());
    let [ours, theirs] = connected(&a, &b);
    ours.set_gone();
    let other = a.open(b.pd.token());
    let accepted = b.accept(&other).expect("it is open");
    assert!(!Arc::ptr_eq(&accepted, &theirs) && connect(&other, &accepted));
    assert!(!connect(&ours, &accepted) && !connect(&other, &theirs));
}

#[test]
fn backups_without_queue_pairs_are_bounded() {
    let a = End::new();
    let used: Vec<_> = (0..4).map(|peer| a.open(peer)).collect();
    for peer in 4..12 {
        drop(a.open(peer));
        assert_eq!(a.backups(), peer as usize + 1, "few are kept for later queue pairs");
    }
    (12..30).for_each(|peer| drop(a.open(peer)));
    assert_eq!(a.backups(), used.len() + MAX_UNUSED + 1);
    assert!((0..4).all(|peer| Arc::ptr_eq(&used[peer as usize], &a.open(peer))));
}

#[test]
fn closed_backups_without_queue_pairs_make_room_first() {
    let (a, b) = (End::new(), End::new());
    for _ in 0..4 {
        let [ours, _theirs] = connected(&a, &b);
        close(&ours);
    }
    let open = a.open(b.pd.token());
    assert!(open.is_open());
    assert_eq!(a.backups(), 1);
}

#[test]
fn backups_end_with_their_protection_domain() {
    let End { device, pd } = End::new();
    let pair = PairId { own: pd.token(), peer: 1, is_second: false };
    let backup = device.backups.open(&pd, pair).expect("the NICs have room");
    device.backups.drive();
    assert_eq!(lock(&device.backups.backups).len(), 1);
    drop((backup, pd));
    device.backups.drive();
    assert!(lock(&device.backups.backups).is_empty());
}

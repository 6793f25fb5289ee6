//! Each kind of NIC has a name, and the NICs have the capabilities of their kind.

use mitra_nics::NicKind;
use mitra_verbs::{Error, NicAddress, NicRequest, QpBuildError, QpBuilder, Qpn};

#[test]
fn kinds_have_names() {
    for (name, kind) in [("soft", NicKind::Soft), ("minimal", NicKind::Minimal)] {
        assert_eq!(name.parse(), Ok(kind));
        assert_eq!(kind.to_string(), name);
    }
    assert_eq!("".parse::<NicKind>(), Err("expected soft or minimal".to_owned()));
}

#[test]
fn minimal_nic_has_what_it_says() {
    let soft = NicKind::Soft.open_free().expect("an address is free");
    let soft = soft.attr();
    assert!(soft.capabilities.psn_query && soft.capabilities.saved_results && soft.limits.inline > 0);
    assert!(soft.capabilities.on_demand);

    let nic = NicKind::Minimal.open_free().expect("an address is free");
    let attr = nic.attr();
    assert_eq!(attr.name, format!("minimal-{}", nic.address()));
    assert!(!attr.capabilities.psn_query && !attr.capabilities.saved_results);
    assert!(!attr.capabilities.on_demand && nic.device_name().is_none());
    assert_eq!(attr.limits.inline, 0);
    assert!(matches!(nic.saved_results(Qpn::new(1)), Err(Error::Unsupported(_))));
    let (pd, cq) = (nic.alloc_pd().expect("it has room"), nic.create_cq(8, None).expect("it has room"));
    let refused = QpBuilder::rc(pd, cq).inline(1).build(&*nic);
    assert!(matches!(refused, Err(QpBuildError::Limit { option: "inline", limit: 0, .. })), "{refused:?}");
    QpBuilder::rc(pd, cq).inline(0).build(&*nic).expect("it has room");
}

/// Another NIC has taken the address that was proposed.
#[test]
fn preferred_address_is_given_up_if_it_is_in_use() {
    for kind in [NicKind::Soft, NicKind::Minimal] {
        let source = kind.source();
        let address = source.propose_address().expect("there are random numbers");
        let open = |address| source.open(&NicRequest::new(source, address));
        let first = open(NicAddress::Preferred(address)).expect("an address is free");
        assert!(first.nic.address().is_loopback() && first.warning.is_none());
        let taken = first.nic.address();
        let second = open(NicAddress::Preferred(taken)).expect("an address is free");
        assert_ne!(second.nic.address(), taken);
        let refused = open(NicAddress::At(taken)).expect_err("it is in use");
        assert!(refused.to_string().contains("is in use by"), "{refused}");
    }
}

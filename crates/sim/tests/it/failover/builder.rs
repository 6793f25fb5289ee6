//! The checks of the vQP builder: each refusal has its own error, which names the option and the
//! rule.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BuildError, CompletionLogConfig, Config, DetectorConfig, Domain, VirtualQp};
use mitra_sim::Testbed;
use mitra_verbs::{Capabilities, Provider, QpBuildError, QpBuilder};

use crate::hooked_nic::HookedNic;

fn domain(capabilities: Capabilities) -> (Testbed, Arc<Domain>) {
    let config = mitra_sim::Config { capabilities, ..mitra_sim::Config::fault_free() };
    let testbed = Testbed::with_config(1, config, 2);
    let nics: Vec<_> = testbed.nics[0].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
    (testbed, Domain::new(nics).expect("the NICs have the resources of a domain"))
}

fn with_log(log: CompletionLogConfig) -> Config {
    Config { completion_log: Some(log), ..Config::default() }
}

#[test]
fn each_refusal_names_its_option() {
    let capabilities = mitra_sim::Config::fault_free().capabilities;
    let (_testbed, domain) = domain(capabilities);
    let limit = u64::from(domain.limits().wrs);
    let refused = |config| {
        let builder = VirtualQp::builder(&domain).config(config);
        let error = builder.build().expect_err("the configuration is invalid");
        (error.clone(), error.to_string())
    };

    let (error, text) = refused(Config { send_wrs: u32::MAX, ..Config::default() });
    assert_eq!(error, BuildError::SendQueue { requested: u32::MAX.into(), limit });
    assert!(text.contains("send_wrs"), "{text}");

    let (error, text) = refused(Config { recv_wrs: u32::MAX, ..Config::default() });
    assert_eq!(error, BuildError::RecvQueue { requested: u32::MAX.into(), limit });
    assert!(text.contains("recv_wrs"), "{text}");

    let (error, text) = refused(Config { rd_atomic: 0, ..Config::default() });
    assert_eq!(error, BuildError::RdAtomic { requested: 0, limit: 16 });
    assert!(text.contains("rd_atomic") && text.contains("1 to 16"), "{text}");

    let (error, text) = refused(Config { rnr_retry: 8, ..Config::default() });
    assert_eq!(error, BuildError::Retries { option: "rnr_retry", requested: 8 });
    assert!(text.contains("rnr_retry"), "{text}");

    let detector = DetectorConfig { heartbeat_interval: Duration::ZERO, ..Default::default() };
    let (error, text) = refused(Config { detector, ..Config::default() });
    assert_eq!(error, BuildError::HeartbeatInterval);
    assert!(text.contains("max_missed_heartbeats"), "{text}");

    let peer_timeout = Duration::from_millis(1);
    let (error, text) = refused(Config { peer_timeout, ..Config::default() });
    assert!(matches!(error, BuildError::PeerTimeout { .. }), "{error}");
    assert!(text.contains("control_retry_interval"), "{text}");
}

/// The vQP may move to any of its rails, so the smallest NIC of an end limits it.
#[test]
fn limit_of_a_smaller_standby_is_named() {
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let [first, second] = &testbed.nics[0][..] else { panic!("two rails") };
    let standby = HookedNic::with_limits(second, |limits| {
        (limits.wrs, limits.sges, limits.inline, limits.rd_atomic) = (256, 2, 32, 4);
    });
    let domain = Domain::new(vec![Arc::clone(first) as Arc<dyn Provider>, standby]);
    let domain = domain.expect("the NICs have the resources of a domain");
    let refused = |config| VirtualQp::builder(&domain).config(config).build().err();
    let wrs = u64::from(domain.limits().wrs);
    assert!(wrs < 256);
    let small = Config { send_wrs: 64, recv_wrs: 64, rd_atomic: 4, send_sges: 2, ..Config::default() };
    let small = Config { recv_sges: 2, inline: 32, ..small };
    assert_eq!(refused(small), None);
    let recv_wrs = Config { recv_wrs: 256, ..small };
    assert_eq!(refused(recv_wrs), Some(BuildError::RecvQueue { requested: 256, limit: wrs }));
    let rd_atomic = Config { rd_atomic: 5, ..small };
    assert_eq!(refused(rd_atomic), Some(BuildError::RdAtomic { requested: 5, limit: 4 }));
    for (option, config) in
        [("send_sges", Config { send_sges: 3, ..small }), ("inline", Config { inline: 33, ..small })]
    {
        let error = refused(config).expect("the standby has a smaller limit").to_string();
        assert!(error.contains(option), "{error}");
    }
}

#[test]
fn completion_log_counts_in_send_queue() {
    let (_testbed, domain) = domain(mitra_sim::Config::fault_free().capabilities);
    let limit = domain.limits().wrs;
    let config = Config { send_wrs: limit / 2 + 1, ..with_log(CompletionLogConfig::default()) };
    let builder = VirtualQp::builder(&domain).config(config);
    let error = builder.build().expect_err("the log needs too many entries");
    assert_eq!(
        error,
        BuildError::SendQueue { requested: (u64::from(limit) / 2 + 1) * 2, limit: limit.into() }
    );
}

#[test]
fn completion_log_is_refused_by_name_of_unordered_nic() {
    let ordered = mitra_sim::Config::fault_free().capabilities;
    let (testbed, domain) = domain(Capabilities { write_order: false, ..ordered });
    let builder = VirtualQp::builder(&domain).config(with_log(CompletionLogConfig::default()));
    let error = builder.build().expect_err("the log needs order");
    let nic = testbed.nics[0][0].attr().name.clone();
    assert!(error.to_string().contains(&nic));
    assert_eq!(error, BuildError::UnorderedWrites { nic });
}

/// The configuration of this end determines how much memory the log takes, so the log has a maximum
/// size.
#[test]
fn completion_log_has_bounded_size() {
    let (_testbed, domain) = domain(mitra_sim::Config::fault_free().capabilities);
    let build = |entries| {
        let log = CompletionLogConfig { entries: Some(entries), ..Default::default() };
        VirtualQp::builder(&domain).config(with_log(log)).build().map(drop)
    };
    let error = build(u32::MAX).expect_err("the log would have 32 GiB");
    assert_eq!(error, BuildError::LogEntries { requested: u32::MAX, limit: 1 << 20 });
    assert!(error.to_string().contains("completion_log.entries"), "{error}");
    assert_eq!(build(1 << 20), Ok(()));
}

#[test]
fn longest_heartbeat_interval_never_times_out() {
    let detector = DetectorConfig { heartbeat_interval: Duration::MAX, ..Default::default() };
    let config = Config { detector, ..Config::default() };
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let mut ends = [0, 1].map(|host: usize| {
        let nics = testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::new(nics).expect("the NICs have room");
        VirtualQp::builder(&domain).config(config).build().expect("the configuration is valid")
    });
    let info = ends[1].local_info();
    ends[0].connect(&info).expect("the ends match");
    ends[0].progress();
    assert_eq!(ends[0].close_reason(), None);
}

#[test]
fn queue_pair_has_one_receive_queue() {
    let (_testbed, domain) = domain(mitra_sim::Config::fault_free().capabilities);
    let nic = &domain.nics()[0];
    let cq = nic.provider.create_cq(8, None).expect("the NIC has room");
    let srq = nic.provider.create_srq(nic.pd, 8).expect("the NIC has room");
    let builder = QpBuilder::rc(nic.pd, cq).srq(srq);
    assert_eq!(builder.recv_wrs(8).build(&*nic.provider), Err(QpBuildError::TwoReceiveQueues));
    assert!(builder.build(&*nic.provider).is_ok());
}

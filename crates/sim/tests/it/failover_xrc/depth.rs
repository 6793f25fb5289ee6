use mitra_failover::{BuildError, CompletionLogConfig, Config, Service, VirtualQp};
use mitra_verbs::Error;

use super::scene::{Kind, SENDS, Scene, config};

/// An XRC message may need a header: a SEND before it, which names its queue. Both together take
/// one entry of the configured depth. A list that does not fit is not posted.
#[test]
fn send_queue_has_the_configured_depth() {
    for kind in [Kind::Send, Kind::SendWithImm] {
        let mut scene = Scene::fault_free(2, config());
        scene.poll(10);
        let request = |scene: &Scene, n| scene.request(n, kind, 0);
        let too_many: Vec<_> = (0..=SENDS as usize).map(|n| request(&scene, n)).collect();
        let refused = scene.sender.post_send_all(too_many).expect_err("the list has one request too many");
        assert_eq!(refused.index, SENDS as usize);
        assert!(matches!(refused.error, Error::QueueFull { depth: SENDS, .. }), "{refused:?}");
        assert_eq!(scene.sender.outstanding(), 0);
        (0..SENDS).for_each(|n| scene.post(kind, n as usize % 3, n % 2 == 0));
        assert_eq!(scene.sender.outstanding(), SENDS as usize);
        let full = scene.sender.post_send(request(&scene, 99));
        assert!(matches!(full, Err(Error::QueueFull { depth: SENDS, .. })), "{full:?}");
        (0..3).for_each(|queue| scene.post_receives(queue, 16));
        scene.poll(100);
        scene.post(kind, 0, true); // a completion ends the unsignalled requests before it
        scene.poll(20);
        assert_eq!((scene.after_last, scene.sender.outstanding()), (SENDS as usize + 1, 0));
        scene.all_succeed();
    }
}

/// A message and its header take two entries of a rail's send queue, which is no deeper than the
/// vQP's queue. If the rail's queue is full, they wait.
#[test]
fn send_queue_may_be_as_deep_as_that_of_a_nic() {
    let limit = Scene::fault_free(2, config()).sender.domain().limits().wrs;
    // The kind, whether there is a log, the number of requests for each signalled one, and whether
    // the rail fails.
    for (kind, log, one_in, fails) in [
        (Kind::SendWithImm, false, 1, true),
        (Kind::WriteWithImm, true, 7, true),
        (Kind::SendWithImm, false, usize::MAX, false),
    ] {
        let depth = if log { limit / 2 } else { limit };
        let completion_log = log.then(CompletionLogConfig::default);
        let config = Config { send_wrs: depth, completion_log, ..config() };
        let mut scene = Scene::fault_free(2, config);
        scene.poll(10);
        let posts: Vec<_> = (0..=depth as usize).map(|n| scene.request(n, kind, n / 5 % 3)).collect();
        let refused = scene.sender.post_send_all(posts).expect_err("the list has one request too many");
        assert_eq!(refused.index, depth as usize);
        for n in 0..depth as usize {
            scene.post(kind, n / 5 % 3, n % one_in == 0);
        }
        if fails {
            scene.testbed.world.set_link(scene.testbed.nics[0][0].id(), false);
        }
        for _ in 0..20_000 {
            if scene.after_last == depth as usize {
                break;
            }
            (0..3).for_each(|queue| scene.post_receives(queue, 16));
            scene.poll(1);
        }
        scene.poll(20);
        scene.post(Kind::Send, 0, true); // its completion ends the unsignalled requests before it
        scene.poll(40);
        assert_eq!((scene.after_last, scene.sender.outstanding()), (depth as usize + 1, 0));
        assert_eq!(scene.sender.active_rail(), usize::from(fails));
        scene.all_succeed();
        let deeper = Config { send_wrs: depth + 1, service: Service::XrcSend, ..config };
        let refused = VirtualQp::builder(scene.sender.domain()).config(deeper).build().map(drop);
        assert!(matches!(refused, Err(BuildError::SendQueue { .. })), "{refused:?}");
    }
}

//! Receives that are longer than the slots.

use std::sync::Arc;

use mitra_failover::{CloseReason, Completion, Config, Policy, SharedReceiveQueue};
use mitra_verbs::{Access, Buffer, Data, RecvWr, SendFlags, SendOp, SendWr, Srqn, WcOpcode};

use super::scene::{KINDS, Kind, Scene, config};

/// The lengths of messages in bytes: longer than any receive that the queues had before.
const LENGTHS: [usize; 4] = [40_000, 70_000, 400_000, 1 << 20];

/// A queue with long receives that is added to the domain later.
struct LongQueue {
    number: Srqn,
    queue: Arc<SharedReceiveQueue>,
    memory: Arc<Buffer>,
    data: Arc<Buffer>,
    sge: mitra_verbs::Sge,
}

impl LongQueue {
    fn new(scene: &Scene, length: usize) -> LongQueue {
        let (a, b) = (scene.sender.domain(), scene.receiver.domain());
        let number = Srqn::new(length as u32 & 0xff_ffff);
        let queue = SharedReceiveQueue::new(b, 8);
        scene.xrc.insert(number, &queue).expect("the number is unused");
        let (memory, data) = (Arc::new(Buffer::new(length)), Arc::new(Buffer::new(length)));
        let mr = b.register(&memory, Access::LOCAL_WRITE).expect("a free region");
        queue.post_recv(&[RecvWr::new(7, mr.sge(0, length as u32))]).expect("the queue has room");
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + i / 256) as u8).collect();
        data.write_at(0, &bytes);
        let sge = a.register(&data, Access::LOCAL_WRITE).expect("a free region").sge(0, length as u32);
        LongQueue { number, queue, memory, data, sge }
    }

    fn request(&self, imm: Option<u32>) -> SendWr {
        let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
        SendWr::new(1 << 40, op, Data::sge(self.sge)).to_srq(self.number).with_flags(SendFlags::SIGNALED)
    }

    fn check(&self, completion: &Completion) {
        assert!(completion.is_success(), "{completion:?}");
        assert_eq!((completion.opcode, completion.srq), (WcOpcode::Recv, Some(self.number)));
        let (mut got, mut sent) = (vec![0; self.sge.len as usize], vec![0; self.sge.len as usize]);
        self.memory.read_at(0, &mut got);
        self.data.read_at(0, &mut sent);
        assert!(completion.byte_len as usize == got.len() && got == sent);
        assert!(self.queue.is_empty());
    }
}

fn poll(scene: &mut Scene, times: usize) -> Vec<Completion> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for _ in 0..times {
        scene.sender.poll(&mut sent);
        scene.receiver.poll(&mut received);
        scene.testbed.world.run_for(core::time::Duration::from_micros(25));
    }
    assert!(sent.iter().all(Completion::is_success), "{sent:?}");
    received
}

/// A queue with longer receives is added when the slots are already made. The connection survives,
/// and messages that wait in the former slots are kept.
#[test]
fn longer_receives_of_a_later_queue_get_their_messages() {
    for rails in 1..=2 {
        for waits in [false, true] {
            let mut scene = Scene::fault_free(rails, config());
            (0..3).for_each(|queue| scene.post_receives(queue, 2));
            scene.poll(10);
            (0..6).for_each(|n| scene.post(Kind::Send, n % 3, true));
            scene.poll(40);
            assert_eq!(scene.after_last, 6);
            if waits {
                (0..3).for_each(|n| scene.post(Kind::SendWithImm, n % 3, true));
                scene.poll(20);
                assert_eq!(scene.receiver.waiting_messages(), 3);
            }
            for length in LENGTHS {
                let long = LongQueue::new(&scene, length);
                // A program tells its peer of the receive only after the posting call, which polls,
                // has returned.
                let mut received = poll(&mut scene, 0);
                scene.receiver.poll(&mut received);
                scene
                    .sender
                    .post_send(long.request((length % 3 == 0).then_some(5)))
                    .expect("the queue has room");
                received.extend(poll(&mut scene, 2000));
                if waits {
                    assert_eq!((received.len(), scene.receiver.waiting_messages()), (0, 4), "{length}");
                    break;
                }
                assert_eq!(scene.receiver.close_reason(), None, "{length}");
                assert_eq!(received.len(), 1, "{length}");
                long.check(&received[0]);
                scene.xrc.remove(long.number);
            }
            if waits {
                // The order is three messages from the former slots, and then the long message.
                (0..3).for_each(|queue| scene.post_receives(queue, 1));
                let received = poll(&mut scene, 40);
                assert_eq!(received.len(), 4);
                received[..3].iter().for_each(|completion| scene.on_receive(completion));
                assert_eq!(scene.after_last, 9);
            }
            // Each slot has one message.
            (0..30).for_each(|n| scene.post(KINDS[n % 3], n % 3, true));
            scene.poll(200);
            while scene.receiver.waiting_messages() > 0 {
                (0..3).for_each(|queue| scene.post_receives(queue, 1));
                scene.poll(2);
            }
            scene.poll(100);
            assert!(scene.posted.iter().all(|posted| posted.received), "{:?}", scene.posted);
        }
    }
}

/// The receive is posted and the message sent in any phase of a move.
#[test]
fn longer_receives_may_be_posted_during_a_move() {
    for polls in 0..80 {
        let mut scene = Scene::fault_free(2, config());
        (0..3).for_each(|queue| scene.post_receives(queue, 2));
        scene.poll(10);
        scene.post(Kind::Send, 0, true);
        scene.testbed.world.set_link(scene.testbed.nics[polls % 2][0].id(), false);
        scene.poll(polls);
        let long = LongQueue::new(&scene, LENGTHS[1]);
        let mut received = Vec::new();
        scene.receiver.poll(&mut received);
        scene.sender.post_send(long.request(Some(1))).expect("the queue has room");
        received.extend(poll(&mut scene, 1500));
        scene.testbed.world.set_link(scene.testbed.nics[polls % 2][0].id(), true);
        received.extend(poll(&mut scene, 1500));
        assert_eq!(scene.receiver.close_reason(), None, "{polls}");
        long.check(received.last().expect("the message arrives"));
    }
}

/// The sender is at fault, because no receive is or was as long as the message.
#[test]
fn message_longer_than_all_receives_ends_the_connection() {
    for policy in [Policy::Exact, Policy::None] {
        let mut scene = Scene::fault_free(2, Config { policy, ..config() });
        (0..3).for_each(|queue| scene.post_receives(queue, 2));
        let long = LongQueue::new(&scene, 20_000);
        scene.poll(10);
        let (a, data) = (scene.sender.domain(), Arc::new(Buffer::new(20_001)));
        let sge = a.register(&data, Access::LOCAL_WRITE).expect("a free region").sge(0, 20_001);
        scene
            .sender
            .post_send(SendWr::new(0, SendOp::Send, Data::sge(sge)).to_srq(long.number))
            .expect("room");
        let mut out = Vec::new();
        for _ in 0..200 {
            scene.sender.poll(&mut out);
            scene.receiver.poll(&mut out);
            scene.testbed.world.run_for(core::time::Duration::from_micros(25));
        }
        assert_eq!(scene.receiver.close_reason(), Some(CloseReason::RequestError));
        assert!(scene.sender.close_reason().is_some());
        scene.posted.clear();
    }
}

//! The recoverable counter: adds count once, and adds that would wrap are refused.

use crate::memory::{Fate, Memory, word};
use mitra_objects::Outcome::{Executed, NotExecuted, Unknown, ValueLost};
use mitra_objects::recoverable_counter::{CounterClient, CounterError, CounterLayout};

fn client(layout: CounterLayout, requester: u8) -> CounterClient {
    CounterClient::new(word(0), layout, requester).unwrap()
}

#[test]
fn adds_of_all_requesters_sum_up_whatever_their_fields_contain() {
    for (requesters, bits) in [(1, 1), (48, 1), (24, 2), (16, 3), (3, 3)] {
        let layout = CounterLayout::new(requesters, bits).unwrap();
        let mut memory = Memory::default();
        let mut sum = 0;
        for requester in 0..requesters {
            let mut client = client(layout, requester);
            for delta in [3, -7, 0, 5, -1, 2, 9, -4, 1] {
                let added = memory.run(client.add_all(&[delta]).unwrap()).unwrap();
                assert_eq!(added.previous[..], [Some(sum)]);
                sum += delta;
                client = added.client;
                assert_eq!(layout.value(memory.words[0]), sum);
            }
            assert_eq!(layout.field(memory.words[0], requester), 9 % (1 << bits));
            assert_eq!(client.contributed(), 8);
        }
        assert!((0..requesters).all(|r| layout.field(memory.words[0], r) == 9 % (1 << bits)));
    }
}

#[test]
fn field_decides_every_number_of_executed_adds() {
    let layout = CounterLayout::new(2, 3).unwrap();
    let deltas = [1, 10, 100, 1000, -10_000, 100_000, 1_000_000];
    for begun_before in 0..8 {
        for executed in 0..=deltas.len() {
            let mut memory = Memory::default();
            let mut client = client(layout, 1);
            for _ in 0..begun_before {
                client = memory.run(client.add_all(&[0]).unwrap()).unwrap().client;
            }
            let lost = Fate::Failed { executed, outcomes: vec![Some(Unknown); deltas.len()] };
            let no_value = Fate::Failed { executed: 1, outcomes: vec![Some(Unknown)] };
            let added = memory.run_with(client.add_all(&deltas).unwrap(), [lost, no_value]).unwrap();
            assert_eq!(layout.value(memory.words[0]), deltas.iter().sum::<i64>(), "{executed} executed");
            assert!(added.previous[..executed].iter().all(Option::is_none));
            assert!(added.previous[executed..].iter().all(Option::is_some));
        }
    }
}

#[test]
fn known_outcomes_need_no_read() {
    let layout = CounterLayout::new(1, 2).unwrap();
    let mut memory = Memory::default();
    let outcomes = vec![None, Some(ValueLost), Some(NotExecuted)];
    let fate = Fate::Failed { executed: 2, outcomes };
    let added = memory.run_with(client(layout, 0).add_all(&[1, 2, 4]).unwrap(), [fate]).unwrap();
    assert_eq!(added.previous[..], [Some(0), None, Some(3)]);
    assert_eq!((layout.value(memory.words[0]), memory.cost.reads, memory.cost.faa), (7, 0, 3));
}

#[test]
fn field_that_contradicts_the_outcomes_is_reported() {
    let layout = CounterLayout::new(1, 2).unwrap();
    for (executed, outcomes) in [
        (3, [Unknown, Unknown, NotExecuted]),
        (0, [ValueLost, Unknown, Unknown]),
        (1, [Unknown, ValueLost, NotExecuted]),
        (1, [Unknown, Executed { value: 0 }, NotExecuted]),
    ] {
        let fate = Fate::Failed { executed, outcomes: outcomes.into_iter().map(Some).collect() };
        let result = Memory::default().run_with(client(layout, 0).add_all(&[1, 1, 1]).unwrap(), [fate]);
        assert_eq!(result, Err(CounterError::Contradiction { found: executed as u64 }));
    }
}

#[test]
fn second_client_of_a_requester_is_noticed() {
    let layout = CounterLayout::new(2, 1).unwrap();
    let mut memory = Memory::default();
    memory.run(client(layout, 0).add_all(&[1]).unwrap()).unwrap();
    let result = memory.run(client(layout, 0).add_all(&[1]).unwrap());
    assert_eq!(result, Err(CounterError::Contradiction { found: 1 }));
}

#[test]
fn too_many_adds_and_too_large_sums_are_refused() {
    let layout = CounterLayout::new(48, 1).unwrap();
    let share = layout.share();
    assert_eq!(share, 32767 / 48);
    let (_, error) = client(layout, 0).add_all(&[1, 1]).unwrap_err();
    assert_eq!(error, CounterError::Adds { max: 1 });
    assert!(client(layout, 0).add_all(&[]).is_err());
    for beyond in [share + 1, -share - 1, i64::MIN, i64::MAX] {
        let (client, error) = client(layout, 0).add_all(&[beyond]).unwrap_err();
        assert_eq!((error, client.contributed()), (CounterError::ShareUsedUp { share }, 0));
    }
    let three = CounterLayout::new(1, 2).unwrap();
    let max = three.share();
    assert!(client(three, 0).add_all(&[max, -1, 1]).is_ok());
    assert!(client(three, 0).add_all(&[max, 1, -1]).is_err(), "a prefix of the adds may be executed alone");
}

#[test]
fn value_keeps_its_sign_when_all_requesters_use_up_their_shares() {
    for (requesters, bits) in [(48, 1), (16, 3), (1, 1), (5, 2)] {
        let layout = CounterLayout::new(requesters, bits).unwrap();
        for sign in [1, -1] {
            let mut memory = Memory::default();
            let mut sum = 0;
            for requester in 0..requesters {
                let all = sign * layout.share();
                let added = memory.run(client(layout, requester).add_all(&[all]).unwrap()).unwrap();
                assert!(added.client.add_all(&[sign]).is_err());
                sum += all;
                assert_eq!(layout.value(memory.words[0]), sum);
            }
        }
    }
}

#[test]
fn requester_resumes_with_its_field_and_its_sum() {
    let layout = CounterLayout::new(2, 2).unwrap();
    let mut memory = Memory::default();
    memory.run(client(layout, 1).add_all(&[5, 6, 7]).unwrap()).unwrap();
    let resumed = client(layout, 1).resume(memory.words[0], 18).unwrap();
    assert_eq!(memory.run(resumed.read()), memory.words[0]);
    let added = memory.run(resumed.add_all(&[1]).unwrap()).unwrap();
    assert_eq!((added.client.contributed(), layout.value(memory.words[0])), (19, 19));
    let beyond = layout.share() + 1;
    assert!(client(layout, 1).resume(memory.words[0], beyond).is_err());
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    for (requesters, field_bits) in [(0, 1), (49, 1), (25, 2), (17, 3), (1, 0), (1, 4), (255, 3)] {
        let refused = CounterLayout::new(requesters, field_bits);
        assert_eq!(refused, Err(CounterError::Layout { requesters, field_bits }));
    }
    let layout = CounterLayout::new(3, 1).unwrap();
    assert_eq!(CounterClient::new(word(0), layout, 3), Err(CounterError::NoSuchRequester(3)));
}

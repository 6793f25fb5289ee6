//! The `tracing` spans around a failover. The test needs a process of its own, which nextest gives
//! it. `tracing` caches for all threads whether a span is enabled, and the threads of other tests
//! have no subscriber.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::vqp_pair::{VqpPair, config};

/// A subscriber that records the beginnings and ends of spans, their fields, and the events.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<NotesState>>);

#[derive(Default)]
struct NotesState {
    spans: BTreeMap<u64, (&'static str, usize)>,
    next_id: u64,
    lines: Vec<String>,
    fields: BTreeMap<String, String>,
}

impl Notes {
    fn with<T>(&self, change: impl FnOnce(&mut NotesState) -> T) -> T {
        change(&mut self.0.lock().expect("no test panics here"))
    }
}

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "mitra_failover::recovery"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.with(|state| {
            state.next_id += 1;
            let name = span.metadata().name();
            let parent = span.parent().map(|id| state.spans[&id.into_u64()].0).unwrap_or("-");
            state.lines.push(format!("+{name} in {parent}"));
            span.record(&mut Fields(&mut state.fields));
            state.spans.insert(state.next_id, (name, 1));
            Id::from_u64(state.next_id)
        })
    }

    fn record(&self, _span: &Id, values: &Record<'_>) {
        self.with(|state| values.record(&mut Fields(&mut state.fields)));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.with(|state| {
            let mut fields = BTreeMap::new();
            event.record(&mut Fields(&mut fields));
            state.lines.push(format!("event {}", fields["message"].split(": ").nth(2).unwrap_or_default()));
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn clone_span(&self, id: &Id) -> Id {
        self.with(|state| state.spans.get_mut(&id.into_u64()).expect("a known span").1 += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.with(|state| {
            let (name, count) = state.spans.get_mut(&id.into_u64()).expect("a known span");
            *count -= 1;
            let is_closed = *count == 0;
            if is_closed {
                let line = format!("-{name}");
                state.lines.push(line);
            }
            is_closed
        })
    }
}

#[test]
fn spans_surround_a_failover_and_its_phases() {
    let notes = Notes::default();
    tracing::subscriber::with_default(notes.clone(), || {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 10);
        pair.link_down(0, 0);
        pair.send_write(0, 0, 7);
        pair.poll_times(&[0, 1], 200);
        assert_eq!(pair.vqps[1].active_rail(), 1);
        let numbers = [0, 1].map(|h: usize| pair.vqps[h].qpn().value().to_string());
        notes.with(|state| {
            let begun = |name: &str| state.lines.iter().filter(|line| line.starts_with(name)).count();
            for (name, parent) in [
                ("recovery", "-"),
                ("negotiate", "recovery"),
                ("fence", "recovery"),
                ("decide", "recovery"),
                ("replay", "recovery"),
            ] {
                assert_eq!(begun(&format!("+{name} in {parent}")), 2, "{name}: {:#?}", state.lines);
                assert_eq!(begun(&format!("-{name}")), 2, "{name}: {:#?}", state.lines);
            }
            let position = |line: &str| state.lines.iter().position(|l| l == line).expect(line);
            let order = [
                "+recovery in -",
                "+negotiate in recovery",
                "-negotiate",
                "+fence in recovery",
                "-fence",
                "-decide",
                "-replay",
                "-recovery",
            ];
            assert!(order.map(position).is_sorted(), "{:#?}", state.lines);
            assert_eq!(state.fields["rail"], "0");
            assert_eq!(state.fields["to"], "1");
            assert!(state.fields["ballot"].starts_with("2."), "{:?}", state.fields);
            assert_eq!(state.fields["outcome"], "\"recovered\"");
            assert!(state.fields.contains_key("in_flight") && state.fields.contains_key("replayed"));
            assert!(numbers.contains(&state.fields["vqp"]), "{:?}", state.fields);
        });
    });
}

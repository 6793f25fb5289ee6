//! Exhaustive search of the worlds of an adversary, with stateright. The types of the worlds are
//! hidden from the checker, so that the compiler generates one checker for all types. With one
//! checker per type, this crate takes twice as long to compile.

use std::any::Any;
use std::cell::Cell;
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use mitra_mutants::Running;
use stateright::{Checker, HasDiscoveries, Model, Property};

const MAX_PROPERTIES: usize = 8;

thread_local! {
    /// The number of states after which an exploration of this thread ends.
    static MOST_STATES: Cell<Option<NonZeroUsize>> = const { Cell::new(None) };
}

/// Does the work. Meanwhile, each exploration that this thread begins ends after about this number
/// of states. The states that are the fewest steps away come first.
pub fn bounded<T>(states: NonZeroUsize, work: impl FnOnce() -> T) -> T {
    let before = MOST_STATES.replace(Some(states));
    let result = work();
    MOST_STATES.set(before);
    result
}

/// The result of an exhaustive exploration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// The number of distinct worlds.
    pub states: usize,
    /// A violated property, and the steps to a world that violates it. The search is breadth-first;
    /// with several threads the steps may not be the shortest.
    pub counterexample: Option<(&'static str, Vec<String>)>,
}

impl Exploration {
    /// Returns the combined result of this exploration and the next. The next exploration runs only
    /// if this exploration found no counterexample.
    #[must_use]
    pub fn and_then(self, next: impl FnOnce() -> Exploration) -> Exploration {
        if self.counterexample.is_some() {
            return self;
        }
        let next = next();
        Exploration { states: self.states + next.states, ..next }
    }
}

type Function<W, T> = Box<dyn Fn(&W) -> T + Send + Sync>;

/// All worlds that an adversary reaches from an initial world, and the properties that hold in each
/// of these worlds.
pub struct Exhaustive<W, S> {
    start: W,
    steps: Function<W, Vec<S>>,
    apply: fn(&mut W, S),
    properties: Vec<(&'static str, Function<W, bool>)>,
    /// Worlds outside of the boundary are not explored.
    boundary: Function<W, bool>,
}

impl<W, S> Exhaustive<W, S> {
    pub(crate) fn new(
        start: W,
        steps: impl Fn(&W) -> Vec<S> + Send + Sync + 'static,
        apply: fn(&mut W, S),
    ) -> Exhaustive<W, S> {
        let boundary = Box::new(|_: &W| true);
        Exhaustive { start, steps: Box::new(steps), apply, properties: Vec::new(), boundary }
    }

    /// Adds a property that must hold in every world.
    #[must_use]
    pub fn always(
        mut self,
        property: &'static str,
        holds: impl Fn(&W) -> bool + Send + Sync + 'static,
    ) -> Exhaustive<W, S> {
        self.properties.push((property, Box::new(holds)));
        self
    }

    /// Explores no worlds in which the condition does not hold.
    #[must_use]
    pub(crate) fn within(self, boundary: impl Fn(&W) -> bool + Send + Sync + 'static) -> Exhaustive<W, S> {
        Exhaustive { boundary: Box::new(boundary), ..self }
    }
}

impl<W, S> Exhaustive<W, S>
where
    W: Any + Clone + PartialEq + Hash + Debug + Send + Sync,
    S: Any + Clone + PartialEq + Debug + Send + Sync,
{
    /// Explores all worlds, or stops at the first counterexample.
    pub fn explore(self) -> Exploration {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let (states, violated) = search(AnyModel::new(self), threads);
        let text = |steps: Vec<AnyValue>| steps.iter().map(|step| format!("{step:?}")).collect();
        Exploration { states, counterexample: violated.map(|(property, steps)| (property, text(steps))) }
    }

    /// Explores all worlds, or stops at the first counterexample, which is the shortest. Returns
    /// the number of worlds and the steps of the counterexample.
    pub(crate) fn find_shortest(self) -> (usize, Option<Vec<S>>) {
        let (states, violated) = search(AnyModel::new(self), 1);
        let typed = |steps: Vec<AnyValue>| steps.iter().map(|step| step.get::<S>().clone()).collect();
        (states, violated.map(|(_, steps)| typed(steps)))
    }

    /// Serves the worlds to a web browser at an address, until the program ends.
    pub fn serve(self, address: SocketAddr) {
        AnyModel::new(self).checker().serve(address);
    }
}

/// Returns the number of distinct states, and the violated property with the fewest steps.
fn search(model: AnyModel, threads: usize) -> (usize, Option<(&'static str, Vec<AnyValue>)>) {
    // By default, the search ends when every property has a counterexample. Some mutants never
    // violate every property.
    let mut builder = model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    if let Some(most) = MOST_STATES.get() {
        builder = builder.target_state_count(most.get());
    }
    let checker = builder.spawn_bfs().join();
    let discoveries = checker.discoveries();
    let paths = discoveries.into_iter().map(|(property, path)| (property, path.into_actions()));
    (checker.unique_state_count(), paths.min_by_key(|(_, steps)| steps.len()))
}

/// The methods of a state or a step whose type is hidden.
pub(crate) trait Value: Any + Debug + Send + Sync {
    fn equals(&self, other: &AnyValue) -> bool;
}

impl<T: Any + Debug + PartialEq + Send + Sync> Value for T {
    fn equals(&self, other: &AnyValue) -> bool {
        self == other.get::<T>()
    }
}

/// A state or a step of a model.
#[derive(Clone)]
pub(crate) struct AnyValue(Arc<dyn Value>);

impl AnyValue {
    /// # Panics
    /// If the value has another type. All states of a model have one type, and so have its steps.
    fn get<T: Any>(&self) -> &T {
        let value: &dyn Any = &*self.0;
        value.downcast_ref().expect("the value is one of this model")
    }
}

impl PartialEq for AnyValue {
    fn eq(&self, other: &AnyValue) -> bool {
        self.0.equals(other)
    }
}

impl Debug for AnyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, PartialEq)]
struct AnyState {
    hash: u64,
    state: AnyValue,
}

impl AnyState {
    fn new(state: impl Value + Hash) -> AnyState {
        // The seeds are fixed, so that the web page finds a state again on every machine.
        let hash = ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(&state);
        AnyState { hash, state: AnyValue(Arc::new(state)) }
    }
}

impl Hash for AnyState {
    fn hash<H: Hasher>(&self, to: &mut H) {
        to.write_u64(self.hash);
    }
}

impl Debug for AnyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// A model whose types are hidden.
struct AnyModel(Box<dyn HiddenModel>);

/// The methods of [`Model`] that the checker needs, without the model's types.
trait HiddenModel: Send + Sync {
    fn init_states(&self) -> Vec<AnyState>;
    fn actions(&self, state: &AnyState, actions: &mut Vec<AnyValue>);
    fn next_state(&self, state: &AnyState, action: &AnyValue) -> Option<AnyState>;
    fn properties(&self) -> Vec<&'static str>;
    fn holds(&self, property: usize, state: &AnyState) -> bool;
}

struct Hidden<W, S> {
    model: Exhaustive<W, S>,
    /// The mutant that is on in the thread that asked for the search. The threads that compute the
    /// states turn the same mutant on.
    running: Running,
}

impl AnyModel {
    fn new<W, S>(model: Exhaustive<W, S>) -> AnyModel
    where
        W: Value + Clone + Hash,
        S: Value + Clone,
    {
        assert!(model.properties.len() <= MAX_PROPERTIES, "a model has at most {MAX_PROPERTIES} properties");
        AnyModel(Box::new(Hidden { model, running: Running::now() }))
    }
}

impl<W: Value + Clone + Hash, S: Value + Clone> HiddenModel for Hidden<W, S> {
    fn init_states(&self) -> Vec<AnyState> {
        let start = &self.model.start;
        (self.model.boundary)(start).then(|| AnyState::new(start.clone())).into_iter().collect()
    }

    fn actions(&self, state: &AnyState, actions: &mut Vec<AnyValue>) {
        let steps = (self.model.steps)(state.state.get());
        actions.extend(steps.into_iter().map(|step| AnyValue(Arc::new(step))));
    }

    fn next_state(&self, state: &AnyState, action: &AnyValue) -> Option<AnyState> {
        let mut next = state.state.get::<W>().clone();
        self.running.run(|| (self.model.apply)(&mut next, action.get::<S>().clone()));
        (self.model.boundary)(&next).then(|| AnyState::new(next))
    }

    fn properties(&self) -> Vec<&'static str> {
        self.model.properties.iter().map(|(name, _)| *name).collect()
    }

    fn holds(&self, property: usize, state: &AnyState) -> bool {
        self.running.run(|| (self.model.properties[property].1)(state.state.get()))
    }
}

impl Model for AnyModel {
    type State = AnyState;
    type Action = AnyValue;

    fn init_states(&self) -> Vec<AnyState> {
        self.0.init_states()
    }

    fn actions(&self, state: &AnyState, actions: &mut Vec<AnyValue>) {
        self.0.actions(state, actions);
    }

    fn next_state(&self, state: &AnyState, action: AnyValue) -> Option<AnyState> {
        self.0.next_state(state, &action)
    }

    fn properties(&self) -> Vec<Property<AnyModel>> {
        fn condition<const PROPERTY: usize>(model: &AnyModel, state: &AnyState) -> bool {
            model.0.holds(PROPERTY, state)
        }
        let conditions: [fn(&AnyModel, &AnyState) -> bool; MAX_PROPERTIES] = [
            condition::<0>,
            condition::<1>,
            condition::<2>,
            condition::<3>,
            condition::<4>,
            condition::<5>,
            condition::<6>,
            condition::<7>,
        ];
        let names = self.0.properties().into_iter();
        names.zip(conditions).map(|(name, condition)| Property::always(name, condition)).collect()
    }
}

//! Exhaustive search of a model, with stateright. The types of the model are hidden from the checker, so that the compiler generates one
//! checker for all models: with one for each, this crate takes twice as long to compile.

use std::any::Any;
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use mitra_mutants::Running;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

use crate::Exploration;

/// The maximum number of properties of a model.
const MAX_PROPERTIES: usize = 8;

/// A model that can be explored. Its properties hold in every state.
pub(crate) trait Explorable:
    Model<State: Value + Hash, Action: Value + Clone> + Send + Sync + 'static
{
}

impl<M: Model<State: Value + Hash, Action: Value + Clone> + Send + Sync + 'static> Explorable for M {}

/// Explores all states of a model, or stops at the first counterexample.
pub(crate) fn explore<M: Explorable>(model: M) -> Exploration {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (states, violated) = search(AnyModel::new(model), threads);
    let text = |steps: Vec<AnyValue>| steps.iter().map(|step| format!("{step:?}")).collect();
    Exploration { states, counterexample: violated.map(|(property, steps)| (property, text(steps))) }
}

/// Explores the states of a model, or stops at the first counterexample, which is the shortest. Returns the number of states and the steps
/// of the counterexample.
pub(crate) fn find_shortest<M: Explorable>(model: M) -> (usize, Option<Vec<M::Action>>) {
    let (states, violated) = search(AnyModel::new(model), 1);
    let typed = |steps: Vec<AnyValue>| steps.iter().map(|step| step.get::<M::Action>().clone()).collect();
    (states, violated.map(|(_, steps)| typed(steps)))
}

/// Serves the states of a model to a web browser at an address, until the program ends.
pub(crate) fn serve<M: Explorable>(model: M, address: SocketAddr) {
    AnyModel::new(model).checker().serve(address);
}

/// Returns the number of distinct states, and the violated property with the fewest steps.
fn search(model: AnyModel, threads: usize) -> (usize, Option<(&'static str, Vec<AnyValue>)>) {
    // By default the search ends when every property has a counterexample, which some mutants never give.
    let builder = model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
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

/// A state of a model.
#[derive(Clone, PartialEq)]
struct AnyState {
    hash: u64,
    state: AnyValue,
}

impl AnyState {
    fn new(state: impl Value + Hash) -> AnyState {
        // The same on every machine, so that the web page finds a state again.
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

/// The methods of [`Model`] that the checker needs, without types of the model.
trait HiddenModel: Send + Sync {
    fn init_states(&self) -> Vec<AnyState>;
    fn actions(&self, state: &AnyState, actions: &mut Vec<AnyValue>);
    fn next_state(&self, state: &AnyState, action: &AnyValue) -> Option<AnyState>;
    fn properties(&self) -> Vec<&'static str>;
    /// Returns whether the property at an index holds in a state.
    fn holds(&self, property: usize, state: &AnyState) -> bool;
}

struct Hidden<M: Model> {
    model: M,
    properties: Vec<Property<M>>,
    /// What the thread runs that asked for the search. Others compute the states.
    running: Running,
}

impl AnyModel {
    fn new<M: Explorable>(model: M) -> AnyModel {
        let properties = model.properties();
        assert!(properties.len() <= MAX_PROPERTIES, "a model has at most {MAX_PROPERTIES} properties");
        assert!(
            properties.iter().all(|property| property.expectation == Expectation::Always),
            "only properties that hold in every state are supported"
        );
        AnyModel(Box::new(Hidden { model, properties, running: Running::now() }))
    }
}

impl<M: Explorable> HiddenModel for Hidden<M> {
    fn init_states(&self) -> Vec<AnyState> {
        let states = self.model.init_states().into_iter();
        states.filter(|state| self.model.within_boundary(state)).map(AnyState::new).collect()
    }

    fn actions(&self, state: &AnyState, actions: &mut Vec<AnyValue>) {
        let mut typed = Vec::new();
        self.model.actions(state.state.get(), &mut typed);
        actions.extend(typed.into_iter().map(|action| AnyValue(Arc::new(action))));
    }

    fn next_state(&self, state: &AnyState, action: &AnyValue) -> Option<AnyState> {
        let action = action.get::<M::Action>().clone();
        let next = self.running.run(|| self.model.next_state(state.state.get(), action))?;
        self.model.within_boundary(&next).then(|| AnyState::new(next))
    }

    fn properties(&self) -> Vec<&'static str> {
        self.properties.iter().map(|property| property.name).collect()
    }

    fn holds(&self, property: usize, state: &AnyState) -> bool {
        self.running.run(|| (self.properties[property].condition)(&self.model, state.state.get()))
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

/// The lengths of the lists that a vQP keeps, for tests that they are bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(hidden)]
pub struct StateLengths {
    /// Operations of the send queue that have not completed.
    pub operations: usize,
    /// The limit that follows from the configuration.
    pub max_operations: usize,
    /// Outstanding receives.
    pub receives: usize,
    /// The limit that follows from the configuration.
    pub max_receives: usize,
    /// Completions that the application has not taken.
    pub completions: usize,
    /// Actions of the rail negotiation that were not executed.
    pub actions: usize,
    /// Binds and invalidations that other rails have to execute.
    pub window_operations: usize,
}

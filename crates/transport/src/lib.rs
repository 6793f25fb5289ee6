//! RC, UC and UD as state machines; never does I/O, reads a clock or draws randomness of its own.
#![forbid(unsafe_code)]

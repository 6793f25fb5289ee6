//! RoCEv2 headers and ICRC, parse and emit; never does I/O.
#![forbid(unsafe_code)]

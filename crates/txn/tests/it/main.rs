//! Transactions over nodes whose requests are executed in every order, torn, lost and in doubt,
//! from seeds.

mod by_key;
mod client;
mod cluster;
mod damaged_memory;
mod history;
mod list_append;
mod lives;
mod loaded;
mod memory;
mod schedules;
mod sessions;
mod workload;

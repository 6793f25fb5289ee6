//! Variants of a test: its number of rails, its kind of links.

use std::env;
use std::fmt::Debug;

/// How packets travel between the NICs of this host: values of `MITRA_LINKS`.
const LINKS: [&str; 2] = ["auto", "udp"];

/// Returns the variants that a test runs: all of them, or the one that `MITRA_ROTATION` selects for
/// the test's name. Prints the selected variant, so that the output of a failed test names it.
pub fn variants<T: Clone + Debug>(test: &str, all: &[T]) -> Vec<T> {
    match mitra_prng::rotation() {
        None => all.to_vec(),
        Some(rotation) => {
            let variant = all[mitra_prng::rotated_variant(&rotation, test, all.len())].clone();
            println!("{test}: MITRA_ROTATION={rotation} selects {variant:?}");
            vec![variant]
        }
    }
}

/// Returns the values of `MITRA_LINKS` for a test: the present one if the variable is set.
pub fn links() -> Vec<String> {
    env::var("MITRA_LINKS").map_or_else(|_| LINKS.map(str::to_owned).to_vec(), |set| vec![set])
}

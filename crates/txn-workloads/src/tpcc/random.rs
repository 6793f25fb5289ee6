//! Random values as §2.1.6 and §4.3.2 define them.

use std::fmt;

use mitra_prng::Prng;

use super::scale::Scale;
use crate::Text;

const DIGITS: &[u8] = b"0123456789";
const ALPHANUMERICS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The constants C of NURand (§2.1.6.1): one for each field, the same in all processes of a run.
/// The constant of last names differs between the load and the run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Constants {
    last_name_load: u64,
    last_name_run: u64,
    customer: u64,
    item: u64,
}

impl Constants {
    /// The constants of a seed. A run takes the seed of the load, so that the two constants of last
    /// names differ as §2.1.6.1 demands: by 65 to 119, but neither 96 nor 112.
    pub fn new(seed: u64) -> Constants {
        let prng = &mut Prng::stream(seed, "tpcc constants");
        let last_name_load = prng.between(0, 255);
        let last_name_run = loop {
            let run = prng.between(0, 255);
            let difference = run.abs_diff(last_name_load);
            if (65..=119).contains(&difference) && difference != 96 && difference != 112 {
                break run;
            }
        };
        Constants {
            last_name_load,
            last_name_run,
            customer: prng.between(0, 1023),
            item: prng.between(0, 8191),
        }
    }

    pub(crate) fn loaded_last_name(&self, prng: &mut Prng, scale: &Scale) -> LastName {
        last_name(prng, self.last_name_load, scale)
    }

    /// A last name to look a customer up by.
    pub(crate) fn last_name(&self, prng: &mut Prng, scale: &Scale) -> LastName {
        last_name(prng, self.last_name_run, scale)
    }

    /// C_ID of a customer.
    pub(crate) fn customer(&self, prng: &mut Prng, scale: &Scale) -> u16 {
        non_uniform(prng, 1023, self.customer, 1, scale.sizes().customers.into()) as u16
    }

    /// I_ID of an ordered item.
    pub(crate) fn item(&self, prng: &mut Prng, scale: &Scale) -> u32 {
        non_uniform(prng, 8191, self.item, 1, scale.sizes().items.into()) as u32
    }
}

fn last_name(prng: &mut Prng, c: u64, scale: &Scale) -> LastName {
    LastName(non_uniform(prng, 255, c, 0, u64::from(scale.last_names()) - 1) as u16)
}

/// NURand(A, x, y) of §2.1.6 with the constant C: a number from x to y, both included.
pub fn non_uniform(prng: &mut Prng, a: u64, c: u64, x: u64, y: u64) -> u64 {
    ((prng.between(0, a) | prng.between(x, y)) + c) % (y - x + 1) + x
}

/// One of the 1,000 last names (§4.3.2.3), by its number: a syllable for each of the three digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LastName(u16);

impl LastName {
    const SYLLABLES: [&str; 10] =
        ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

    /// The name with a number from 0 to 999.
    pub fn new(number: u16) -> Option<LastName> {
        (number < 1000).then_some(LastName(number))
    }

    /// The name's number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The name as a column.
    pub fn text(self) -> Text<16> {
        Text::new(&self.to_string())
    }
}

impl fmt::Display for LastName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for digit in [self.0 / 100, self.0 / 10 % 10, self.0 % 10] {
            f.write_str(Self::SYLLABLES[usize::from(digit)])?;
        }
        Ok(())
    }
}

/// A random a-string of §4.3.2.2: `min` to `max` alphanumeric characters.
pub(crate) fn letters<const N: usize>(prng: &mut Prng, min: usize, max: usize) -> Text<N> {
    Text::new(&characters(prng, ALPHANUMERICS, min, max))
}

/// A random n-string of §4.3.2.2 with `N` digits.
pub(crate) fn digits<const N: usize>(prng: &mut Prng) -> Text<N> {
    Text::new(&characters(prng, DIGITS, N, N))
}

/// A zip code (§4.3.2.7).
pub(crate) fn zip(prng: &mut Prng) -> Text<9> {
    Text::new(&(characters(prng, DIGITS, 4, 4) + "11111"))
}

/// I_DATA or S_DATA (§4.3.3.1): 26 to 50 characters, which contain [`ORIGINAL`] in 10 % of the
/// rows.
pub(crate) fn data(prng: &mut Prng) -> Text<50> {
    let mut text = characters(prng, ALPHANUMERICS, 26, 50);
    if prng.below(10) == 0 {
        let at = prng.index(text.len() - ORIGINAL.len() + 1);
        text.replace_range(at..at + ORIGINAL.len(), ORIGINAL);
    }
    Text::new(&text)
}

/// The text in I_DATA and S_DATA of an original item.
pub(crate) const ORIGINAL: &str = "ORIGINAL";

fn characters(prng: &mut Prng, alphabet: &[u8], min: usize, max: usize) -> String {
    // 64 random bits are enough for ten characters out of 62.
    const PER_DRAW: usize = 10;
    let len = prng.between(min as u64, max as u64) as usize;
    let mut text = String::with_capacity(len);
    while text.len() < len {
        let mut bits = prng.bits();
        for _ in 0..PER_DRAW.min(len - text.len()) {
            text.push(char::from(alphabet[(bits % alphabet.len() as u64) as usize]));
            bits /= alphabet.len() as u64;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_made_of_syllables() {
        let name = |number| LastName::new(number).map(|name| name.to_string());
        assert_eq!(name(0).as_deref(), Some("BARBARBAR"));
        assert_eq!(name(371).as_deref(), Some("PRICALLYOUGHT"));
        assert_eq!(name(999).as_deref(), Some("EINGEINGEING"));
        assert_eq!(name(1000), None);
        let longest = (0..1000).filter_map(name).map(|name| name.len()).max();
        assert_eq!(longest, Some(15), "C_LAST has room for 16 characters");
    }

    #[test]
    fn constants_of_load_and_run_differ_as_the_specification_asks() {
        for seed in 0..1000 {
            let Constants { last_name_load, last_name_run, .. } = Constants::new(seed);
            let difference = last_name_run.abs_diff(last_name_load);
            assert!((65..=119).contains(&difference) && ![96, 112].contains(&difference));
        }
    }

    #[test]
    fn load_and_run_draw_last_names_with_their_own_constants() {
        let scale = Scale::full(1).unwrap();
        let constants = Constants::new(5);
        let shift = (constants.last_name_run + 1000 - constants.last_name_load) % 1000;
        let (load, run) = (&mut Prng::new(1), &mut Prng::new(1));
        for _ in 0..100 {
            let loaded = constants.loaded_last_name(load, &scale).number();
            let looked_up = constants.last_name(run, &scale).number();
            assert_eq!((u64::from(loaded) + shift) % 1000, u64::from(looked_up));
        }
    }

    #[test]
    fn non_uniform_numbers_stay_in_their_bounds_and_are_not_uniform() {
        let prng = &mut Prng::new(1);
        let mut counts = [0_u32; 1000];
        for _ in 0..200_000 {
            let number = non_uniform(prng, 255, 123, 0, 999);
            counts[number as usize] += 1;
            assert!((1..=3000).contains(&non_uniform(prng, 1023, 77, 1, 3000)));
        }
        // The name 255 + 123 is the most frequent name, with 2.56 %. A uniform number has 0.1 %.
        assert!((4800..5500).contains(&counts[378]), "{}", counts[378]);
        assert!(counts.iter().filter(|&&count| count < 100).count() > 300);
    }

    #[test]
    fn texts_have_lengths_and_characters_of_their_kind() {
        let prng = &mut Prng::new(2);
        let mut originals = 0;
        for _ in 0..2000 {
            let text: Text<16> = letters(prng, 8, 16);
            assert!((8..=16).contains(&text.as_str().len()));
            assert!(text.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()));
            assert!(digits::<16>(prng).as_str().bytes().all(|byte| byte.is_ascii_digit()));
            assert!(zip(prng).as_str().ends_with("11111") && zip(prng).as_str().len() == 9);
            let data = data(prng);
            assert!((26..=50).contains(&data.as_str().len()));
            originals += u32::from(data.as_str().contains(ORIGINAL));
        }
        assert!((140..260).contains(&originals), "{originals} of 2000");
    }
}

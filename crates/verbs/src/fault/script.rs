//! The text form of triggers and noise: `nic-dead@5:1`, `drop=1000ppm,reorder=500ppm,delay=50us`.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::{Failure, Noise, Stage, Trigger};

/// The parse error of a fault script. The message is one line and shows a valid form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptError(String);

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for ScriptError {}

impl Failure {
    /// All failures.
    pub const ALL: [Failure; 4] = [Failure::LinkDown, Failure::NicDead, Failure::NicHung, Failure::NotPlaced];

    /// Returns the name in scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Failure::LinkDown => "link-down",
            Failure::NicDead => "nic-dead",
            Failure::NicHung => "nic-hung",
            Failure::NotPlaced => "not-placed",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Failure {
    type Err = ScriptError;

    fn from_str(s: &str) -> Result<Failure, ScriptError> {
        Failure::ALL.into_iter().find(|failure| failure.name() == s).ok_or_else(|| {
            ScriptError(format!("unknown failure {s:?}; use link-down, nic-dead, nic-hung or not-placed"))
        })
    }
}

impl Stage {
    /// All stages in ascending order.
    pub const ALL: [Stage; 8] = [
        Stage::Posted,
        Stage::RequestOnWire,
        Stage::Arrived,
        Stage::PartlyExecuted,
        Stage::Executed,
        Stage::AckOnWire,
        Stage::Acknowledged,
        Stage::NotPlaced,
    ];

    /// Returns the number of the stage, 1 to 8.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl FromStr for Stage {
    type Err = ScriptError;

    fn from_str(s: &str) -> Result<Stage, ScriptError> {
        let number = s.parse::<u8>().ok();
        Stage::ALL.into_iter().find(|stage| Some(stage.number()) == number).ok_or_else(|| {
            ScriptError(format!(
                "{s:?} is not a stage; use 1 (posted), 2 (request on the wire), 3 (arrived), 4 (partly executed), \
                 5 (executed), 6 (acknowledgement on the wire), 7 (acknowledged) or 8 (not placed)"
            ))
        })
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.failure, self.stage, self.nth)
    }
}

impl FromStr for Trigger {
    type Err = ScriptError;

    fn from_str(s: &str) -> Result<Trigger, ScriptError> {
        let parts = s.split_once('@').and_then(|(failure, place)| Some((failure, place.split_once(':')?)));
        let Some((failure, (stage, nth))) = parts else {
            return Err(ScriptError(format!(
                "{s:?} is not a failure trigger; use failure@stage:nth, for example link-down@6:40"
            )));
        };
        let nth = nth.parse().ok().filter(|&nth| nth > 0).ok_or_else(|| {
            ScriptError(format!("{nth:?} is not a packet number; use a number from 1 to {}", u32::MAX))
        })?;
        Ok(Trigger { failure: failure.parse()?, stage: stage.parse()?, nth })
    }
}

const MILLION: u32 = 1_000_000;

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Noise::default() {
            return f.write_str("none");
        }
        let parts = [
            ("drop", self.drop_ppm),
            ("corrupt", self.corrupt_ppm),
            ("dup", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
        ];
        let mut separator = "";
        for (name, ppm) in parts.into_iter().filter(|(_, ppm)| *ppm > 0) {
            write!(f, "{separator}{name}={ppm}ppm")?;
            separator = ",";
        }
        if !self.max_delay.is_zero() {
            write!(f, "{separator}delay={}", Delay(self.max_delay))?;
        }
        Ok(())
    }
}

impl FromStr for Noise {
    type Err = ScriptError;

    /// Parses the parts, which may have any order. `none` means no noise.
    fn from_str(s: &str) -> Result<Noise, ScriptError> {
        let mut noise = Noise::default();
        if s == "none" {
            return Ok(noise);
        }
        for part in s.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                ScriptError(format!("{part:?} is not a noise setting; use for example drop=1000ppm, or none"))
            })?;
            match name {
                "drop" => noise.drop_ppm = rate_ppm(value)?,
                "corrupt" => noise.corrupt_ppm = rate_ppm(value)?,
                "dup" => noise.duplicate_ppm = rate_ppm(value)?,
                "reorder" => noise.reorder_ppm = rate_ppm(value)?,
                "delay" => noise.max_delay = value.parse::<Delay>()?.0,
                _ => {
                    return Err(ScriptError(format!(
                        "unknown noise setting {name:?}; use drop, corrupt, dup, reorder or delay"
                    )));
                }
            }
        }
        let sum = noise.drop_ppm + noise.corrupt_ppm + noise.duplicate_ppm + noise.reorder_ppm;
        if sum > MILLION {
            return Err(ScriptError(format!(
                "{s:?} is {sum}ppm in total; reduce it to {MILLION}ppm at most"
            )));
        }
        if noise.reorder_ppm > 0 && noise.max_delay.is_zero() {
            return Err(ScriptError("reorder needs a maximum delay; add for example delay=50us".to_owned()));
        }
        Ok(noise)
    }
}

fn rate_ppm(s: &str) -> Result<u32, ScriptError> {
    let ppm = s.strip_suffix("ppm").and_then(|count| count.parse().ok());
    ppm.filter(|&ppm| ppm <= MILLION).ok_or_else(|| {
        ScriptError(format!("{s:?} is not a rate; use 0ppm to {MILLION}ppm (1 % is 10000ppm)"))
    })
}

/// A duration with a text form in the largest exact unit: `50us`, `2s`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Delay(pub Duration);

const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let exact = UNITS.into_iter().find(|(_, unit)| nanos.is_multiple_of((*unit).into()));
        let (name, unit) = exact.unwrap_or(("ns", 1));
        write!(f, "{}{name}", nanos / u128::from(unit))
    }
}

impl FromStr for Delay {
    type Err = ScriptError;

    fn from_str(s: &str) -> Result<Delay, ScriptError> {
        let (count, name) = s.split_at(s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len()));
        let unit = UNITS.into_iter().find(|(known, _)| *known == name);
        let nanos = unit.and_then(|(_, unit)| count.parse::<u64>().ok()?.checked_mul(unit));
        nanos.map(|nanos| Delay(Duration::from_nanos(nanos))).ok_or_else(|| {
            ScriptError(format!(
                "{s:?} is not a delay; use a whole number and ns, us, ms or s, for example 50us"
            ))
        })
    }
}

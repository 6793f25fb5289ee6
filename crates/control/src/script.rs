//! Faults as text: `rail0 down at 2s; rail0 up at 3s`. `docs/faults.md` tells users what each word means.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mitra_failover::MAX_RAILS;
use mitra_transport::fault::{Delay, Failure, Noise, Trigger};

/// The longest script, in bytes.
pub const MAX_SCRIPT: usize = 4096;

/// What is done to a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// `down`, or a failure by its name: fails now.
    Fail(Failure),
    /// `up`: the cable is in again, and what was held back is placed. Nothing brings a NIC back.
    Heal,
    /// `failure@stage:nth`: fails when a packet reaches a stage.
    Arm(Trigger),
    /// `noise ...`: befalls packets that leave, and packets that arrive, from now on.
    Noise(Noise),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Fail(Failure::LinkDown) => f.write_str("down"),
            Change::Fail(failure) => failure.fmt(f),
            Change::Heal => f.write_str("up"),
            Change::Arm(trigger) => trigger.fmt(f),
            Change::Noise(noise) => write!(f, "noise {noise}"),
        }
    }
}

/// A change to one rail, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedFault {
    /// Which rail, from 0.
    pub rail: usize,
    /// What is done to it.
    pub change: Change,
    /// So long after the script reached the device: after the program opened it, or after `mitra fault` was given.
    pub after: Duration,
}

impl fmt::Display for TimedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail{} {}", self.rail, self.change)?;
        if !self.after.is_zero() {
            write!(f, " at {}", Delay(self.after))?;
        }
        Ok(())
    }
}

impl FromStr for TimedFault {
    type Err = String;

    fn from_str(s: &str) -> Result<TimedFault, String> {
        let mut words = s.split_whitespace();
        let rail = rail(words.next().unwrap_or_default())?;
        let change = match words.next() {
            None => return Err(format!("{s:?} names a rail and no fault; {CHANGES}")),
            Some("noise") => {
                let noise = words.next().unwrap_or_default();
                Change::Noise(noise.parse().map_err(|error| format!("{error}"))?)
            }
            Some(word) => change(word)?,
        };
        let after = match (words.next(), words.next(), words.next()) {
            (None, ..) => Duration::ZERO,
            (Some("at"), Some(delay), None) => delay.parse().map(|Delay(d)| d).map_err(|e| e.to_string())?,
            _ => {
                return Err(format!(
                    "{s:?} goes on after the fault; end it with `at` and a delay, for example at 2s, or begin \
                     another after a semicolon"
                ));
            }
        };
        Ok(TimedFault { rail, change, after })
    }
}

fn rail(word: &str) -> Result<usize, String> {
    let number = word.strip_prefix("rail").and_then(|number| number.parse().ok());
    number.filter(|&number| number < MAX_RAILS).ok_or_else(|| {
        format!("{word:?} is no rail; say rail0 to rail{}, and then what befalls it", MAX_RAILS - 1)
    })
}

const CHANGES: &str = "say down, up, nic-dead, nic-hung, not-placed, FAILURE@STAGE:NTH (link-down@6:40), or noise \
                       and what (noise drop=1000ppm)";

fn change(word: &str) -> Result<Change, String> {
    if word.contains('@') {
        return word.parse().map(Change::Arm).map_err(|error| error.to_string());
    }
    match word {
        "down" => Ok(Change::Fail(Failure::LinkDown)),
        "up" => Ok(Change::Heal),
        failure => {
            failure.parse().map(Change::Fail).map_err(|_| format!("no fault is called {word:?}; {CHANGES}"))
        }
    }
}

/// Faults in the order in which they were written; in text, separated by semicolons. Empty only if nothing is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script(pub Vec<TimedFault>);

impl Script {
    /// Whether a device with so many rails has them all.
    ///
    /// # Errors
    /// A line that names the first that it has not.
    pub fn check(&self, rails: usize) -> Result<(), String> {
        let Some(fault) = self.0.iter().find(|fault| fault.rail >= rails) else { return Ok(()) };
        let (there, more) = (rails.saturating_sub(1), fault.rail + 1);
        let has = if rails == 1 { "rail0 only".to_owned() } else { format!("rail0 to rail{there}") };
        Err(format!("`{fault}`: there is {has}; name one of these, or run with --rails {more}"))
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self.0.iter().map(TimedFault::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(s: &str) -> Result<Script, String> {
        if s.len() > MAX_SCRIPT {
            return Err(format!("a script of {} bytes is too long; say it in {MAX_SCRIPT}", s.len()));
        }
        let parts = s.split(';').filter(|part| !part.trim().is_empty());
        let faults = parts.map(|part| part.trim().parse()).collect::<Result<Vec<_>, _>>()?;
        if faults.is_empty() {
            return Err("the script is empty; say for example rail0 down at 2s".to_owned());
        }
        Ok(Script(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> TimedFault {
        let Script(faults) = text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(faults.len(), 1, "{text}");
        faults[0]
    }

    #[test]
    fn each_fault_is_what_it_says() {
        let now = Duration::ZERO;
        let armed = Trigger { stage: "6".parse().unwrap(), nth: 40, failure: Failure::LinkDown };
        let noise = Noise {
            drop_ppm: 1000,
            reorder_ppm: 5,
            max_delay: Duration::from_micros(50),
            ..Noise::default()
        };
        for (text, rail, change, after) in [
            ("rail0 down at 2s", 0, Change::Fail(Failure::LinkDown), Duration::from_secs(2)),
            ("rail1 up at 3s", 1, Change::Heal, Duration::from_secs(3)),
            ("rail0 link-down", 0, Change::Fail(Failure::LinkDown), now),
            ("rail7 nic-dead at 500ms", 7, Change::Fail(Failure::NicDead), Duration::from_millis(500)),
            ("rail0 nic-hung", 0, Change::Fail(Failure::NicHung), now),
            ("  rail0   not-placed  at  0s ;", 0, Change::Fail(Failure::NotPlaced), now),
            ("rail0 link-down@6:40", 0, Change::Arm(armed), now),
            ("rail0 link-down@6:40 at 1s", 0, Change::Arm(armed), Duration::from_secs(1)),
            ("rail0 noise drop=1000ppm,reorder=5ppm,delay=50us", 0, Change::Noise(noise), now),
            ("rail2 noise none at 1ms", 2, Change::Noise(Noise::default()), Duration::from_millis(1)),
        ] {
            let fault = one(text);
            assert_eq!(fault, TimedFault { rail, change, after }, "{text}");
            assert_eq!(one(&fault.to_string()), fault, "{text} is written as {fault}");
        }
    }

    #[test]
    fn several_keep_their_order() {
        let text = "rail0 down at 2s; rail0 up at 3s; rail1 nic-dead";
        let script: Script = text.parse().unwrap();
        assert_eq!(script.0.len(), 3);
        assert_eq!(script.to_string(), text);
    }

    #[test]
    fn bad_input_is_named_with_the_way_out() {
        let long = "rail0 up;".repeat(MAX_SCRIPT / 9 + 1);
        for (text, says) in [
            ("", "the script is empty; say for example"),
            (" ; ;", "the script is empty"),
            ("rail0", "\"rail0\" names a rail and no fault; say down, up"),
            ("down", "\"down\" is no rail; say rail0 to rail7"),
            ("rail8 down", "\"rail8\" is no rail"),
            ("rail-1 down", "\"rail-1\" is no rail"),
            ("rail99999999999999999999 down", "is no rail"),
            ("rail down", "\"rail\" is no rail"),
            ("rail0 sideways", "no fault is called \"sideways\"; say down, up"),
            ("rail0 link-down@9:1", "\"9\" is no stage"),
            ("rail0 link-down@6", "\"link-down@6\" is no scripted failure"),
            ("rail0 sideways@6:1", "no failure is called \"sideways\""),
            ("rail0 noise", "\"\" is no noise"),
            ("rail0 noise at 2s", "\"at\" is no noise"),
            ("rail0 noise drop=2", "\"2\" is no probability"),
            ("rail0 down at", "goes on after the fault; end it with `at` and a delay"),
            ("rail0 down 2s", "goes on after the fault"),
            ("rail0 down at 2s now", "goes on after the fault"),
            ("rail0 down rail0 up", "goes on after the fault"),
            ("rail0 down at soon", "\"soon\" is no delay"),
            ("rail0 down at 99999999999999s", "is no delay"),
            ("rail0 up; rail0", "names a rail and no fault"),
            (&long, "is too long; say it in 4096"),
        ] {
            let error = text.parse::<Script>().unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn a_rail_that_is_not_there_is_named() {
        let script: Script = "rail0 up; rail2 down at 1s".parse().unwrap();
        assert_eq!(script.check(3), Ok(()));
        let error = script.check(2).unwrap_err();
        assert_eq!(
            error,
            "`rail2 down at 1s`: there is rail0 to rail1; name one of these, or run with --rails 3"
        );
        assert!(script.check(1).unwrap_err().contains("rail0 only"));
    }
}

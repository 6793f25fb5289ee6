//! Fault scripts: scheduled faults in text form, such as `rail0 down at 2s; rail0 up at 3s`.
//! `docs/faults.md` is the user's reference.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use mitra_failover::MAX_RAILS;
use mitra_verbs::fault::{Delay, Failure, FaultKind, Noise, Trigger};

/// The longest script, in bytes.
pub const MAX_SCRIPT_BYTES: usize = 4096;

/// A fault, or its repair, at one rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultAction {
    /// Fails the link or the NIC immediately. In text: `down`, or the name of the failure.
    Fail(Failure),
    /// Brings the link up again and places the writes that the NIC has delayed. A dead or hung NIC
    /// stays dead or hung. In text: `up`.
    Heal,
    /// Arms a trigger, which fails the link or the NIC when the nth packet reaches a stage. In
    /// text: `FAILURE@STAGE:NTH`.
    Arm(Trigger),
    /// Sets the noise on transmitted and received packets until the next `noise` action. In text:
    /// `noise NOISE`.
    Noise(Noise),
    /// Gives the NIC another address. In text: `address ADDRESS`.
    Address(NewAddress),
}

impl FaultAction {
    /// Returns the kind of the fault, for
    /// [`FaultSwitch::check`](mitra_verbs::fault::FaultSwitch::check).
    pub fn kind(self) -> FaultKind {
        match self {
            FaultAction::Fail(failure) => FaultKind::Failure(failure),
            FaultAction::Heal => FaultKind::Heal,
            FaultAction::Arm(_) => FaultKind::Trigger,
            FaultAction::Noise(_) => FaultKind::Noise,
            FaultAction::Address(_) => FaultKind::Address,
        }
    }
}

/// The address that a NIC gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewAddress {
    /// A free loopback address. In text: `free`.
    Free,
    /// This address.
    At(IpAddr),
}

impl fmt::Display for NewAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NewAddress::Free => f.write_str("free"),
            NewAddress::At(address) => address.fmt(f),
        }
    }
}

impl FromStr for NewAddress {
    type Err = String;

    fn from_str(s: &str) -> Result<NewAddress, String> {
        match s {
            "free" => Ok(NewAddress::Free),
            _ => s.parse().map(NewAddress::At).map_err(|_| {
                format!("{s:?} is not an address; expected `free`, or an IP address of this host (address 10.0.0.7)")
            }),
        }
    }
}

impl fmt::Display for FaultAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultAction::Fail(Failure::LinkDown) => f.write_str("down"),
            FaultAction::Fail(failure) => failure.fmt(f),
            FaultAction::Heal => f.write_str("up"),
            FaultAction::Arm(trigger) => trigger.fmt(f),
            FaultAction::Noise(noise) => write!(f, "noise {noise}"),
            FaultAction::Address(address) => write!(f, "address {address}"),
        }
    }
}

/// A fault at one rail, after a delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScheduledFault {
    /// The index of the rail, from 0.
    pub rail: usize,
    /// The fault.
    pub action: FaultAction,
    /// The delay, which begins when the program opens the device, or when the device's process
    /// receives the request of `mitra fault`.
    pub delay: Duration,
}

impl fmt::Display for ScheduledFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail{} {}", self.rail, self.action)?;
        if !self.delay.is_zero() {
            write!(f, " at {}", Delay(self.delay))?;
        }
        Ok(())
    }
}

impl FromStr for ScheduledFault {
    type Err = String;

    fn from_str(s: &str) -> Result<ScheduledFault, String> {
        let mut words = s.split_whitespace();
        let rail = parse_rail(words.next().unwrap_or_default())?;
        let action = match words.next() {
            None => return Err(format!("{s:?} has a rail and no fault; {EXPECTED_FAULT}")),
            Some("noise") => {
                let noise = words.next().unwrap_or_default();
                FaultAction::Noise(noise.parse().map_err(|error| format!("{error}"))?)
            }
            Some("address") => FaultAction::Address(words.next().unwrap_or_default().parse()?),
            Some(word) => parse_action(word)?,
        };
        let delay = match (words.next(), words.next(), words.next()) {
            (None, ..) => Duration::ZERO,
            (Some("at"), Some(delay), None) => delay.parse().map(|Delay(d)| d).map_err(|e| e.to_string())?,
            _ => {
                return Err(format!(
                    "{s:?} has unexpected text after the fault; expected `at` and a delay (at 2s), or a semicolon \
                     before the next fault"
                ));
            }
        };
        Ok(ScheduledFault { rail, action, delay })
    }
}

fn parse_rail(word: &str) -> Result<usize, String> {
    let number = word.strip_prefix("rail").and_then(|number| number.parse().ok());
    number.filter(|&number| number < MAX_RAILS).ok_or_else(|| {
        format!("{word:?} is not a rail; expected rail0 to rail{}, followed by a fault", MAX_RAILS - 1)
    })
}

const EXPECTED_FAULT: &str = "expected down, up, nic-dead, nic-hung, not-placed, FAILURE@STAGE:NTH (link-down@6:40), \
                              noise NOISE (noise drop=1000ppm), or address ADDRESS (address 10.0.0.7)";

fn parse_action(word: &str) -> Result<FaultAction, String> {
    if word.contains('@') {
        return word.parse().map(FaultAction::Arm).map_err(|error| error.to_string());
    }
    match word {
        "down" => Ok(FaultAction::Fail(Failure::LinkDown)),
        "up" => Ok(FaultAction::Heal),
        failure => failure
            .parse()
            .map(FaultAction::Fail)
            .map_err(|_| format!("unknown fault {word:?}; {EXPECTED_FAULT}")),
    }
}

/// Scheduled faults in the order of the text, where semicolons separate them.
/// [`FaultScript::default`] is empty. A parsed script has at least one fault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultScript(pub Vec<ScheduledFault>);

impl FaultScript {
    /// Checks that a device with `rails` rails has the rail of every fault.
    ///
    /// # Errors
    /// One line that names the first fault whose rail the device lacks.
    pub fn check_rails(&self, rails: usize) -> Result<(), String> {
        let Some(fault) = self.0.iter().find(|fault| fault.rail >= rails) else { return Ok(()) };
        let (last, needed) = (rails.saturating_sub(1), fault.rail + 1);
        let existing = if rails == 1 { "only rail0".to_owned() } else { format!("rail0 to rail{last}") };
        Err(format!("`{fault}`: the device has {existing}; use one of these, or run with --rails {needed}"))
    }
}

impl fmt::Display for FaultScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self.0.iter().map(ScheduledFault::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl FromStr for FaultScript {
    type Err = String;

    fn from_str(s: &str) -> Result<FaultScript, String> {
        if s.len() > MAX_SCRIPT_BYTES {
            return Err(format!(
                "the fault script is {} bytes long; the limit is {MAX_SCRIPT_BYTES}",
                s.len()
            ));
        }
        let parts = s.split(';').filter(|part| !part.trim().is_empty());
        let faults = parts.map(|part| part.trim().parse()).collect::<Result<Vec<_>, _>>()?;
        if faults.is_empty() {
            return Err("the fault script is empty; example: rail0 down at 2s".to_owned());
        }
        Ok(FaultScript(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_single(text: &str) -> ScheduledFault {
        let FaultScript(faults) = text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(faults.len(), 1, "{text}");
        faults[0]
    }

    #[test]
    fn each_fault_parses_and_displays() {
        let now = Duration::ZERO;
        let armed = Trigger { stage: "6".parse().unwrap(), nth: 40, failure: Failure::LinkDown };
        let noise = Noise {
            drop_ppm: 1000,
            reorder_ppm: 5,
            max_delay: Duration::from_micros(50),
            ..Noise::default()
        };
        for (text, rail, action, delay) in [
            ("rail0 down at 2s", 0, FaultAction::Fail(Failure::LinkDown), Duration::from_secs(2)),
            ("rail1 up at 3s", 1, FaultAction::Heal, Duration::from_secs(3)),
            ("rail0 link-down", 0, FaultAction::Fail(Failure::LinkDown), now),
            ("rail7 nic-dead at 500ms", 7, FaultAction::Fail(Failure::NicDead), Duration::from_millis(500)),
            ("rail0 nic-hung", 0, FaultAction::Fail(Failure::NicHung), now),
            ("  rail0   not-placed  at  0s ;", 0, FaultAction::Fail(Failure::NotPlaced), now),
            ("rail0 link-down@6:40", 0, FaultAction::Arm(armed), now),
            ("rail0 link-down@6:40 at 1s", 0, FaultAction::Arm(armed), Duration::from_secs(1)),
            ("rail0 noise drop=1000ppm,reorder=5ppm,delay=50us", 0, FaultAction::Noise(noise), now),
            ("rail1 address 10.0.0.7", 1, FaultAction::Address(NewAddress::At([10, 0, 0, 7].into())), now),
            ("rail0 address free at 1s", 0, FaultAction::Address(NewAddress::Free), Duration::from_secs(1)),
            ("rail2 noise none at 1ms", 2, FaultAction::Noise(Noise::default()), Duration::from_millis(1)),
        ] {
            let fault = parse_single(text);
            assert_eq!(fault, ScheduledFault { rail, action, delay }, "{text}");
            assert_eq!(parse_single(&fault.to_string()), fault, "{text} is displayed as {fault}");
        }
    }

    #[test]
    fn script_keeps_order_of_faults() {
        let text = "rail0 down at 2s; rail0 up at 3s; rail1 nic-dead";
        let script: FaultScript = text.parse().unwrap();
        assert_eq!(script.0.len(), 3);
        assert_eq!(script.to_string(), text);
    }

    #[test]
    fn parse_errors_quote_input_and_name_alternatives() {
        let long = "rail0 up;".repeat(MAX_SCRIPT_BYTES / 9 + 1);
        for (text, expected) in [
            ("", "the fault script is empty; example:"),
            (" ; ;", "the fault script is empty"),
            ("rail0", "\"rail0\" has a rail and no fault; expected down, up"),
            ("down", "\"down\" is not a rail; expected rail0 to rail7"),
            ("rail8 down", "\"rail8\" is not a rail"),
            ("rail-1 down", "\"rail-1\" is not a rail"),
            ("rail99999999999999999999 down", "is not a rail"),
            ("rail down", "\"rail\" is not a rail"),
            ("rail0 sideways", "unknown fault \"sideways\"; expected down, up"),
            ("rail0 link-down@9:1", "\"9\" is not a stage"),
            ("rail0 link-down@6", "\"link-down@6\" is not a failure trigger"),
            ("rail0 sideways@6:1", "unknown failure \"sideways\""),
            ("rail0 noise", "\"\" is not a noise setting"),
            ("rail0 noise at 2s", "\"at\" is not a noise setting"),
            ("rail0 noise drop=2", "\"2\" is not a rate"),
            ("rail0 address", "\"\" is not an address; expected `free`, or an IP address"),
            ("rail0 address eth0", "\"eth0\" is not an address"),
            ("rail0 address free free", "has unexpected text after the fault"),
            ("rail0 down at", "has unexpected text after the fault; expected `at` and a delay"),
            ("rail0 down 2s", "has unexpected text after the fault"),
            ("rail0 down at 2s now", "has unexpected text after the fault"),
            ("rail0 down rail0 up", "has unexpected text after the fault"),
            ("rail0 down at soon", "\"soon\" is not a delay"),
            ("rail0 down at 99999999999999s", "is not a delay"),
            ("rail0 up; rail0", "has a rail and no fault"),
            (&long, "the limit is 4096"),
        ] {
            let error = text.parse::<FaultScript>().unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn check_rails_names_first_missing_rail() {
        let script: FaultScript = "rail0 up; rail2 down at 1s".parse().unwrap();
        assert_eq!(script.check_rails(3), Ok(()));
        let error = script.check_rails(2).unwrap_err();
        assert_eq!(
            error,
            "`rail2 down at 1s`: the device has rail0 to rail1; use one of these, or run with --rails 3"
        );
        assert!(script.check_rails(1).unwrap_err().contains("only rail0"));
    }
}

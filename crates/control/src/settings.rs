//! The settings of a process, and the environment variables that carry them from `mitra run` to the
//! program.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use mitra_failover::{Policy, WritePolicy};
use mitra_verbs::Links;

use crate::{FaultScript, MetricsAddress, RailsConfig};

const RAILS: &str = "MITRA_RAILS";
const DEVICE: &str = "MITRA_DEVICE";
const NICS: &str = "MITRA_NICS";
const LINKS: &str = "MITRA_LINKS";
const POLICY: &str = "MITRA_POLICY";
const WRITES: &str = "MITRA_WRITES";
const PREFER: &str = "MITRA_PREFER";
const LOG: &str = "MITRA_LOG";
const VERBOSE: &str = "MITRA_VERBOSE";
const QUIET: &str = "MITRA_QUIET";
const FAULTS: &str = "MITRA_FAULTS";
const RUN_DIR: &str = "MITRA_RUN_DIR";
const METRICS: &str = "MITRA_METRICS";
const LATENCY: &str = "MITRA_LATENCY";
const TRACE: &str = "MITRA_TRACE";

/// The settings of a process. A variable that is unset or empty selects the default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// `MITRA_RAILS`: the rails of the device, as a number or as a comma-separated list of IP
    /// addresses. Default: 1. `MITRA_DEVICE` precedes it: the NICs of the kernel, with commas
    /// between.
    pub rails: RailsConfig,
    /// `MITRA_NICS`: the kind of the NICs, which [`Settings::nic_kind`] parses. Default: none.
    pub nics: Option<OsString>,
    /// `MITRA_LINKS`: how packets reach the NICs of this host. Default: `auto`.
    pub links: Links,
    /// `MITRA_POLICY`: how failover treats the operations that were in flight on the failed rail.
    /// Default: `exact`.
    pub policy: Policy,
    /// `MITRA_WRITES`: how failover treats a WRITE without evidence whether the responder executed
    /// it. Default: `strict`.
    pub writes: WritePolicy,
    /// `MITRA_PREFER`: the rail to which virtual queue pairs move back when it works again.
    /// Default: none.
    pub prefer: Option<u8>,
    /// `MITRA_LOG`: whether virtual queue pairs keep a completion log. Default: 0.
    pub completion_log: bool,
    /// `MITRA_VERBOSE`: whether the library explains every refused call on standard error. By
    /// default, the library explains only the first refused call of each kind.
    pub verbose: bool,
    /// `MITRA_QUIET`: whether the library writes nothing to standard error, except the reason why
    /// the device cannot be opened. Default: 0.
    pub quiet: bool,
    /// `MITRA_FAULTS`: the faults to inject after the program has opened the device. Default: none.
    pub faults: FaultScript,
    /// `MITRA_RUN_DIR`: the directory of the control socket. Default: no control socket.
    pub run_dir: Option<PathBuf>,
    /// `MITRA_METRICS`: the address of the OpenMetrics endpoint. Default: no endpoint.
    pub metrics: Option<MetricsAddress>,
    /// `MITRA_LATENCY`: whether virtual queue pairs sample the latencies of operations. Default: 0.
    pub latency: bool,
    /// `MITRA_TRACE`: whether the library writes each step of a failover to standard error.
    /// Default: 0.
    pub trace: bool,
}

/// An environment variable with an invalid value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable}={value:?}: {reason}")]
pub struct SettingsError {
    /// The name of the variable.
    pub variable: &'static str,
    /// The value of the variable.
    pub value: OsString,
    /// Why the value is invalid, and which values are valid.
    pub reason: String,
}

impl Settings {
    /// Returns the environment variables that [`Settings::from_env`] parses to these settings.
    pub fn to_env(&self) -> [(&'static str, OsString); 15] {
        let (rails, device) = match &self.rails {
            RailsConfig::Devices(_) => (String::new(), self.rails.to_string()),
            rails => (rails.to_string(), String::new()),
        };
        [
            (RAILS, rails.into()),
            (DEVICE, device.into()),
            (NICS, self.nics.clone().unwrap_or_default()),
            (LINKS, self.links.to_string().into()),
            (POLICY, self.policy.to_string().into()),
            (WRITES, self.writes.to_string().into()),
            (PREFER, self.prefer.map(|rail| rail.to_string()).unwrap_or_default().into()),
            (LOG, u8::from(self.completion_log).to_string().into()),
            (VERBOSE, u8::from(self.verbose).to_string().into()),
            (QUIET, u8::from(self.quiet).to_string().into()),
            (FAULTS, self.faults.to_string().into()),
            (RUN_DIR, self.run_dir.clone().unwrap_or_default().into()),
            (METRICS, self.metrics.map(|address| address.to_string()).unwrap_or_default().into()),
            (LATENCY, u8::from(self.latency).to_string().into()),
            (TRACE, u8::from(self.trace).to_string().into()),
        ]
    }

    /// Parses each setting from the environment of this process. Does not check the settings
    /// against one another ([`Settings::checked`]), because the command line may replace some of
    /// them.
    ///
    /// # Errors
    /// [`SettingsError`] for the first variable with an invalid value.
    pub fn from_env() -> Result<Settings, SettingsError> {
        Settings::from_variables(env::var_os)
    }

    fn from_variables(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Settings, SettingsError> {
        let get = |name| variable(name).filter(|value| !value.is_empty());
        Ok(Settings {
            rails: match get(DEVICE) {
                Some(names) => parse_by(DEVICE, names, RailsConfig::devices)?,
                None => parse(RAILS, get(RAILS))?,
            },
            nics: get(NICS),
            links: parse(LINKS, get(LINKS))?,
            policy: parse(POLICY, get(POLICY))?,
            writes: parse(WRITES, get(WRITES))?,
            prefer: get(PREFER).map(|value| parse_value(PREFER, value)).transpose().map_err(|error| {
                SettingsError { reason: "expected the number of a rail, such as 0".to_owned(), ..error }
            })?,
            completion_log: parse::<Flag>(LOG, get(LOG))?.0,
            verbose: parse::<Flag>(VERBOSE, get(VERBOSE))?.0,
            quiet: parse::<Flag>(QUIET, get(QUIET))?.0,
            faults: parse(FAULTS, get(FAULTS))?,
            run_dir: get(RUN_DIR).map(PathBuf::from),
            metrics: get(METRICS).map(|value| parse_value(METRICS, value)).transpose()?,
            latency: parse::<Flag>(LATENCY, get(LATENCY))?.0,
            trace: parse::<Flag>(TRACE, get(TRACE))?.0,
        })
    }

    /// Returns the kind of the NICs, whose names this crate does not know.
    ///
    /// # Errors
    /// [`SettingsError`] for `MITRA_NICS` if its value is the name of no kind.
    pub fn nic_kind<K: FromStr<Err: Display> + Default>(&self) -> Result<K, SettingsError> {
        parse(NICS, self.nics.clone())
    }

    /// Checks the settings against one another, and returns them.
    ///
    /// # Errors
    /// [`SettingsError`] for `MITRA_FAULTS` if it names a rail that the device does not have, and
    /// for `MITRA_PREFER` by the rules of [`Settings::check_prefer`].
    pub fn checked(self) -> Result<Settings, SettingsError> {
        let error =
            |reason| SettingsError { variable: FAULTS, value: self.faults.to_string().into(), reason };
        self.faults.check_rails(self.rails.count()).map_err(error)?;
        let value = self.prefer.map(|rail| rail.to_string()).unwrap_or_default().into();
        self.check_prefer().map_err(|reason| SettingsError { variable: PREFER, value, reason })?;
        Ok(self)
    }

    /// Checks the preferred rail against the number of rails and the policy.
    ///
    /// # Errors
    /// The reason why virtual queue pairs cannot move back to the rail, and the way out.
    pub fn check_prefer(&self) -> Result<(), String> {
        let Some(rail) = self.prefer else { return Ok(()) };
        let rails = self.rails.count();
        if usize::from(rail) >= rails {
            return Err(format!(
                "the device has no rail{rail}; say a rail below {rails}, or give more --rails"
            ));
        }
        if self.policy != Policy::Exact {
            return Err(format!(
                "the policy {} does not fence a rail that works; use --policy exact",
                self.policy
            ));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Flag(bool);

impl FromStr for Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Flag, String> {
        match text {
            "0" => Ok(Flag(false)),
            "1" => Ok(Flag(true)),
            _ => Err("expected 1 or 0".to_owned()),
        }
    }
}

fn parse<T>(variable: &'static str, value: Option<OsString>) -> Result<T, SettingsError>
where
    T: FromStr<Err: Display> + Default,
{
    value.map_or_else(|| Ok(T::default()), |value| parse_value(variable, value))
}

fn parse_value<T: FromStr<Err: Display>>(
    variable: &'static str,
    value: OsString,
) -> Result<T, SettingsError> {
    parse_by(variable, value, |text| text.parse().map_err(|error: T::Err| error.to_string()))
}

fn parse_by<T>(
    variable: &'static str,
    value: OsString,
    parser: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, SettingsError> {
    let parsed = match value.to_str() {
        Some(text) => parser(text),
        None => Err("the value is not UTF-8; set it again, or unset it".to_owned()),
    };
    parsed.map_err(|reason| SettingsError { variable, value, reason })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse_pairs(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let value =
            |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Settings::from_variables(value).and_then(Settings::checked).map_err(|error| error.to_string())
    }

    /// The command line may give the rails that the other settings need.
    #[test]
    fn variables_are_checked_against_one_another_last() {
        let value = |name: &str| {
            [(PREFER, "1"), (FAULTS, "rail1 link-down")]
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        };
        let settings = Settings::from_variables(value).expect("each variable is valid");
        assert_eq!(settings.clone().checked().map_err(|error| error.variable), Err(FAULTS));
        let settings = Settings { rails: RailsConfig::Count(2), ..settings };
        assert_eq!(settings.clone().checked(), Ok(settings));
    }

    #[test]
    fn unset_and_empty_variables_select_defaults() {
        assert_eq!(parse_pairs(&[]), Ok(Settings::default()));
        assert_eq!(parse_pairs(&[(RAILS, ""), (FAULTS, ""), (RUN_DIR, "")]), Ok(Settings::default()));
        let Settings {
            rails,
            nics,
            links,
            policy,
            writes,
            prefer,
            completion_log,
            verbose,
            quiet,
            faults,
            run_dir,
            metrics,
            latency,
            trace,
        } = Settings::default();
        assert_eq!(links, Links::Auto);
        assert!(nics.is_none() && metrics.is_none() && prefer.is_none() && !latency && !trace);
        assert_eq!((rails, policy, writes), (RailsConfig::Count(1), Policy::Exact, WritePolicy::Strict));
        assert!(faults.0.is_empty() && run_dir.is_none() && !completion_log && !verbose && !quiet);
    }

    #[test]
    fn settings_survive_round_trip_through_environment() {
        let settings = Settings {
            rails: "10.0.0.1,10.1.0.1".parse().unwrap(),
            nics: Some("soft".into()),
            links: Links::Auto,
            policy: Policy::Exact,
            writes: WritePolicy::Repeatable,
            prefer: Some(1),
            completion_log: true,
            verbose: true,
            quiet: true,
            faults: "rail1 down at 2s; rail1 up at 3s".parse().unwrap(),
            run_dir: Some("/run/user/0/mitra".into()),
            metrics: Some("9464".parse().unwrap()),
            latency: true,
            trace: true,
        };
        let on_devices = Settings { rails: RailsConfig::devices("rxe0,rxe1").unwrap(), ..settings.clone() };
        for settings in [settings, on_devices, Settings::default()] {
            let variables = settings.to_env();
            let value =
                |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            assert_eq!(Settings::from_variables(value).as_ref(), Ok(&settings));
        }
    }

    #[test]
    fn kind_of_nics_is_parsed_by_who_knows_it() {
        let settings = |value| parse_pairs(&[(NICS, value)]).unwrap();
        assert_eq!(settings("").nic_kind(), Ok(0));
        assert_eq!(settings("7").nic_kind(), Ok(7));
        let error = settings("many").nic_kind::<u8>().unwrap_err();
        assert_eq!(error.to_string(), "MITRA_NICS=\"many\": invalid digit found in string");
    }

    #[test]
    fn errors_name_variable_value_and_valid_values() {
        for (variable, value, expected) in [
            (
                RAILS,
                "many",
                "MITRA_RAILS=\"many\": \"many\" is neither a number of rails nor an IP address; example:",
            ),
            (DEVICE, "rxe0,rxe0", "MITRA_DEVICE=\"rxe0,rxe0\": rxe0 is listed twice; one device"),
            (POLICY, "best", "MITRA_POLICY=\"best\": \"best\" is none of the choices; say exact,"),
            (
                METRICS,
                "here",
                "MITRA_METRICS=\"here\": \"here\" is neither a port nor ADDRESS:PORT; example:",
            ),
            (LINKS, "tcp", "MITRA_LINKS=\"tcp\": expected auto, shm or udp"),
            (TRACE, "yes", "MITRA_TRACE=\"yes\": expected 1 or 0"),
            (LOG, "yes", "MITRA_LOG=\"yes\": expected 1 or 0"),
            (WRITES, "lax", "MITRA_WRITES=\"lax\": \"lax\" is none of the choices; say strict or"),
            (FAULTS, "rail0 gone", "MITRA_FAULTS=\"rail0 gone\": unknown fault \"gone\"; expected"),
            (PREFER, "1", "MITRA_PREFER=\"1\": the device has no rail1; say a rail below 1,"),
            (PREFER, "one", "MITRA_PREFER=\"one\": expected the number of a rail, such as 0"),
            (FAULTS, "rail1 up", "MITRA_FAULTS=\"rail1 up\": `rail1 up`: the device has only rail0; use"),
        ] {
            let error = parse_pairs(&[(variable, value)]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = Settings::from_variables(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "MITRA_DEVICE=\"\\xFF\": the value is not UTF-8; set it again, or unset it"
        );
    }
}

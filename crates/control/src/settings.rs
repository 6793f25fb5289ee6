//! The options of `mitra run`, as environment variables of the program.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use mitra_failover::{Policy, Writes};

use crate::{Rails, Script};

const RAILS: &str = "MITRA_RAILS";
const POLICY: &str = "MITRA_POLICY";
const WRITES: &str = "MITRA_WRITES";
const LOG: &str = "MITRA_LOG";
const VERBOSE: &str = "MITRA_VERBOSE";
const FAULTS: &str = "MITRA_FAULTS";
const RUN_DIR: &str = "MITRA_RUN_DIR";

/// How the program's device is to be. A variable that is not set, or empty, leaves the default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// `MITRA_RAILS`: a number of rails, or addresses separated by commas. By default 1.
    pub rails: Rails,
    /// `MITRA_POLICY`: what to do with what was in flight when a rail failed. By default `exact`.
    pub policy: Policy,
    /// `MITRA_WRITES`: what becomes of a WRITE that may or may not have been executed. By default `strict`.
    pub writes: Writes,
    /// `MITRA_LOG`: whether connections that span rails keep a completion log. By default not.
    pub log: bool,
    /// `MITRA_VERBOSE`: whether refused calls are explained. By default not.
    pub verbose: bool,
    /// `MITRA_FAULTS`: what befalls the rails. By default nothing.
    pub faults: Script,
    /// `MITRA_RUN_DIR`: where the program listens for `mitra fault`. By default it does not.
    pub run_dir: Option<PathBuf>,
}

/// A variable that is not understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable}={value:?}: {why}")]
pub struct SettingsError {
    /// Its name.
    pub variable: &'static str,
    /// What it holds.
    pub value: OsString,
    /// What it may be.
    pub why: String,
}

impl Settings {
    /// As environment variables.
    pub fn to_env(&self) -> [(&'static str, OsString); 7] {
        [
            (RAILS, self.rails.to_string().into()),
            (POLICY, self.policy.to_string().into()),
            (WRITES, self.writes.to_string().into()),
            (LOG, u8::from(self.log).to_string().into()),
            (VERBOSE, u8::from(self.verbose).to_string().into()),
            (FAULTS, self.faults.to_string().into()),
            (RUN_DIR, self.run_dir.clone().unwrap_or_default().into()),
        ]
    }

    /// From the environment of this process.
    ///
    /// # Errors
    /// The first variable that is not understood, or a fault at a rail that is not there.
    pub fn from_env() -> Result<Settings, SettingsError> {
        Settings::from_variables(env::var_os)
    }

    fn from_variables(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Settings, SettingsError> {
        let get = |name| variable(name).filter(|value| !value.is_empty());
        let settings = Settings {
            rails: parse(RAILS, get(RAILS))?,
            policy: parse(POLICY, get(POLICY))?,
            writes: parse(WRITES, get(WRITES))?,
            log: parse::<Switch>(LOG, get(LOG))?.0,
            verbose: parse::<Switch>(VERBOSE, get(VERBOSE))?.0,
            faults: parse(FAULTS, get(FAULTS))?,
            run_dir: get(RUN_DIR).map(PathBuf::from),
        };
        let error = |why| SettingsError { variable: FAULTS, value: settings.faults.to_string().into(), why };
        settings.faults.check(settings.rails.count()).map_err(error)?;
        Ok(settings)
    }
}

/// A variable that is 1 or 0.
#[derive(Default)]
struct Switch(bool);

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Switch, String> {
        match text {
            "0" => Ok(Switch(false)),
            "1" => Ok(Switch(true)),
            _ => Err("say 1 or 0".to_owned()),
        }
    }
}

fn parse<T>(variable: &'static str, value: Option<OsString>) -> Result<T, SettingsError>
where
    T: FromStr<Err: Display> + Default,
{
    let Some(value) = value else { return Ok(T::default()) };
    let parsed = match value.to_str() {
        Some(text) => text.parse().map_err(|why: T::Err| why.to_string()),
        None => Err("it is not UTF-8; set it anew, or unset it".to_owned()),
    };
    parsed.map_err(|why| SettingsError { variable, value, why })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let value =
            |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Settings::from_variables(value).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_set_is_the_default() {
        assert_eq!(from(&[]), Ok(Settings::default()));
        assert_eq!(from(&[(RAILS, ""), (FAULTS, ""), (RUN_DIR, "")]), Ok(Settings::default()));
        let Settings { rails, policy, writes, log, verbose, faults, run_dir } = Settings::default();
        assert_eq!((rails, policy, writes), (Rails::Count(1), Policy::Exact, Writes::Strict));
        assert!(faults.0.is_empty() && run_dir.is_none() && !log && !verbose);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let settings = Settings {
            rails: "10.0.0.1,10.1.0.1".parse().unwrap(),
            policy: Policy::Blanket,
            writes: Writes::Repeatable,
            log: true,
            verbose: true,
            faults: "rail1 down at 2s; rail1 up at 3s".parse().unwrap(),
            run_dir: Some("/run/user/0/mitra".into()),
        };
        for settings in [settings, Settings::default()] {
            let variables = settings.to_env();
            let value =
                |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            assert_eq!(Settings::from_variables(value).as_ref(), Ok(&settings));
        }
    }

    #[test]
    fn errors_name_the_variable_what_it_holds_and_what_it_may_be() {
        for (variable, value, says) in [
            (
                RAILS,
                "many",
                "MITRA_RAILS=\"many\": \"many\" is neither a number of rails nor an IP address; say",
            ),
            (POLICY, "best", "MITRA_POLICY=\"best\": \"best\" is none of the choices; say exact,"),
            (LOG, "yes", "MITRA_LOG=\"yes\": say 1 or 0"),
            (WRITES, "lax", "MITRA_WRITES=\"lax\": \"lax\" is none of the choices; say strict or"),
            (FAULTS, "rail0 gone", "MITRA_FAULTS=\"rail0 gone\": no fault is called \"gone\"; say"),
            (FAULTS, "rail1 up", "MITRA_FAULTS=\"rail1 up\": `rail1 up`: there is rail0 only; name"),
        ] {
            let error = from(&[(variable, value)]).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        let error = Settings::from_variables(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(error.to_string(), "MITRA_RAILS=\"\\xFF\": it is not UTF-8; set it anew, or unset it");
    }
}

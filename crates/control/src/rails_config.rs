//! The configuration of a device's rails, and its text form.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use mitra_failover::MAX_RAILS;

/// The rails of a device: at least one, and at most [`MAX_RAILS`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RailsConfig {
    /// This number of rails. Each process takes a free loopback address for each rail, so only
    /// processes of the same machine can connect.
    Count(usize),
    /// One rail at each of these addresses, in this order. Only one NIC can bind an address, so
    /// only one process at a time can use this configuration.
    Addresses(Vec<IpAddr>),
    /// One rail on each of these NICs of the kernel, by name or address, in this order. The text
    /// form is that of `MITRA_DEVICE` ([`RailsConfig::devices`]).
    Devices(Vec<String>),
}

impl Default for RailsConfig {
    fn default() -> RailsConfig {
        RailsConfig::Count(1)
    }
}

impl RailsConfig {
    /// Returns the number of rails.
    pub fn count(&self) -> usize {
        match self {
            RailsConfig::Count(count) => *count,
            RailsConfig::Addresses(addresses) => addresses.len(),
            RailsConfig::Devices(names) => names.len(),
        }
    }

    /// Parses the names of NICs of the kernel, with commas between. The names themselves are not
    /// checked.
    ///
    /// # Errors
    /// If there are none, or more than [`MAX_RAILS`], or one is listed twice.
    pub fn devices(text: &str) -> Result<RailsConfig, String> {
        let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(String::is_empty) {
            return Err("a device has no name; example: mlx5_0,mlx5_1".to_owned());
        }
        check_list(&names, "one device is one rail, so list each device once")?;
        Ok(RailsConfig::Devices(names))
    }
}

/// # Errors
/// If the list of rails is too long, or contains an entry twice.
fn check_list(list: &[impl PartialEq + fmt::Display], why_once: &str) -> Result<(), String> {
    check_count(list.len())?;
    match (1..list.len()).find(|&i| list[..i].contains(&list[i])) {
        Some(duplicate) => Err(format!("{} is listed twice; {why_once}", list[duplicate])),
        None => Ok(()),
    }
}

fn check_count(count: usize) -> Result<(), String> {
    match (1..=MAX_RAILS).contains(&count) {
        true => Ok(()),
        false => Err(format!("{count} rails are configured; use 1 to {MAX_RAILS}")),
    }
}

impl fmt::Display for RailsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RailsConfig::Count(count) => count.fmt(f),
            RailsConfig::Addresses(addresses) => {
                let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
                f.write_str(&addresses.join(","))
            }
            RailsConfig::Devices(names) => f.write_str(&names.join(",")),
        }
    }
}

impl FromStr for RailsConfig {
    type Err = String;

    fn from_str(s: &str) -> Result<RailsConfig, String> {
        if let Ok(count) = s.parse() {
            check_count(count)?;
            return Ok(RailsConfig::Count(count));
        }
        let addresses = s.split(',').map(parse_address).collect::<Result<Vec<_>, _>>()?;
        check_list(&addresses, "one address carries one NIC, so list each address once")?;
        Ok(RailsConfig::Addresses(addresses))
    }
}

fn parse_address(s: &str) -> Result<IpAddr, String> {
    s.trim().parse().map_err(|_| {
        format!("{s:?} is neither a number of rails nor an IP address; example: 2, or 10.0.0.1,10.1.0.1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_parses_and_displays() {
        for text in ["1", "8", "127.0.0.5", "10.0.0.1,10.1.0.1", "fd00::1,10.0.0.1"] {
            assert_eq!(text.parse::<RailsConfig>().unwrap().to_string(), text);
        }
        let spaced: RailsConfig = "10.0.0.1, 10.1.0.1".parse().unwrap();
        assert_eq!(spaced.count(), 2);
    }

    #[test]
    fn devices_are_listed_once() {
        let devices = |text| RailsConfig::devices(text).map(|rails| (rails.count(), rails.to_string()));
        assert_eq!(devices("mlx5_0, 10.0.0.1"), Ok((2, "mlx5_0,10.0.0.1".to_owned())));
        for (text, expected) in [("a,b,a", "a is listed twice"), ("a,", "no name"), ("", "no name")] {
            assert!(devices(text).unwrap_err().contains(expected), "{text:?}");
        }
        assert!(devices("a,b,c,d,e,f,g,h,i").unwrap_err().starts_with("9 rails"));
    }

    #[test]
    fn parse_errors_quote_input() {
        for (text, expected) in [
            ("0", "0 rails are configured; use 1 to 8"),
            ("9", "9 rails"),
            ("99999999999999999999", "\"99999999999999999999\" is neither"),
            ("-1", "\"-1\" is neither"),
            ("", "\"\" is neither a number of rails nor an IP address"),
            ("10.0.0.1,,10.0.0.2", "\"\" is neither"),
            ("10.0.0.1,eth0", "\"eth0\" is neither"),
            ("10.0.0.1,10.0.0.2,10.0.0.1", "10.0.0.1 is listed twice"),
            ("::1,::2,::3,::4,::5,::6,::7,::8,::9", "9 rails"),
        ] {
            let error = text.parse::<RailsConfig>().unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}

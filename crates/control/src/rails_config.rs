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
        }
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
        }
    }
}

impl FromStr for RailsConfig {
    type Err = String;

    fn from_str(s: &str) -> Result<RailsConfig, String> {
        let rails = match s.parse() {
            Ok(count) => RailsConfig::Count(count),
            Err(_) => RailsConfig::Addresses(s.split(',').map(parse_address).collect::<Result<_, _>>()?),
        };
        if !(1..=MAX_RAILS).contains(&rails.count()) {
            return Err(format!("{} rails are configured; use 1 to {MAX_RAILS}", rails.count()));
        }
        if let RailsConfig::Addresses(addresses) = &rails
            && let Some(duplicate) = (1..addresses.len()).find(|&i| addresses[..i].contains(&addresses[i]))
        {
            return Err(format!(
                "{} is listed twice; one address carries one NIC, so list each address once",
                addresses[duplicate]
            ));
        }
        Ok(rails)
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

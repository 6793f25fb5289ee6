//! Which rails a program's device has.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use mitra_failover::MAX_RAILS;

/// The rails of a device. At most [`MAX_RAILS`], at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rails {
    /// So many, at free loopback addresses, others in each process: for programs on one machine.
    Count(usize),
    /// One at each of these addresses, in this order. An address carries one NIC, so one process can have them.
    Addresses(Vec<IpAddr>),
}

impl Default for Rails {
    fn default() -> Rails {
        Rails::Count(1)
    }
}

impl Rails {
    /// How many.
    pub fn count(&self) -> usize {
        match self {
            Rails::Count(count) => *count,
            Rails::Addresses(addresses) => addresses.len(),
        }
    }
}

impl fmt::Display for Rails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rails::Count(count) => count.fmt(f),
            Rails::Addresses(addresses) => {
                let words: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

impl FromStr for Rails {
    type Err = String;

    fn from_str(s: &str) -> Result<Rails, String> {
        let rails = match s.parse() {
            Ok(count) => Rails::Count(count),
            Err(_) => Rails::Addresses(s.split(',').map(address).collect::<Result<_, _>>()?),
        };
        if !(1..=MAX_RAILS).contains(&rails.count()) {
            return Err(format!("{} rails are asked for; say 1 to {MAX_RAILS}", rails.count()));
        }
        if let Rails::Addresses(addresses) = &rails
            && let Some(twice) = (1..addresses.len()).find(|&i| addresses[..i].contains(&addresses[i]))
        {
            return Err(format!(
                "{} is named twice; one address carries one NIC, so name each once",
                addresses[twice]
            ));
        }
        Ok(rails)
    }
}

fn address(s: &str) -> Result<IpAddr, String> {
    s.trim().parse().map_err(|_| {
        format!(
            "{s:?} is neither a number of rails nor an IP address; say for example 2, or 10.0.0.1,10.1.0.1"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_read_as_they_are_written() {
        for text in ["1", "8", "127.0.0.5", "10.0.0.1,10.1.0.1", "fd00::1,10.0.0.1"] {
            assert_eq!(text.parse::<Rails>().unwrap().to_string(), text);
        }
        let spaced: Rails = "10.0.0.1, 10.1.0.1".parse().unwrap();
        assert_eq!(spaced.count(), 2);
    }

    #[test]
    fn bad_ones_are_named() {
        for (text, says) in [
            ("0", "0 rails are asked for; say 1 to 8"),
            ("9", "9 rails"),
            ("99999999999999999999", "\"99999999999999999999\" is neither"),
            ("-1", "\"-1\" is neither"),
            ("", "\"\" is neither a number of rails nor an IP address"),
            ("10.0.0.1,,10.0.0.2", "\"\" is neither"),
            ("10.0.0.1,eth0", "\"eth0\" is neither"),
            ("10.0.0.1,10.0.0.2,10.0.0.1", "10.0.0.1 is named twice"),
            ("::1,::2,::3,::4,::5,::6,::7,::8,::9", "9 rails"),
        ] {
            let error = text.parse::<Rails>().unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}

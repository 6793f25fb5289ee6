use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The address of a metrics endpoint. Its text is `ADDRESS:PORT`, or a port alone, which means that
/// port of the loopback address. Port 0 means any free port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MetricsAddress(pub SocketAddr);

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(s: &str) -> Result<MetricsAddress, String> {
        if let Ok(port) = s.parse::<u16>() {
            return Ok(MetricsAddress((Ipv4Addr::LOCALHOST, port).into()));
        }
        s.parse().map(MetricsAddress).map_err(|_| {
            format!("{s:?} is neither a port nor ADDRESS:PORT; example: 9464, or 10.0.0.1:9464, or 0 for a free port")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_alone_is_on_the_loopback_address() {
        for (text, expected) in [
            ("9464", "127.0.0.1:9464"),
            ("0", "127.0.0.1:0"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:7", "[::1]:7"),
        ] {
            let address: MetricsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
            assert_eq!(expected.parse(), Ok(address));
        }
        for wrong in ["", "65536", "localhost", "10.0.0.1", "-1"] {
            assert!(wrong.parse::<MetricsAddress>().unwrap_err().contains("example: 9464"), "{wrong}");
        }
    }
}

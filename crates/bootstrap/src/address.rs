//! The address of a port: `HOST:PORT/NAME`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Maximum bytes of a port's name.
const NAME_BYTES_MAX: usize = 200;
/// Maximum bytes of a host name (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 253;

/// A host, by number or by name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum HostAddress {
    /// `10.0.0.1` or `[fd00::1]`.
    Ip(IpAddr),
    /// `alpha.cluster`, to be resolved at the dial.
    Name(String),
}

/// A host and a TCP port: the endpoint at which a fabric listens.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Endpoint {
    /// The host.
    pub host: HostAddress,
    /// The TCP port; 0 lets the system choose, for listeners.
    pub port: u16,
}

/// The full address of a fabric's port.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Address {
    /// The endpoint of its fabric.
    pub endpoint: Endpoint,
    /// Its name at that endpoint.
    pub name: String,
}

/// Why a text is no address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddressError {
    /// It has no `/NAME`.
    NoName,
    /// The name is empty, longer than 200 bytes, or has blanks, `/` or control characters.
    Name(String),
    /// There is no `:PORT`, or it is no number up to 65,535.
    Port(String),
    /// The host is neither a number nor a name; IPv6 needs brackets.
    Host(String),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => write!(f, "no name: write HOST:PORT/NAME"),
            Self::Name(name) => write!(
                f,
                "`{}` is no name: 1 to {NAME_BYTES_MAX} bytes without blanks and slashes",
                name.escape_debug()
            ),
            Self::Port(text) => {
                write!(f, "`{}` has no port: write HOST:PORT", text.escape_debug())
            }
            Self::Host(text) => write!(
                f,
                "`{}` is no host: write 10.0.0.1, [fd00::1] or alpha.example",
                text.escape_debug()
            ),
        }
    }
}

impl std::error::Error for AddressError {}

impl HostAddress {
    fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Host(text.to_owned());
        if let Some(inside) = text.strip_prefix('[') {
            let number = inside.strip_suffix(']').ok_or_else(wrong)?;
            let number = Ipv6Addr::from_str(number).map_err(|_| wrong())?;
            return Ok(Self::Ip(IpAddr::V6(number)));
        }
        if let Ok(number) = Ipv4Addr::from_str(text) {
            return Ok(Self::Ip(IpAddr::V4(number)));
        }
        let label = |label: &str| {
            let inside = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            !label.is_empty() && label.len() <= 63 && label.chars().all(inside)
        };
        // A last label of only digits is a mistyped number, never a name.
        let last = text.rsplit('.').next().unwrap_or_default();
        let digits = last.chars().all(|c| c.is_ascii_digit());
        if text.len() > HOST_BYTES_MAX || digits || !text.split('.').all(label) {
            return Err(wrong());
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(number)) => write!(f, "{number}"),
            Self::Ip(IpAddr::V6(number)) => write!(f, "[{number}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Endpoint {
    /// Resolves it to socket addresses, at least one. May block for seconds: not for a thread that others
    /// wait for.
    ///
    /// # Errors
    /// What the system's resolver says.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let name = match &self.host {
            HostAddress::Ip(number) => return Ok(vec![SocketAddr::new(*number, self.port)]),
            HostAddress::Name(name) => name,
        };
        let found: Vec<_> = (name.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        Ok(found)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self { host: HostAddress::Ip(address.ip()), port: address.port() }
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Port(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let plain = !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
        if !plain {
            return Err(wrong());
        }
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Self { host: HostAddress::parse(host)?, port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// Checks the name of a port.
    ///
    /// # Errors
    /// `Name` if it is invalid.
    pub fn check_name(name: &str) -> Result<(), AddressError> {
        let apart = |c: char| c.is_whitespace() || c.is_control() || c == '/';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(apart) {
            return Err(AddressError::Name(name.to_owned()));
        }
        Ok(())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (endpoint, name) = text.split_once('/').ok_or(AddressError::NoName)?;
        Self::check_name(name)?;
        Ok(Self { endpoint: endpoint.parse()?, name: name.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoint, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_testkit::Random;

    #[test]
    fn the_three_forms_of_hosts_are_read() {
        for text in ["10.0.0.1:7000/a", "[fd00::1]:1/n-2", "alpha.example_net:65535/x:y"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let address: Address = "Alpha:7/N".parse().unwrap();
        assert_eq!(address.endpoint.host, HostAddress::Name("alpha".into()), "hosts have no case");
        assert_eq!(address.name, "N", "names have");
    }

    #[test]
    fn invalid_part_is_named() {
        use AddressError::*;
        type Judge = fn(&AddressError) -> bool;
        let cases: [(&str, Judge); 18] = [
            ("", |e| *e == NoName),
            ("10.0.0.1:7000", |e| *e == NoName),
            ("10.0.0.1:7000/", |e| matches!(e, Name(_))),
            ("10.0.0.1:7000/a b", |e| matches!(e, Name(_))),
            ("10.0.0.1:7000/a/b", |e| matches!(e, Name(_))),
            ("10.0.0.1:7000/a\u{7}", |e| matches!(e, Name(_))),
            ("10.0.0.1/a", |e| matches!(e, Port(_))),
            ("10.0.0.1:/a", |e| matches!(e, Port(_))),
            ("10.0.0.1:+7/a", |e| matches!(e, Port(_))),
            ("10.0.0.1:65536/a", |e| matches!(e, Port(_))),
            (":7000/a", |e| matches!(e, Host(_))),
            ("fd00::1:7000/a", |e| matches!(e, Host(_))),
            ("[fd00::1:7000/a", |e| matches!(e, Host(_))),
            ("[10.0.0.1]:7000/a", |e| matches!(e, Host(_))),
            ("10.0.0.256:7000/a", |e| matches!(e, Host(_))),
            ("10.0.0:7000/a", |e| matches!(e, Host(_))),
            ("a..b:7000/a", |e| matches!(e, Host(_))),
            ("a b:7000/a", |e| matches!(e, Host(_))),
        ];
        for (text, right) in cases {
            let error = text.parse::<Address>().unwrap_err();
            assert!(right(&error), "{text:?}: {error:?}");
            assert!(!error.to_string().contains('\u{7}'), "no control characters in messages");
        }
    }

    /// Any text that parses is printed so that it parses to the same value, and nothing panics.
    #[test]
    fn parsed_address_survives_printing() {
        const PIECES: [&str; 24] = [
            "1", "25", "255", ".", ".", ":", ":", "/", "/", "[", "]", "fd00", "::", "a", "Z", "-",
            "_", " ", "65535", "70000", "\u{e9}", "\n", "x.y", "%1",
        ];
        let (mut random, mut read) = (Random::new(0x5eed), 0);
        for _ in 0..300_000 {
            let pieces = 1 + random.index(9);
            let text: String = (0..pieces).map(|_| *random.pick(&PIECES)).collect();
            if let Ok(address) = text.parse::<Address>() {
                read += 1;
                assert_eq!(address.to_string().parse(), Ok(address), "{text:?}");
            }
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                assert_eq!(endpoint.to_string().parse(), Ok(endpoint), "{text:?}");
            }
        }
        assert!(read > 50, "only {read} addresses were drawn");
    }

    /// Addresses composed of valid parts all parse.
    #[test]
    fn good_parts_make_good_addresses() {
        let mut random = Random::new(7);
        for _ in 0..20_000 {
            let mut word = || random.word();
            let host = match word() % 3 {
                0 => HostAddress::Ip(IpAddr::V4(Ipv4Addr::from_bits(word() as u32))),
                1 => HostAddress::Ip(IpAddr::V6(Ipv6Addr::from_bits(
                    u128::from(word()) << 97 | u128::from(word() % 3) << 64 | u128::from(word()),
                ))),
                _ => HostAddress::Name(format!("h{}.n{}-x", word(), word())),
            };
            let endpoint = Endpoint { host, port: word() as u16 };
            let address = Address { endpoint, name: format!("p{}:{}", word(), word()) };
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}

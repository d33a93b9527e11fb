//! Reads the files, symbolic links, device nodes and routes of one machine for the checks.
//!
//! [`Host`] is a trait so that tests can check recorded machines. Content may be hostile or broken (a guest's
//! adapter fills sysfs too): its length is bounded here, and text is made printable before it is shown.

use rustix::net::sockopt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

/// Maximum bytes read of one file; `/proc/mounts` and PCI configuration fit.
const BYTES_MAX: usize = 256 << 10;
/// Maximum names read of one folder; the longest GID table has 1,024.
const NAMES_MAX: usize = 4_096;
/// Maximum characters of a value that are shown.
const SHOWN_MAX: usize = 80;

/// Why something could not be read or opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It does not exist (ENOENT or ENOTDIR).
    Missing,
    /// Its mode or owner forbids it (EACCES).
    Access,
    /// A rule other than its mode forbids it, such as a device control group (EPERM).
    Permission,
    /// The kernel has no value for it (EINVAL), as for unset GID entries.
    Invalid,
    /// Another error.
    Other,
}

impl From<&std::io::Error> for Refusal {
    fn from(error: &std::io::Error) -> Self {
        match rustix::io::Errno::from_io_error(error) {
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Self::Missing,
            Some(rustix::io::Errno::ACCESS) => Self::Access,
            Some(rustix::io::Errno::PERM) => Self::Permission,
            Some(rustix::io::Errno::INVAL) => Self::Invalid,
            _ => Self::Other,
        }
    }
}

/// The route that packets to a peer take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The peer's address.
    pub(crate) to: IpAddr,
    /// This machine's source address.
    pub(crate) from: IpAddr,
    /// Path MTU that the kernel currently knows.
    pub(crate) mtu: u32,
}

/// A machine to check: this one, a recorded one, or random content.
pub(crate) trait Host {
    /// Returns the content of a file.
    fn read(&self, path: &str) -> Result<Vec<u8>, Refusal>;
    /// Returns the names in a folder, in any order; none if the folder does not exist.
    fn list(&self, path: &str) -> Vec<String>;
    /// Returns the target of a symbolic link.
    fn link(&self, path: &str) -> Option<String>;
    /// Returns the path with all symbolic links resolved; `None` if it does not exist.
    fn resolve(&self, path: &str) -> Option<String>;
    /// Opens a device node for reading and writing, and closes it.
    fn open(&self, path: &str) -> Result<(), Refusal>;
    /// Returns an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns the route to a peer, given by name or address.
    fn route(&self, peer: &str) -> Result<Route, String>;
}

/// Parsing, the same for every machine.
impl dyn Host + '_ {
    /// Returns a file as printable text, trimmed; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(|bytes| printable(&bytes))
    }

    /// Returns the first line of a file, shortened for printing; `None` if it is empty or cannot be read.
    pub(crate) fn value(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let words: Vec<_> = text.lines().next()?.split_whitespace().collect();
        let line = words.join(" ");
        (!line.is_empty()).then(|| line.chars().take(SHOWN_MAX).collect())
    }

    /// Returns a file's value if it is a valid path component.
    pub(crate) fn name(&self, path: &str) -> Option<String> {
        self.value(path).filter(|name| is_name(name))
    }

    /// Returns a file's value as a number, in decimal or after `0x`.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        number(&self.value(path)?)
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some()
    }

    /// Returns the printable names in a folder, sorted by prefix and then by trailing number.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let mut names = self.list(path);
        names.retain(|name| is_name(name));
        names.sort_by_cached_key(|name| (prefix(name).to_owned(), suffix(name), name.clone()));
        names.truncate(NAMES_MAX);
        names
    }

    /// Returns a value of `/proc/meminfo`, such as `MemTotal:  24 kB`, in bytes.
    pub(crate) fn meminfo_bytes(&self, name: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let mut words = rest.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        let scale = if words.next() == Some("kB") { 1_024 } else { 1 };
        Some(number.saturating_mul(scale))
    }

    /// Returns the value of a line of `/proc/self/status`.
    pub(crate) fn status(&self, name: &str) -> Option<String> {
        let text = self.text("/proc/self/status")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(rest.trim().to_owned())
    }

    /// Returns the soft and hard limit of a line of `/proc/self/limits`; `None` if there is no such line.
    pub(crate) fn limit(&self, name: &str) -> Option<(Amount, Amount)> {
        let text = self.text("/proc/self/limits")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut words = rest.split_whitespace().map(Amount::parse);
        Some((words.next()??, words.next()??))
    }
}

/// A limit, or unlimited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Amount {
    Of(u64),
    Unlimited,
}

impl Amount {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "unlimited" | "max" => Some(Self::Unlimited),
            digits => digits.parse().ok().map(Self::Of),
        }
    }
}

/// Parses a number, in decimal or after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns bytes as text. The kernel writes ASCII; other bytes are replaced, since terminals act on some.
fn printable(bytes: &[u8]) -> String {
    let bytes = bytes.get(..BYTES_MAX).unwrap_or(bytes).trim_ascii();
    let plain = |byte: u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\n' | b'\t');
    bytes.iter().map(|byte| if plain(*byte) { char::from(*byte) } else { '?' }).collect()
}

/// Whether a name is a printable path component, as all names made by kernels are.
fn is_name(name: &str) -> bool {
    let fits = !name.is_empty() && name.len() <= SHOWN_MAX && name != "." && name != "..";
    fits && name.chars().all(|c| c.is_ascii_graphic() && c != '/')
}

fn prefix(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

fn suffix(name: &str) -> u64 {
    name.get(prefix(name).len()..).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Quotes a word for the shell: device names may contain nearly any character.
pub(crate) fn word(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:/@=+,".contains(c);
    if !name.is_empty() && name.chars().all(plain) && !name.starts_with('-') {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

/// The machine that this process runs on, below a root folder.
pub(crate) struct Live {
    root: PathBuf,
}

impl Live {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Host for Live {
    fn read(&self, path: &str) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(self.at(path)).map_err(|e| Refusal::from(&e))?;
        let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX);
        file.take(limit).read_to_end(&mut bytes).map_err(|e| Refusal::from(&e))?;
        Ok(bytes)
    }

    fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten();
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.take(NAMES_MAX).collect()
    }

    fn link(&self, path: &str) -> Option<String> {
        std::fs::read_link(self.at(path)).ok()?.to_str().map(str::to_owned)
    }

    fn resolve(&self, path: &str) -> Option<String> {
        let full = self.at(path).canonicalize().ok()?;
        let inside = full.strip_prefix(self.root.canonicalize().ok()?).ok()?;
        Path::new("/").join(inside).to_str().map(str::to_owned)
    }

    fn open(&self, path: &str) -> Result<(), Refusal> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).open(self.at(path)).map_err(|e| Refusal::from(&e))?;
        Ok(())
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn route(&self, peer: &str) -> Result<Route, String> {
        route(peer).map_err(|error| error.to_string())
    }
}

/// UDP port of the route query (discard); no packet is sent.
const PORT: u16 = 9;

/// Queries the kernel for the route by connecting a UDP socket, which sends no packet.
fn route(peer: &str) -> std::io::Result<Route> {
    let mut addresses = (peer, PORT).to_socket_addrs()?;
    let to = addresses.next().ok_or(std::io::ErrorKind::NotFound)?;
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    let mtu = match to {
        SocketAddr::V4(_) => {
            sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
            sockopt::ip_mtu(&socket)?
        }
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
            sockopt::ipv6_mtu(&socket)?
        }
    };
    Ok(Route { to: to.ip(), from: socket.local_addr()?.ip(), mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_number_and_unprintable_names_are_dropped() {
        struct Names;
        impl Host for Names {
            fn read(&self, _: &str) -> Result<Vec<u8>, Refusal> {
                Ok(b"\x1b[31m 0x1f \x00\n".to_vec())
            }
            fn list(&self, _: &str) -> Vec<String> {
                let names = ["gid10", "gid9", "..", "a b", "\x1b[2J", "x/y", "", "gid", "a"];
                names.map(str::to_owned).to_vec()
            }
            fn link(&self, _: &str) -> Option<String> {
                None
            }
            fn resolve(&self, _: &str) -> Option<String> {
                None
            }
            fn open(&self, _: &str) -> Result<(), Refusal> {
                Ok(())
            }
            fn variable(&self, _: &str) -> Option<String> {
                None
            }
            fn route(&self, _: &str) -> Result<Route, String> {
                Err("none".to_owned())
            }
        }
        let host: &dyn Host = &Names;
        assert_eq!(host.names("/"), ["a", "gid", "gid9", "gid10"]);
        assert_eq!(host.text("/").unwrap(), "?[31m 0x1f ?");
        assert_eq!(number("0x1f"), Some(31));
        assert_eq!((number("12"), number("-1"), number("0x")), (Some(12), None, None));
    }

    #[test]
    fn shell_words_are_quoted() {
        assert_eq!(word("enp59s0f0np0"), "enp59s0f0np0");
        assert_eq!(word("0000:3b:00.0"), "0000:3b:00.0");
        assert_eq!(word("eth0;reboot"), "'eth0;reboot'");
        assert_eq!(word("a'b"), "'a'\\''b'");
        assert_eq!((word(""), word("-x")), ("''".to_owned(), "'-x'".to_owned()));
    }

    #[test]
    fn live_host_reads_below_its_root() {
        let folder = std::env::temp_dir().join(format!("farside-doctor-{}", std::process::id()));
        let inner = folder.join("sys/class");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("state"), "4: ACTIVE\n").unwrap();
        std::os::unix::fs::symlink("class", folder.join("sys/link")).unwrap();
        let live = Live::new(&folder);
        let host: &dyn Host = &live;
        assert_eq!(host.value("/sys/link/state").as_deref(), Some("4: ACTIVE"));
        assert_eq!(host.resolve("/sys/link/state").as_deref(), Some("/sys/class/state"));
        assert_eq!(host.link("/sys/link").as_deref(), Some("class"));
        assert_eq!(host.names("/sys/class"), ["state"]);
        assert_eq!(host.read("/sys/none"), Err(Refusal::Missing));
        assert_eq!(host.open("/sys/class/state"), Ok(()));
        assert!(host.exists("/sys/class") && !host.exists("/sys/none"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn route_to_loopback_starts_at_loopback() {
        let found = route("127.0.0.1").unwrap();
        assert_eq!((found.to, found.from), (found.from, found.to));
        assert!(found.mtu >= 1_280, "{found:?}");
        assert!(Live::new("/").route("no such host").is_err());
    }
}

//! Recorded machines: a file tree in one text.
//!
//! ```text
//! # A comment.
//! /sys/class/infiniband/mlx5_0/fw_ver: 16.35.3006
//! /proc/meminfo:
//! | MemTotal:       263847596 kB
//! | MemAvailable:   251000000 kB
//! /sys/class/infiniband/mlx5_0 -> /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/mlx5_0
//! /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/{4..255} fails EINVAL
//! /sys/devices/pci0000:3a/0000:3a:00.0/config hex 86802f20 @60 1000 @100 ...
//! /dev/infiniband/uverbs0 opens
//! route 10.0.0.6 from 10.0.0.5 mtu 9000
//! variable LD_LIBRARY_PATH /opt/lib
//! ```
//!
//! `{4..255}` expands to each of these numbers. In `hex` lines `@60` sets the offset of the next byte.

use super::host::{Host, Refusal, Route};
use std::collections::BTreeMap;

/// Content of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    File(Vec<u8>),
    Link(String),
    Fails(Refusal),
}

/// A recorded machine.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recorded {
    pub(crate) nodes: BTreeMap<String, Node>,
    routes: BTreeMap<String, Route>,
    variables: BTreeMap<String, String>,
}

impl Recorded {
    /// Parses a recording; panics with the line if it is invalid.
    pub(crate) fn parse(text: &str) -> Self {
        let mut recorded = Self::default();
        let mut open: Option<String> = None;
        for line in text.lines() {
            if let Some(more) = line.strip_prefix('|') {
                let path = open.as_ref().unwrap_or_else(|| panic!("no file is open: {line}"));
                let Some(Node::File(bytes)) = recorded.nodes.get_mut(path) else {
                    panic!("not a file: {line}");
                };
                bytes.extend_from_slice(more.strip_prefix(' ').unwrap_or(more).as_bytes());
                bytes.push(b'\n');
                continue;
            }
            open = None;
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            open = recorded.line(line);
        }
        recorded
    }

    /// Parses a line; returns the path that following `|` lines extend.
    fn line(&mut self, line: &str) -> Option<String> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<_> = rest.split_whitespace().collect();
        match (first, words.as_slice()) {
            ("route", [peer, "from", from, "mtu", mtu]) => {
                let number = mtu.parse().unwrap_or_else(|_| panic!("{line}"));
                let address = |text: &str| text.parse().unwrap_or_else(|_| panic!("{line}"));
                let route = Route { to: address(peer), from: address(from), mtu: number };
                self.routes.insert((*peer).to_owned(), route);
                return None;
            }
            ("variable", [name, value]) => {
                self.variables.insert((*name).to_owned(), (*value).to_owned());
                return None;
            }
            _ => {}
        }
        if let Some(path) = first.strip_suffix(':') {
            let mut bytes = rest.as_bytes().to_vec();
            if !rest.is_empty() {
                bytes.push(b'\n');
            }
            self.put(path, &Node::File(bytes));
            return rest.is_empty().then(|| path.to_owned());
        }
        let node = match words.as_slice() {
            ["->", target] => Node::Link((*target).to_owned()),
            ["opens"] => Node::File(Vec::new()),
            ["fails", "EACCES"] => Node::Fails(Refusal::Access),
            ["fails", "EPERM"] => Node::Fails(Refusal::Permission),
            ["fails", "EINVAL"] => Node::Fails(Refusal::Invalid),
            ["fails", "EIO"] => Node::Fails(Refusal::Other),
            ["hex", pieces @ ..] => Node::File(bytes(pieces)),
            _ => panic!("not understood: {line}"),
        };
        self.put(first, &node);
        None
    }

    fn put(&mut self, path: &str, node: &Node) {
        for path in expanded(path) {
            let previous = self.nodes.insert(path.clone(), node.clone());
            assert!(previous.is_none(), "twice: {path}");
        }
    }

    /// Returns the path with all links resolved; `None` after 40 links.
    fn follow(&self, path: &str) -> Option<String> {
        let mut at = String::new();
        let mut rest: Vec<String> = parts(path).rev().map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = rest.pop() {
            if part == ".." {
                at.truncate(at.rfind('/').unwrap_or(0));
                continue;
            }
            let next = format!("{at}/{part}");
            let Some(Node::Link(target)) = self.nodes.get(&next) else {
                at = next;
                continue;
            };
            links += 1;
            if links > 40 {
                return None;
            }
            if target.starts_with('/') {
                at.clear();
            }
            rest.extend(parts(target).rev().map(str::to_owned));
        }
        Some(at)
    }

    fn node(&self, path: &str) -> Result<&Node, Refusal> {
        let path = self.follow(path).ok_or(Refusal::Other)?;
        self.nodes.get(&path).ok_or(Refusal::Missing)
    }
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

/// Expands `a{1..3}b`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let (range, after) = rest.split_once('}').unwrap_or_else(|| panic!("{path}"));
    let (first, last) = range.split_once("..").unwrap_or_else(|| panic!("{path}"));
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("{path}"));
    let numbers = number(first)..=number(last);
    numbers.flat_map(|number| expanded(&format!("{before}{number}{after}"))).collect()
}

fn bytes(pieces: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    for piece in pieces {
        if let Some(offset) = piece.strip_prefix('@') {
            at = usize::from_str_radix(offset, 16).unwrap_or_else(|_| panic!("{piece}"));
            continue;
        }
        for pair in piece.as_bytes().chunks(2) {
            let pair = std::str::from_utf8(pair).unwrap_or_else(|_| panic!("{piece}"));
            let byte = u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("{piece}"));
            bytes.resize(bytes.len().max(at + 1), 0);
            bytes[at] = byte;
            at += 1;
        }
    }
    bytes
}

impl Host for Recorded {
    fn read(&self, path: &str) -> Result<Vec<u8>, Refusal> {
        match self.node(path)? {
            Node::File(bytes) => Ok(bytes.clone()),
            Node::Fails(refusal) => Err(*refusal),
            Node::Link(_) => Err(Refusal::Other),
        }
    }

    fn list(&self, path: &str) -> Vec<String> {
        let Some(folder) = self.follow(path) else {
            return Vec::new();
        };
        let folder = format!("{folder}/");
        let inside = self.nodes.range(folder.clone()..).map(|(path, _)| path);
        let inside = inside.take_while(|path| path.starts_with(&folder));
        let mut names: Vec<_> = inside
            .filter_map(|path| path[folder.len()..].split('/').next())
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        let (folder, name) = path.rsplit_once('/')?;
        match self.nodes.get(&format!("{}/{name}", self.follow(folder)?))? {
            Node::Link(target) => Some(target.clone()),
            Node::File(_) | Node::Fails(_) => None,
        }
    }

    fn resolve(&self, path: &str) -> Option<String> {
        let path = self.follow(path)?;
        (self.nodes.contains_key(&path) || !self.list(&path).is_empty()).then_some(path)
    }

    fn open(&self, path: &str) -> Result<(), Refusal> {
        self.read(path).map(drop)
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn route(&self, peer: &str) -> Result<Route, String> {
        self.routes.get(peer).cloned().ok_or_else(|| "Name or service not known".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_parses_to_its_files() {
        let text = "\
# comment
/a/b: one
/a/c:
| two
|   three
/a/n{1..2} fails EINVAL
/l -> /a
/a/up -> ../m/x
/m/x: deep
/h hex 0102 @4 ff
route 10.0.0.6 from 10.0.0.5 mtu 9000
variable V value
";
        let host = Recorded::parse(text);
        assert_eq!(host.read("/a/b").unwrap(), b"one\n");
        assert_eq!(host.read("/l/c").unwrap(), b"two\n  three\n");
        assert_eq!(host.read("/a/n2"), Err(Refusal::Invalid));
        assert_eq!(host.read("/a/x"), Err(Refusal::Missing));
        assert_eq!(host.list("/l"), ["b", "c", "n1", "n2", "up"]);
        assert_eq!(host.read("/h").unwrap(), [1, 2, 0, 0, 0xff]);
        assert_eq!(host.resolve("/l/up").as_deref(), Some("/m/x"));
        assert_eq!((host.link("/l").as_deref(), host.resolve("/none")), (Some("/a"), None));
        assert_eq!(host.route("10.0.0.6").unwrap().mtu, 9_000);
        assert_eq!(host.variable("V").as_deref(), Some("value"));
    }
}

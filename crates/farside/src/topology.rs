//! The sockets of this machine: processors, and the memory next to them (NUMA; paper 000, sections II-B4 and III-D).
//!
//! ```
//! use farside::topology::Topology;
//!
//! let machine = Topology::of_system()?;
//! let socket = machine.socket(0)?;
//! socket.run(|| assert!(!socket.processors().is_empty()))?; // on a thread that is bound to the socket
//! # Ok::<(), farside::Error>(())
//! ```
//!
//! A socket is a NUMA node of the system with its processors, or a group of processors that a text names. Memory is
//! placed by the thread that touches it first, moved where that was not enough, and checked: memory that the system does
//! not put on the socket is an error.

use crate::{Error, ErrorCode};
use farside_fabric::Arena;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Most sockets of a topology.
pub const SOCKETS_MAX: usize = 64;

/// The folder of the system's NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// The sockets of a machine, numbered from 0.
///
/// Its text is the processors of each socket: `0-7;8-15`. [`FromStr`] reads the same form.
///
/// ```
/// use farside::topology::Topology;
///
/// let given: Topology = "0".parse()?; // one socket, with processor 0
/// assert_eq!(given.to_string(), "0");
/// assert!("0;0".parse::<Topology>().is_err()); // a processor is of one socket
/// # Ok::<(), farside::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    sockets: Vec<CpuSocket>,
}

/// A socket: processors of this machine, and the NUMA nodes whose memory is next to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuSocket {
    number: u16,
    processors: Vec<u16>,
    nodes: Vec<u32>,
    /// The machine has memory on other nodes.
    has_others: bool,
}

impl Topology {
    /// Returns the sockets of the system: a NUMA node each, with those of its processors that this thread may use. One
    /// socket where the system reports no nodes.
    ///
    /// # Errors
    /// `System` if it does not report the processors of this thread.
    pub fn of_system() -> Result<Self, Error> {
        Ok(Self::of(&SystemNodes::now()?))
    }

    fn of(machine: &SystemNodes) -> Self {
        let sockets = machine.nodes.iter().map(|(node, processors)| (processors.clone(), *node));
        let sockets = sockets.filter(|(processors, _)| !processors.is_empty()).enumerate();
        let sockets = sockets.map(|(number, (processors, node))| CpuSocket {
            number: number as u16,
            processors,
            nodes: vec![node],
            has_others: machine.has_memory_beyond(&[node]),
        });
        Self { sockets: sockets.take(SOCKETS_MAX).collect() }
    }

    /// Returns the sockets that a text gives, on this machine.
    fn given(text: &str, machine: &SystemNodes) -> Result<Self, Error> {
        let mut sockets: Vec<CpuSocket> = Vec::new();
        for part in text.split(';') {
            if sockets.len() == SOCKETS_MAX {
                return Err(wrong(format!("more than {SOCKETS_MAX} sockets")));
            }
            let number = sockets.len() as u16;
            let processors = processors_of(part, number)?;
            for processor in &processors {
                if !machine.allowed.contains(processor) {
                    let allowed = ListText(&machine.allowed);
                    let text = format!("processor {processor}: this thread may use {allowed}");
                    return Err(wrong(text));
                }
                if sockets.iter().any(|socket| socket.processors.contains(processor)) {
                    return Err(wrong(format!("processor {processor} is of two sockets")));
                }
            }
            let nodes = machine.nodes_of(&processors);
            let has_others = machine.has_memory_beyond(&nodes);
            sockets.push(CpuSocket { number, processors, nodes, has_others });
        }
        Ok(Self { sockets })
    }

    /// Returns all sockets, at least one.
    pub fn sockets(&self) -> &[CpuSocket] {
        &self.sockets
    }

    /// Returns a socket by its number.
    ///
    /// # Errors
    /// `BadConfiguration` if there is none of this number.
    pub fn socket(&self, number: usize) -> Result<&CpuSocket, Error> {
        let none =
            || wrong(format!("socket {number} of {}: they begin with 0", self.sockets.len()));
        self.sockets.get(number).ok_or_else(none)
    }

    /// Returns the socket that a NUMA node is next to, such as that of an adapter ([`Fabric::numa_node`]).
    ///
    /// [`Fabric::numa_node`]: crate::fabrics::Fabric::numa_node
    pub fn socket_of_node(&self, node: u32) -> Option<&CpuSocket> {
        self.sockets.iter().find(|socket| socket.nodes.contains(&node))
    }

    /// Whether two of its sockets have memory of different NUMA nodes. If not, which socket a thread or its memory is on
    /// makes no difference in distance.
    pub fn is_numa(&self) -> bool {
        self.sockets.iter().any(|socket| socket.nodes != self.sockets[0].nodes)
    }
}

impl FromStr for Topology {
    type Err = Error;

    /// Reads a text such as `0-7;8-15`: for each socket the processors, as ranges and single ones.
    ///
    /// # Errors
    /// `BadConfiguration`, which names the part that is wrong: not a list, no processors, one that this thread may not use
    /// or that is of two sockets, too many sockets. `System` as [`Topology::of_system`].
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::given(text, &SystemNodes::now()?)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, socket) in self.sockets.iter().enumerate() {
            let separator = if number > 0 { ";" } else { "" };
            write!(f, "{separator}{}", ListText(&socket.processors))?;
        }
        Ok(())
    }
}

impl CpuSocket {
    /// Returns its number in the topology.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Returns the numbers of its processors, ascending.
    pub fn processors(&self) -> &[u16] {
        &self.processors
    }

    /// Returns the NUMA nodes whose memory is next to its processors.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Binds the calling thread, and the threads that it starts later, to the processors of the socket.
    ///
    /// # Errors
    /// `System` if the processors are not allowed any more; the thread stays where it was.
    pub fn bind_current_thread(&self) -> Result<(), Error> {
        let mut set = CpuSet::new();
        self.processors.iter().for_each(|processor| set.set((*processor).into()));
        let refused = |reason| {
            let text = format!(
                "socket {}, processors {}: {reason}",
                self.number,
                ListText(&self.processors)
            );
            Error::with(ErrorCode::System, text)
        };
        sched_setaffinity(None, &set).map_err(refused)?;
        // The kernel binds to those of the set that are allowed, if there are any.
        let bound = allowed()?;
        let missing = self.processors.iter().find(|processor| !bound.contains(processor));
        match missing {
            None => Ok(()),
            Some(processor) => {
                let text = format!("socket {}: processor {processor} is not allowed", self.number);
                Err(Error::with(ErrorCode::System, text))
            }
        }
    }

    /// Runs a function on a new thread that is bound to the socket, and returns its result. Threads that it starts are
    /// bound too, and memory that it touches first is next to the socket.
    ///
    /// *Blocks* until it has ended. *Cost*: a thread.
    ///
    /// # Errors
    /// As [`bind_current_thread`](Self::bind_current_thread); `System` if the thread does not start or panics.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let bound = move || self.bind_current_thread().map(|()| body());
            let thread = std::thread::Builder::new().name(format!("socket-{}", self.number));
            let system = |text: String| Error::with(ErrorCode::System, text);
            let thread = thread.spawn_scoped(scope, bound);
            let thread = thread.map_err(|reason| system(reason.to_string()))?;
            thread.join().map_err(|_| system("the thread of the socket panicked".to_owned()))?
        })
    }

    /// Puts memory next to the socket.
    ///
    /// # Errors
    /// `System` if it is not there and the system does not move it.
    pub(crate) fn place(&self, memory: &Arena) -> Result<(), Error> {
        if !self.has_others {
            return Ok(()); // there is no other memory
        }
        memory.place(&self.nodes).map_err(|reason| {
            let Self { number, nodes, .. } = self;
            let text = format!(
                "memory of socket {number} (NUMA nodes {nodes:?}): {reason}; a container needs CAP_SYS_NICE, and the node \
                 needs free memory; or name no socket"
            );
            Error::with(ErrorCode::System, text)
        })
    }
}

/// What the system reports.
#[derive(Debug)]
struct SystemNodes {
    /// Processors that this thread may use, ascending.
    allowed: Vec<u16>,
    /// The NUMA nodes, with those of their processors that are allowed.
    nodes: Vec<(u32, Vec<u16>)>,
    /// The nodes with memory.
    memory: Vec<u32>,
}

impl SystemNodes {
    fn now() -> Result<Self, Error> {
        Ok(Self::read(Path::new(NODES), allowed()?))
    }

    /// Reads a folder as sysfs has it; one node where there is none.
    fn read(folder: &Path, allowed: Vec<u16>) -> Self {
        let list = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            numbers(text.trim())
        };
        let mut nodes = Vec::new();
        for node in list("online").unwrap_or_default() {
            let processors = list(&format!("node{node}/cpulist")).unwrap_or_default();
            let processors =
                allowed.iter().copied().filter(|one| processors.contains(&(*one).into()));
            nodes.push((node, processors.collect::<Vec<u16>>()));
        }
        if nodes.iter().all(|(_, processors)| processors.is_empty()) {
            return Self { nodes: vec![(0, allowed.clone())], memory: vec![0], allowed };
        }
        let all = || nodes.iter().map(|(node, _)| *node).collect();
        let memory = list("has_memory").unwrap_or_else(all);
        Self { allowed, nodes, memory }
    }

    /// Returns the nodes of these processors.
    fn nodes_of(&self, processors: &[u16]) -> Vec<u32> {
        let has = |of: &[u16]| of.iter().any(|processor| processors.contains(processor));
        self.nodes.iter().filter(|(_, of)| has(of)).map(|(node, _)| *node).collect()
    }

    fn has_memory_beyond(&self, nodes: &[u32]) -> bool {
        self.memory.iter().any(|node| !nodes.contains(node))
    }
}

/// Returns the processors that the calling thread may use, ascending.
fn allowed() -> Result<Vec<u16>, Error> {
    let refused =
        |reason| Error::with(ErrorCode::System, format!("processors of the thread: {reason}"));
    let set = sched_getaffinity(None).map_err(refused)?;
    let all = (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor));
    Ok(all.filter_map(|processor| u16::try_from(processor).ok()).collect())
}

/// Parses the processors of a socket.
fn processors_of(text: &str, socket: u16) -> Result<Vec<u16>, Error> {
    let bad = || wrong(format!("socket {socket} is `{text}`, not a list such as 0-7,16"));
    let mut processors = Vec::new();
    for number in numbers(text.trim()).ok_or_else(bad)? {
        processors.push(u16::try_from(number).map_err(|_| bad())?);
    }
    if processors.is_empty() { Err(bad()) } else { Ok(processors) }
}

/// Parses a list in the kernel's form (`0-3,8`) into ascending numbers below [`CpuSet::MAX_CPU`]; `None` if it is none.
fn numbers(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    if text.is_empty() {
        return Some(numbers);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last as usize >= CpuSet::MAX_CPU || numbers.len() > CpuSet::MAX_CPU {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

fn wrong(text: String) -> Error {
    Error::with(ErrorCode::BadConfiguration, format!("topology: {text}"))
}

/// Ascending numbers in the kernel's form.
struct ListText<'a>(&'a [u16]);

impl fmt::Display for ListText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one + 1 == *next);
        for (at, run) in runs.enumerate() {
            let separator = if at > 0 { "," } else { "" };
            match run {
                [only] => write!(f, "{separator}{only}")?,
                [first, .., last] => write!(f, "{separator}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;

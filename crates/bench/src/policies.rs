//! What durable memory costs: a write to an owned line of another node of this machine, without and with a fence, by the
//! state of the line's home.

use farside::onesided::{LendOptions, MemoryServer};
use farside::{Config, Error, GlobalAddress, Node, Session, fabrics};
use farside_command::failure::Failure;
use std::path::Path;
use std::time::Instant;

const MEMORY_BYTES: u64 = 4 << 20;
/// Bytes of a line, and of a write.
const LINE: u64 = 512;
const WRITE: usize = 64;
/// Lines that are written before a fence.
pub(crate) const LINES: [usize; 2] = [1, 64];
/// Writes of a window without fences.
const WRITES: usize = 4096;

/// One policy: the home's state, a client of it, and the client's memory there.
pub(crate) struct Policy {
    /// What its writes are called, and its writes with a fence.
    pub(crate) names: [&'static str; 2],
    session: Session,
    memory: GlobalAddress,
    /// Written last: a home with state logs the bytes that have changed, and nothing for a line without any.
    value: u64,
    /// After the session.
    _nodes: [Node; 2],
    _copies: Vec<MemoryServer>,
}

/// Bytes of a copy of the state of a node's memory.
///
/// # Errors
/// `BadConfiguration` for a size out of its range.
pub(crate) fn copy_bytes(memory_bytes: u64) -> Result<u64, Error> {
    Config::new("copy").memory_bytes(memory_bytes).copy_bytes()
}

/// Lends memory for two copies over shared memory.
///
/// # Errors
/// Those of lending it.
pub(crate) fn lend_copies(use_of_it: &str, bytes: u64) -> Result<[MemoryServer; 2], Error> {
    let options = LendOptions::default().exclusive(true);
    let lend = |copy: u8| {
        let name = format!("bench-{use_of_it}-{copy}-{}", std::process::id());
        MemoryServer::lend(&fabrics::shared_memory()?, &name, bytes, &options)
    };
    Ok([lend(1)?, lend(2)?])
}

impl Policy {
    /// Starts the nodes of all policies.
    ///
    /// # Errors
    /// Those of starting nodes and lending memory.
    pub(crate) fn all(folder: &Path) -> Result<[Self; 4], Failure> {
        let lend = |name| lend_copies(name, copy_bytes(MEMORY_BYTES)?);
        let (copies, with_file) = (lend("state")?, lend("state-file")?);
        let addresses = |copies: &[MemoryServer; 2]| {
            copies.iter().map(|copy| copy.address().to_owned()).collect::<Vec<_>>()
        };
        let of_two = addresses(&copies);
        let file = format!("file:{}", folder.join("copy").display());
        let of_three = [addresses(&with_file), vec![file]].concat();
        let volatile = |config| config;
        let folder = folder.join("state");
        let logged = |config: Config| config.state(Some(folder));
        let copied = |config: Config| config.state_copies(of_two);
        let both = |config: Config| config.state_copies(of_three);
        Ok([
            Self::start(
                "volatile",
                ["write, volatile", "write and fence, volatile"],
                volatile,
                vec![],
            )?,
            Self::start("state", ["write, state", "write and fence, state"], logged, vec![])?,
            Self::start(
                "copies",
                ["write, 2 copies", "write and fence, 2 copies"],
                copied,
                copies.into(),
            )?,
            Self::start(
                "both",
                ["write, 2 copies and a file", "write and fence, 2 copies and a file"],
                both,
                with_file.into(),
            )?,
        ])
    }

    fn start(
        kind: &str,
        names: [&'static str; 2],
        with_state: impl FnOnce(Config) -> Config,
        copies: Vec<MemoryServer>,
    ) -> Result<Self, Error> {
        let config = Config::new(format!("bench-{kind}-{}", std::process::id()));
        let config = config.memory_bytes(MEMORY_BYTES).cache_bytes(MEMORY_BYTES);
        let home = Node::create(&with_state(config.clone()))?;
        let client = Node::join(&config.memory_bytes(0))?;
        let mut session = client.session()?;
        let memory = session.alloc_on(LINE * LINES[1] as u64, home.id())?;
        Ok(Self { names, session, memory, value: 0, _nodes: [client, home], _copies: copies })
    }

    fn write(&mut self, line: usize) -> Result<(), Error> {
        let at = self.memory.checked_add(LINE * line as u64).unwrap_or(self.memory);
        self.value += 1;
        let mut bytes = [0; WRITE];
        for word in bytes.chunks_exact_mut(size_of::<u64>()) {
            word.copy_from_slice(&self.value.to_le_bytes());
        }
        self.session.write(at, &bytes)
    }

    /// Measures a write to a line that the client owns, in nanoseconds.
    ///
    /// # Errors
    /// Those of the write.
    pub(crate) fn time_write(&mut self) -> Result<f64, Error> {
        self.write(0)?;
        self.session.fence()?;
        self.write(0)?; // owned now
        let start = Instant::now();
        for _ in 0..WRITES {
            self.write(0)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / WRITES as f64)
    }

    /// Measures writes to this many lines that the client has owned before, and a fence, in nanoseconds.
    ///
    /// # Errors
    /// Those of the writes and the fence.
    pub(crate) fn time_fence(&mut self, lines: usize) -> Result<f64, Error> {
        for line in 0..lines {
            self.write(line)?;
        }
        self.session.fence()?;
        let start = Instant::now();
        for line in 0..lines {
            self.write(line)?;
        }
        self.session.fence()?;
        Ok(start.elapsed().as_nanos() as f64)
    }
}

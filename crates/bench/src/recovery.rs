//! The start of a node whose memory returns from its state, compared with a copy of as many bytes.

use crate::policies::{copy_bytes, lend_copies};
use farside::onesided::MemoryServer;
use farside::{Config, GlobalAddress, Node};
use farside_command::failure::Failure;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Bytes of the memory.
pub(crate) const MEMORY_BYTES: u64 = 8 << 20;
/// Bytes that are written, and return.
const FILLED_BYTES: usize = (MEMORY_BYTES - (1 << 20)) as usize;
/// Bytes of a write while the memory is filled.
const PART: usize = 1 << 18;

/// Mebibytes that return.
pub(crate) const FILLED_MIB: f64 = FILLED_BYTES as f64 / (1 << 20) as f64;

/// A node that has ended, with the memory that it had written.
pub(crate) struct Recovery {
    /// What its start is called.
    pub(crate) name: &'static str,
    config: Config,
    memory: GlobalAddress,
    /// In use by the configuration.
    _copies: Vec<MemoryServer>,
}

impl Recovery {
    /// Fills and ends a node without state, one with a folder, and one with two copies.
    ///
    /// # Errors
    /// Those of nodes and of lending memory.
    pub(crate) fn all(folder: &Path) -> Result<[Self; 3], Failure> {
        let copies = lend_copies("recovery", copy_bytes(MEMORY_BYTES)?)?;
        let addresses = copies.iter().map(|copy| copy.address().to_owned()).collect();
        let config = |kind: &str| {
            Config::new(format!("bench-recovery-{kind}-{}", std::process::id()))
                .memory_bytes(MEMORY_BYTES)
                .cache_bytes(MEMORY_BYTES)
        };
        let state = config("state").state(Some(folder.join("recovery")));
        let copied = config("copies").state_copies(addresses);
        Ok([
            Self::fill("start, volatile", config("volatile"), vec![])?,
            Self::fill("start, state", state, vec![])?,
            Self::fill("start, 2 copies", copied, copies.into())?,
        ])
    }

    fn fill(
        name: &'static str,
        config: Config,
        copies: Vec<MemoryServer>,
    ) -> Result<Self, Failure> {
        let home = Node::create(&config)?;
        let client = Node::join(&config.clone().state(None).state_copies(vec![]).memory_bytes(0))?;
        let mut session = client.session()?;
        let memory = session.alloc_on(FILLED_BYTES as u64, home.id())?;
        let bytes = pattern();
        for at in (0..FILLED_BYTES).step_by(PART) {
            let part = bytes.get(at..FILLED_BYTES.min(at + PART)).unwrap_or_default();
            let to = memory.checked_add(at as u64).ok_or_else(|| Failure::check("an address"))?;
            session.write(to, part)?;
            session.fence()?;
        }
        Ok(Self { name, config, memory, _copies: copies })
    }

    /// Measures the start of the node, in nanoseconds, checks what has returned, and ends it again.
    ///
    /// # Errors
    /// Those of the start; bytes that differ.
    pub(crate) fn time_start(&self) -> Result<f64, Failure> {
        let start = Instant::now();
        let node = Node::create(&self.config)?;
        let took = start.elapsed().as_nanos() as f64;
        if self.config.state.is_some() || !self.config.state_copies.is_empty() {
            let mut returned = vec![0; FILLED_BYTES];
            node.session()?.read(self.memory, &mut returned)?;
            if returned != pattern() {
                return Err(Failure::check("memory that returned has other bytes than before"));
            }
        }
        Ok(took)
    }
}

/// Measures a copy of as many bytes to memory that is mapped for it, in nanoseconds.
pub(crate) fn time_copy() -> f64 {
    let bytes = pattern();
    let start = Instant::now();
    black_box(bytes.clone());
    start.elapsed().as_nanos() as f64
}

/// Bytes of which no two lines are equal.
fn pattern() -> Vec<u8> {
    let mut bytes = vec![0; FILLED_BYTES];
    for (number, word) in bytes.chunks_exact_mut(size_of::<u64>()).enumerate() {
        word.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

//! How fast the state of a memory is read back from a file, next to a copy of as many bytes:
//! `cargo run --release -p farside --example restore_rate -- FOLDER MEBIBYTES`.

use farside::Error;
use farside::durable::{Allocation, MemoryState, StateIdentity, StateOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LINE: u64 = 64 << 10;
const MINUTE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("farside-restore-{}", std::process::id()));
    let mebibytes = words.next().and_then(|word| word.parse().ok()).unwrap_or(64);
    let measured = measure(&folder, mebibytes << 20);
    std::fs::remove_dir_all(&folder).ok();
    measured
}

fn measure(folder: &std::path::Path, bytes: u64) -> Result<(), Error> {
    let options = StateOptions::default().memory_bytes(bytes);
    let source: Vec<u8> = (0..bytes).map(|at| (at / 7 + at / 4096) as u8 | 1).collect();

    let (mut state, _) = MemoryState::open(folder, &options)?;
    let cluster = "restore".to_owned();
    let identity = StateIdentity { cluster, node: 0, generation: 1, memory_bytes: bytes };
    state.set_identity(identity)?;
    state.allocated(0, Allocation { bytes, lines: bytes / LINE, class: 10 })?;
    let started = Instant::now();
    for at in (0..bytes).step_by(LINE as usize) {
        state.write(at, &source[at as usize..(at + LINE) as usize])?;
    }
    state.close(MINUTE)?;
    rate("write and commit", bytes, started);
    drop(state);

    let started = Instant::now();
    let (state, restored) = MemoryState::open(folder, &options)?;
    rate("restore", bytes, started);
    assert!(state.image() == source, "the memory is restored");
    writeln!(std::io::stdout(), "{restored:?}").ok();

    let mut copy = vec![0; bytes as usize];
    copy.fill(1); // its pages exist
    let started = Instant::now();
    copy.copy_from_slice(&source);
    rate("copy to pages that exist", bytes, started);
    let started = Instant::now();
    let fresh = source.clone();
    rate("copy to fresh pages", bytes, started);
    assert!(fresh == copy);
    Ok(())
}

fn rate(what: &str, bytes: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), "{what}: {:.2} GB/s", bytes as f64 / seconds / 1e9).ok();
}

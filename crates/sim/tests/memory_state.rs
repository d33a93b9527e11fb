//! State of a memory in a log, on a disk that loses what was not synced: power cuts, killed processes, syncs that fail, in
//! any call, also while the state is read back and cleaned.

use farside::durable::{
    Allocation, DurableLog, DurableLogOptions, MemoryState, RecordTag, Restored, StateIdentity,
    StateOptions,
};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_sim::durable::SimDisk;
use farside_sim::medium::SimMedium;
use farside_sim::persistent::SimPersistent;
use farside_sim::seeds::each_seed;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SEGMENT: u64 = 4096;
const MEMORY: u64 = 8 << 10;
const LIVES: u64 = 8;
const SOON: Duration = Duration::from_secs(60);

fn options() -> StateOptions {
    StateOptions::default().memory_bytes(MEMORY).segment_bytes(SEGMENT)
}

fn identity() -> StateIdentity {
    let memory_bytes = MEMORY;
    StateIdentity { cluster: "pool".to_owned(), node: 3, generation: 7, memory_bytes }
}

const fn span(allocation: &Allocation) -> u64 {
    allocation.lines * (64 << allocation.class)
}

#[derive(Clone, Debug)]
enum StateOperation {
    Identity,
    Directory(u64, u64),
    Allocated(u64, Allocation),
    Freed(u64),
    Write(u64, Vec<u8>),
}

/// A memory without a log.
#[derive(Clone)]
struct Model {
    has_identity: bool,
    directory: Option<(u64, u64)>,
    allocations: BTreeMap<u64, Allocation>,
    bytes: Vec<u8>,
}

impl Model {
    fn new() -> Self {
        let (directory, allocations) = (None, BTreeMap::new());
        Self { has_identity: false, directory, allocations, bytes: vec![0; MEMORY as usize] }
    }

    fn apply(&mut self, operation: &StateOperation) {
        match operation {
            StateOperation::Identity => self.has_identity = true,
            StateOperation::Directory(offset, lines) => self.directory = Some((*offset, *lines)),
            StateOperation::Allocated(offset, allocation) => {
                self.allocations.insert(*offset, *allocation);
                self.bytes[*offset as usize..(offset + span(allocation)) as usize].fill(0);
            }
            StateOperation::Freed(offset) => drop(self.allocations.remove(offset)),
            StateOperation::Write(offset, bytes) => {
                self.bytes[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Compares a state with this.
    fn compare(&self, state: &MemoryState) -> Result<(), String> {
        let expected = self.has_identity.then(identity);
        if state.identity() != expected.as_ref() {
            return Err(format!("{:?} instead of {expected:?}", state.identity()));
        }
        if state.directory() != self.directory {
            return Err(format!("{:?} instead of {:?}", state.directory(), self.directory));
        }
        let found: BTreeMap<u64, Allocation> = state.allocations().collect();
        if found != self.allocations {
            return Err(format!("{found:?} instead of {:?}", self.allocations));
        }
        for (offset, allocation) in &self.allocations {
            let range = *offset as usize..(offset + span(allocation)) as usize;
            let differs = range.clone().find(|at| state.image()[*at] != self.bytes[*at]);
            if let Some(at) = differs {
                let (is, was) = (state.image()[at], self.bytes[at]);
                return Err(format!("byte {at} of {range:?} is {is} instead of {was}"));
            }
        }
        Ok(())
    }

    fn random_allocation(&self, random: &mut Random) -> Option<(u64, Allocation)> {
        let index = random.index(self.allocations.len());
        self.allocations.iter().nth(index).map(|(offset, one)| (*offset, *one))
    }

    /// An operation that is possible now.
    fn random_operation(&self, random: &mut Random) -> Option<StateOperation> {
        match random.below(20) {
            0..5 => {
                let class = random.below(3) as u8;
                let (size, lines) = (64 << class, 1 + random.below(12));
                let (offset, bytes) = (random.below(MEMORY / size) * size, lines * size);
                let bytes = bytes - random.below(size);
                let allocation = Allocation { bytes, lines, class };
                let end = offset + span(&allocation);
                let overlaps =
                    |one: (&u64, &Allocation)| *one.0 < end && *one.0 + span(one.1) > offset;
                (end <= MEMORY && !self.allocations.iter().any(overlaps))
                    .then_some(StateOperation::Allocated(offset, allocation))
            }
            5..7 => Some(StateOperation::Freed(self.random_allocation(random)?.0)),
            7 => {
                let (offset, allocation) = self.random_allocation(random)?;
                Some(StateOperation::Directory(offset, allocation.lines))
            }
            _ => {
                let (offset, allocation) = self.random_allocation(random)?;
                let from = offset + random.below(span(&allocation));
                let most = (offset + span(&allocation) - from).min(256);
                let range = from as usize..(from + 1 + random.below(most)) as usize;
                let mut bytes = self.bytes[range].to_vec();
                match random.below(4) {
                    0 => bytes.fill(0),
                    1 => bytes.fill_with(|| random.byte()),
                    _ => (0..1 + random.below(4)).for_each(|_| {
                        let at = random.index(bytes.len());
                        bytes[at] = random.byte();
                    }),
                }
                Some(StateOperation::Write(from, bytes))
            }
        }
    }
}

fn perform(state: &mut MemoryState, operation: &StateOperation) -> Result<Option<u64>, Error> {
    match operation {
        StateOperation::Identity => state.set_identity(identity()).map(Some),
        StateOperation::Directory(offset, lines) => state.set_directory(*offset, *lines).map(Some),
        StateOperation::Allocated(offset, allocation) => {
            state.allocated(*offset, *allocation).map(Some)
        }
        StateOperation::Freed(offset) => state.freed(*offset).map(Some),
        StateOperation::Write(offset, bytes) => state.write(*offset, bytes),
    }
}

/// What a state must have.
struct Oracle {
    /// After the operations that are certain.
    certain: Model,
    /// After all operations.
    last: Model,
    /// Those in between, with their positions.
    pending: Vec<(u64, StateOperation)>,
    committed: u64,
}

impl Oracle {
    fn new() -> Self {
        Self { certain: Model::new(), last: Model::new(), pending: Vec::new(), committed: 0 }
    }

    /// Checks a state that was opened: it has all operations up to the end that it reports, and no part of a later one.
    fn check(&mut self, state: &MemoryState, restored: &Restored) -> Result<(), String> {
        if restored.end < self.committed {
            return Err(format!("ends at {}; committed up to {}", restored.end, self.committed));
        }
        for (end, operation) in self.pending.drain(..) {
            if end <= restored.end {
                self.certain.apply(&operation);
            }
        }
        self.last = self.certain.clone();
        self.committed = restored.end;
        self.certain.compare(state)
    }
}

/// Uses a state for some operations, or until its device fails.
fn live(state: &mut MemoryState, oracle: &mut Oracle, random: &mut Random) -> Result<(), String> {
    for _ in 0..random.below(60) {
        let done = match random.below(24) {
            0 => state.begin_cleaning(),
            1 => state.clean(random.below(2000)).map(drop),
            2..6 => {
                let upto = state.log().watermarks().appended;
                let committed = state.log().commit(upto, SOON);
                committed.map(|()| oracle.committed = upto)
            }
            _ => {
                let operation = match oracle.last.has_identity {
                    true => oracle.last.random_operation(random),
                    false => Some(StateOperation::Identity),
                };
                let Some(operation) = operation else { continue };
                perform(state, &operation).map(|end| {
                    oracle.last.apply(&operation);
                    // Nothing was logged of a write that changes nothing.
                    oracle.pending.extend(end.map(|end| (end, operation)));
                })
            }
        };
        match done {
            Ok(()) => {}
            Err(error) if error.code == ErrorCode::DeviceFailed => return Ok(()),
            // The disk has no space: nothing was appended.
            Err(error) if error.code == ErrorCode::LogFull => {}
            Err(error) => return Err(error.to_string()),
        }
        oracle.last.compare(state)?;
    }
    if random.below(3) == 0 && state.close(SOON).is_ok() {
        oracle.committed = state.durable();
    }
    Ok(())
}

fn run(seed: u64) -> Result<(), String> {
    run_on(&SimDisk::new(seed), seed)
}

fn run_on(disk: &dyn SimMedium, seed: u64) -> Result<(), String> {
    let device = || disk.device().map_err(|error| error.to_string());
    let mut random = Random::new(seed);
    let mut oracle = Oracle::new();
    for _ in 0..LIVES {
        match random.below(4) {
            0 => disk.cut_power_within(3),
            1 => disk.cut_power_within(60),
            2 => disk.fail_sync_within(20),
            _ => {}
        }
        disk.set_space(random.below(8) > 0);
        match MemoryState::on(device()?, &options()) {
            Ok((mut state, restored)) => {
                oracle.check(&state, &restored)?;
                live(&mut state, &mut oracle, &mut random)?;
            }
            Err(error) if error.code == ErrorCode::DeviceFailed => {}
            Err(error) => return Err(format!("cannot be opened: {error}")),
        }
        if disk.is_cut() || random.below(2) == 0 {
            disk.restart();
        }
        disk.calm();
    }
    disk.restart();
    let (state, restored) = MemoryState::on(device()?, &options()).map_err(|e| e.to_string())?;
    oracle.check(&state, &restored)
}

#[test]
fn state_in_persistent_memory_survives_any_end() {
    each_seed(
        "cargo test -p farside-sim --test memory_state -- state_in_persistent_memory_survives_any_end",
        300,
        |seed| run_on(&SimPersistent::temporary(seed), seed),
    );
}

#[test]
fn committed_state_survives_any_end() {
    each_seed(
        "cargo test -p farside-sim --test memory_state -- committed_state_survives_any_end",
        1_000,
        run,
    );
}

/// Without faults: a process after the other, each with many operations.
#[test]
fn state_agrees_with_a_plain_memory() {
    each_seed(
        "cargo test -p farside-sim --test memory_state -- state_agrees_with_a_plain_memory",
        60,
        |seed| {
            let (mut random, disk) = (Random::new(seed), SimDisk::new(seed));
            let (mut oracle, mut passes) = (Oracle::new(), 0);
            for _ in 0..5 {
                let (mut state, restored) =
                    MemoryState::on(disk.device(), &options()).map_err(|e| e.to_string())?;
                oracle.check(&state, &restored)?;
                for _ in 0..12 {
                    live(&mut state, &mut oracle, &mut random)?;
                }
                passes += state.stats().passes;
                if random.below(2) == 0 {
                    state.close(SOON).map_err(|error| error.to_string())?;
                    oracle.committed = state.durable();
                }
            }
            match passes {
                0 => Err("no pass has ended".to_owned()),
                _ => Ok(()),
            }
        },
    );
}

const BUSY_MEMORY: u64 = 128 << 10;

/// A log of the least length, under writes of every size, commits at any time, frees and allocations, and processes that
/// are killed.
fn fill(seed: u64) -> Result<(), String> {
    let (mut random, disk) = (Random::new(seed), SimDisk::new(seed));
    let options = StateOptions::default().memory_bytes(BUSY_MEMORY).segment_bytes(SEGMENT);
    let least = options.log_bytes_min().map_err(|error| error.to_string())?;
    let options = options.log_bytes_max(Some(least));
    let below = options.clone().log_bytes_max(Some(least - 1));
    let refused = MemoryState::on(disk.device(), &below).map(drop);
    if refused.is_ok_and(|()| true) {
        return Err("a log that is too short is opened".to_owned());
    }
    let commits_one_in = [20, 1 << 40][seed as usize % 2];
    let wanted = least + least / 8;
    let mut state = MemoryState::on(disk.device(), &options).map_err(|e| e.to_string())?.0;
    let owner = StateIdentity { memory_bytes: BUSY_MEMORY, ..identity() };
    state.set_identity(owner).map_err(|error| error.to_string())?;
    let unit = Allocation { bytes: 64, lines: 1, class: 0 };
    for offset in (0..BUSY_MEMORY).step_by(64) {
        state.allocated(offset, unit).map_err(|error| format!("at {offset}: {error}"))?;
        state.write(offset, &[1; 64]).map_err(|error| format!("at {offset}: {error}"))?;
    }
    let filled = state.log().watermarks().appended;
    state.log().commit(filled, SOON).map_err(|error| error.to_string())?;
    while state.log().watermarks().appended < wanted {
        let offset = random.below(BUSY_MEMORY / 64) * 64;
        let done = match random.below(16) {
            0 => state.freed(offset).and_then(|_| state.allocated(offset, unit)).map(drop),
            1..4 => state.write(offset, &random.word().to_le_bytes()).map(drop),
            _ => {
                let bytes: [u8; 64] = std::array::from_fn(|_| random.byte() | 1);
                state.write(offset, &bytes).map(drop)
            }
        };
        done.map_err(|error| format!("{error} after {:?}", state.stats()))?;
        let marks = state.log().watermarks();
        if random.one_in(commits_one_in) {
            state.log().commit(marks.appended, SOON).map_err(|error| error.to_string())?;
        }
        if marks.appended - marks.begin > least - SEGMENT {
            return Err(format!("{} B of {least} B are in use", marks.appended - marks.begin));
        }
        if random.one_in(20_000) {
            drop(state);
            state = MemoryState::on(disk.device(), &options).map_err(|e| e.to_string())?.0;
            // What was not committed is gone.
            let known: BTreeSet<u64> = state.allocations().map(|(offset, _)| offset).collect();
            for offset in (0..BUSY_MEMORY).step_by(64).filter(|offset| !known.contains(offset)) {
                state.allocated(offset, unit).map_err(|error| error.to_string())?;
            }
        }
    }
    if state.cleaning_failure().is_some() {
        return Err(format!("{:?}", state.cleaning_failure()));
    }
    Ok(())
}

#[test]
fn shortest_log_never_fills() {
    each_seed("cargo test -p farside-sim --test memory_state -- shortest_log_never_fills", 2, fill);
}

fn opened(disk: &SimDisk, options: &StateOptions) -> Result<(), ErrorCode> {
    MemoryState::on(disk.device(), options).map(drop).map_err(|error| error.code)
}

/// A state with an allocation of 256 B at 256, closed.
fn small_state(disk: &SimDisk) {
    let (mut state, _) = MemoryState::on(disk.device(), &options()).unwrap();
    state.set_identity(identity()).unwrap();
    state.allocated(256, Allocation { bytes: 256, lines: 1, class: 2 }).unwrap();
    state.write(256, b"bytes").unwrap();
    state.close(SOON).unwrap();
}

#[test]
fn state_of_other_memory_is_refused() {
    let disk = SimDisk::new(1);
    small_state(&disk);
    for memory in [MEMORY / 2, 2 * MEMORY] {
        let other = options().memory_bytes(memory);
        assert_eq!(opened(&disk, &other), Err(ErrorCode::StateForeign));
    }
    let (mut state, _) = MemoryState::on(disk.device(), &options()).unwrap();
    let other = StateIdentity { generation: 8, ..identity() };
    assert_eq!(state.set_identity(other).unwrap_err().code, ErrorCode::StateForeign);
    state.set_identity(identity()).unwrap();
    assert!(identity().check_cluster("pool").is_ok());
    assert_eq!(identity().check_cluster("tarn").unwrap_err().code, ErrorCode::StateForeign);
    assert_eq!(&state.image()[256..261], b"bytes");
}

#[test]
fn sizes_out_of_range_are_refused_with_the_least() {
    let disk = SimDisk::new(1);
    for wrong in [
        options().memory_bytes(0),
        options().memory_bytes(100),
        options().memory_bytes(1 << 43),
        options().segment_bytes(2048),
        options().segment_bytes(5000),
    ] {
        assert_eq!(opened(&disk, &wrong), Err(ErrorCode::BadConfiguration));
        assert!(wrong.log_bytes_min().is_err());
    }
    let least = options().log_bytes_min().unwrap();
    let wrong = options().log_bytes_max(Some(least - 1));
    let error = MemoryState::on(disk.device(), &wrong).map(drop).unwrap_err();
    assert!(error.detail.contains(&least.to_string()), "{error}");
}

#[test]
fn records_that_are_none_of_a_state_are_refused_and_kept() {
    let whole = |kind, counter, address| RecordTag { kind, counter, address };
    let allocation = |lines: u64, class: u64| [lines.to_le_bytes(), class.to_le_bytes()].concat();
    let cases = [
        ("an unknown kind", whole(99, 0, 0), Vec::new(), ErrorCode::LogDamaged),
        ("a write outside of allocations", whole(36, 0, 0), vec![1; 8], ErrorCode::LogDamaged),
        ("a write past the end", whole(36, 0, 508), vec![1; 8], ErrorCode::LogDamaged),
        ("a write past the last offset", whole(36, 0, u64::MAX), vec![1; 8], ErrorCode::LogDamaged),
        ("an overlap", whole(34, 64, 320), allocation(1, 0), ErrorCode::LogDamaged),
        ("no such class", whole(34, 64, 0), allocation(1, 11), ErrorCode::LogDamaged),
        ("lines that overflow", whole(34, 64, 0), allocation(u64::MAX, 3), ErrorCode::LogDamaged),
        ("no lines", whole(34, 64, 0), allocation(0, 3), ErrorCode::LogDamaged),
        ("outside of the memory", whole(34, 64, MEMORY), allocation(1, 0), ErrorCode::LogDamaged),
        ("not at a line", whole(34, 64, 1024 + 64), allocation(1, 1), ErrorCode::LogDamaged),
        (
            "another allocation restated",
            whole(39, 64, 256),
            allocation(1, 0),
            ErrorCode::LogDamaged,
        ),
        ("freed twice", whole(35, 0, 0), Vec::new(), ErrorCode::LogDamaged),
        ("a directory outside", whole(33, 1, MEMORY), Vec::new(), ErrorCode::LogDamaged),
        ("two ranges, short", whole(37, 9, 256), vec![0; 12], ErrorCode::LogDamaged),
        ("another version", whole(32, 2, MEMORY), vec![0; 8], ErrorCode::StateForeign),
        ("another identity", whole(32, 1, MEMORY), vec![0; 8], ErrorCode::LogDamaged),
        ("another memory", whole(32, 1, 64), vec![0; 8], ErrorCode::StateForeign),
        ("an identity without fields", whole(32, 1, MEMORY), vec![0; 3], ErrorCode::LogDamaged),
    ];
    for (why, tag, payload, code) in cases {
        let disk = SimDisk::new(1);
        small_state(&disk);
        let log_options = DurableLogOptions::default().segment_bytes(SEGMENT);
        let (log, found) = DurableLog::on(disk.device(), &log_options).unwrap();
        log.append(tag, &payload).unwrap();
        log.close().unwrap();
        assert_eq!(opened(&disk, &options()), Err(code), "{why}");
        let (log, now) = DurableLog::on(disk.device(), &log_options).unwrap();
        assert_eq!((now.records, log.reader(0).count() as u64), (found.records + 1, now.records));
    }
}

#[test]
fn log_of_another_program_is_refused() {
    let disk = SimDisk::new(1);
    let log_options = DurableLogOptions::default().segment_bytes(SEGMENT);
    let (log, _) = DurableLog::on(disk.device(), &log_options).unwrap();
    log.append(RecordTag { kind: 1, ..RecordTag::default() }, b"a line").unwrap();
    log.close().unwrap();
    assert_eq!(opened(&disk, &options()), Err(ErrorCode::StateForeign));
}

#[test]
fn wrong_operations_change_nothing() {
    let disk = SimDisk::new(1);
    let (mut state, _) = MemoryState::on(disk.device(), &options()).unwrap();
    let unit = Allocation { bytes: 64, lines: 1, class: 0 };
    assert_eq!(state.allocated(0, unit).unwrap_err().code, ErrorCode::BadConfiguration);
    for cluster in ["", &"x".repeat(65)] {
        let wrong = StateIdentity { cluster: cluster.to_owned(), ..identity() };
        assert_eq!(state.set_identity(wrong).unwrap_err().code, ErrorCode::BadConfiguration);
    }
    state.set_identity(identity()).unwrap();
    state.allocated(128, Allocation { bytes: 100, lines: 1, class: 1 }).unwrap();
    let before = state.log().watermarks();
    let failed = [
        state.allocated(192, unit).map(Some),
        state.allocated(64, Allocation { bytes: 128, lines: 2, class: 0 }).map(Some),
        state.allocated(0, Allocation { bytes: 0, ..unit }).map(Some),
        state.allocated(0, Allocation { bytes: 65, ..unit }).map(Some),
        state.allocated(MEMORY, unit).map(Some),
        state.freed(0).map(Some),
        state.freed(192).map(Some),
        state.write(120, &[1; 16]),
        state.write(250, &[1; 16]),
        state.write(u64::MAX, &[1; 16]),
        state.set_directory(MEMORY, 1).map(Some),
    ];
    for (number, failed) in failed.into_iter().enumerate() {
        assert_eq!(failed.unwrap_err().code, ErrorCode::OutOfBounds, "{number}");
    }
    assert_eq!(state.log().watermarks(), before);
    // The padding of the last line is of the allocation.
    state.write(250, &[1; 6]).unwrap();
    assert_eq!(state.write(250, &[1; 6]).unwrap(), None);
}

/// Writes are logged by what has changed.
#[test]
fn only_changed_bytes_are_logged() {
    let disk = SimDisk::new(1);
    let (mut state, _) = MemoryState::on(disk.device(), &options()).unwrap();
    state.set_identity(identity()).unwrap();
    state.allocated(0, Allocation { bytes: 4096, lines: 8, class: 3 }).unwrap();
    let mut bytes = vec![7; 256];
    let logged = |state: &mut MemoryState, bytes: &[u8]| {
        let before = state.stats().logged_bytes;
        state.write(512, bytes).unwrap();
        state.stats().logged_bytes - before
    };
    assert_eq!(logged(&mut state, &bytes), 256);
    bytes[100] = 1;
    assert_eq!(logged(&mut state, &bytes), 8);
    (bytes[3], bytes[250]) = (1, 1);
    assert_eq!(
        logged(&mut state, &bytes),
        8 + 8 + 8,
        "two ranges of a granule, and their distance"
    );
    (bytes[0], bytes[30]) = (2, 2);
    assert_eq!(logged(&mut state, &bytes), 32, "near ranges are one");
    // Longer than a record.
    assert_eq!(logged(&mut state, &[9; 1000]), 1000);
}

#[cfg(canary)]
mod canary {
    use super::{fill, run};
    use farside::canary::{NodeMutant, plant};

    /// Each defect of a state is found within some thousand seeds.
    #[test]
    fn canary_defects_of_a_state_are_found() {
        use NodeMutant::{
            StateChangeTooShort, StateFreedNotLogged, StateFreshNotZeroed, StatePassForgotten,
            StatePieceSkipped, StateRestatedStale, StateRestatedZeroes, StateTrimmedBeforeDurable,
            StateTrimmedTooFar, StateWriteTorn,
        };
        let mutants = [
            StateChangeTooShort,
            StateFreedNotLogged,
            StateFreshNotZeroed,
            StatePassForgotten,
            StatePieceSkipped,
            StateRestatedStale,
            StateRestatedZeroes,
            StateTrimmedBeforeDurable,
            StateTrimmedTooFar,
            StateWriteTorn,
        ];
        for mutant in mutants {
            plant(Some(mutant));
            let found = (1..4_000).find_map(|seed| run(seed).err());
            plant(None);
            assert!(found.is_some(), "{mutant:?} is not found");
        }
        plant(Some(NodeMutant::StateCleanedTooSlowly));
        let found = (1..3).find_map(|seed| fill(seed).err());
        plant(None);
        assert!(found.is_some(), "a pass that is too slow is not found");
    }
}

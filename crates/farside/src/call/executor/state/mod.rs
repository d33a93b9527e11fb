//! Program state at the executor: variables, arrays, counters, maps and locks that outlive calls (003 §2).

mod done;
mod erased;
mod locks;
mod map;
mod records;

use done::done;
pub(crate) use done::{Done, Holder};
pub(crate) use erased::Erased;
use farside_rmc::Program;
use farside_rmc::helpers::{Call, StateKind, status};
use farside_rmc::program::{Scope, StateDeclaration};
use locks::{Held, Locks};
use map::Map;
use records::Records;

/// The state kept for one declaration.
#[derive(Debug)]
enum Kept {
    /// Declared for the other scope.
    Elsewhere,
    Array(Records),
    Counters(Records),
    Map(Map),
    Locks(Locks),
}

/// All state of one scope of one program: of a session, or shared.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// In the form in which they are lent to a machine.
    pub(crate) variables: Vec<u8>,
    pub(crate) declared: Declared,
}

/// The state kept for the declarations of a program, by handle.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    kept: Vec<Kept>,
    held: Held,
    /// Memory was allocated for it, which takes longer than many accesses.
    made: bool,
    /// A lock was unlocked, for which other calls may wait.
    unlocked: bool,
}

impl States {
    /// Returns the initial state of a registered program. Costs little memory and time, however much it declares: a
    /// chunk is allocated at the first write to it.
    pub(crate) fn new(program: &Program, scope: Scope) -> Self {
        let variables = match scope {
            Scope::QueuePair => program.variables.own.clone(),
            Scope::Shared => program.variables.shared.clone(),
        };
        let kept = |state: &StateDeclaration| {
            let [key_bytes, value_bytes, entries] =
                [state.key_bytes, state.value_bytes, state.entries].map(|number| number as usize);
            match state.kind {
                _ if state.scope != scope => Kept::Elsewhere,
                StateKind::Array => Kept::Array(Records::new(value_bytes, entries)),
                StateKind::Counters => Kept::Counters(Records::new(size_of::<u64>(), entries)),
                StateKind::Map => Kept::Map(Map::new(key_bytes, value_bytes, entries)),
                StateKind::Locks => Kept::Locks(Locks::new(entries)),
            }
        };
        let kept = program.states.iter().map(kept).collect();
        Self { variables, declared: Declared { kept, ..Declared::default() } }
    }

    /// Returns the bytes that a program's state takes in a scope when full.
    pub(crate) fn bytes(program: &Program, scope: Scope) -> u64 {
        let variables = match scope {
            Scope::QueuePair => program.variables.own.len(),
            Scope::Shared => program.variables.shared.len(),
        };
        let states = program.states.iter().filter(|state| state.scope == scope);
        states.map(StateDeclaration::bytes).sum::<u64>() + variables as u64
    }
}

impl Kept {
    /// Chunks allocated so far.
    const fn made(&self) -> usize {
        match self {
            Self::Elsewhere => 0,
            Self::Array(records) | Self::Counters(records) => records.made(),
            Self::Map(map) => map.made(),
            Self::Locks(locks) => locks.made(),
        }
    }
}

impl Declared {
    /// Performs a helper on the state that its first argument names.
    pub(crate) fn perform(
        &mut self,
        call: Call,
        arguments: &[u64; 5],
        inputs: [&[u8]; 2],
        output: &mut [u8],
        holder: Holder,
    ) -> Done {
        let [handle, index] =
            [arguments[0], arguments[1]].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        let Some(kept) = self.kept.get_mut(handle) else {
            return done(status::NOT_PERMITTED);
        };
        let made = kept.made();
        let result = match (&mut *kept, call) {
            (Kept::Elsewhere, _) => Done::Elsewhere,
            (Kept::Array(values), Call::ArrayRead) => done(read(values, index, output)),
            (Kept::Array(values), Call::ArrayWrite) => done(write(values, index, inputs[0])),
            (Kept::Counters(counters), Call::CounterAdd) => add(counters, index, arguments[2]),
            (Kept::Map(map), Call::MapGet) => done(map.get(inputs[0], output)),
            (Kept::Map(map), Call::MapPut) => done(map.put(inputs[0], inputs[1])),
            (Kept::Map(map), Call::MapRemove) => done(map.remove(inputs[0])),
            (Kept::Locks(locks), _) => locks.perform(&mut self.held, call, [handle, index], holder),
            _ => done(status::NOT_PERMITTED),
        };
        self.made |= kept.made() > made;
        self.unlocked |= call == Call::Unlock && result == done(status::OK);
        result
    }

    /// Returns whether memory was allocated since the last call of this; allocation takes longer than many
    /// accesses.
    pub(crate) fn take_made(&mut self) -> bool {
        std::mem::take(&mut self.made)
    }

    /// Returns whether a call has unlocked a lock since the last call of this function.
    pub(crate) fn take_unlocked(&mut self) -> bool {
        std::mem::take(&mut self.unlocked)
    }

    /// Releases every lock of a holder; returns whether it had any.
    pub(crate) fn release(&mut self, holder: Holder) -> bool {
        let mut had = false;
        while let Some((handle, index)) = self.held.take(holder) {
            if let Some(Kept::Locks(locks)) = self.kept.get_mut(handle) {
                locks.set(index, 0);
            }
            had = true;
        }
        had
    }
}

fn read(values: &Records, index: usize, output: &mut [u8]) -> i64 {
    match values.get(index) {
        Some([]) => output.fill(0),
        Some(value) if value.len() == output.len() => output.copy_from_slice(value),
        _ => return status::OUT_OF_RANGE,
    }
    status::OK
}

fn write(values: &mut Records, index: usize, bytes: &[u8]) -> i64 {
    match values.get_mut(index) {
        Some(value) if value.len() == bytes.len() => value.copy_from_slice(bytes),
        _ => return status::OUT_OF_RANGE,
    }
    status::OK
}

fn add(counters: &mut Records, index: usize, addend: u64) -> Done {
    let Some(place) = counters.get_mut(index).and_then(|bytes| bytes.first_chunk_mut()) else {
        return done(status::OUT_OF_RANGE);
    };
    let sum = u64::from_le_bytes(*place).wrapping_add(addend);
    *place = sum.to_le_bytes();
    Done::Result(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Declared {
        let state = |kind, key_bytes, value_bytes, scope| StateDeclaration {
            name: String::new(),
            kind,
            key_bytes,
            value_bytes,
            entries: 2,
            scope,
        };
        let program = Program {
            states: vec![
                state(StateKind::Array, 0, 4, Scope::Shared),
                state(StateKind::Counters, 0, 8, Scope::Shared),
                state(StateKind::Map, 1, 2, Scope::Shared),
                state(StateKind::Locks, 0, 0, Scope::Shared),
                state(StateKind::Array, 0, 4, Scope::QueuePair),
            ],
            ..Program::default()
        };
        assert_eq!(States::bytes(&program, Scope::Shared), 8 + 16 + 2 * (12 + 3) + 2 * 8);
        assert_eq!(States::bytes(&program, Scope::QueuePair), 8);
        States::new(&program, Scope::Shared).declared
    }

    fn perform(states: &mut Declared, call: Call, arguments: [u64; 3], inputs: [&[u8]; 2]) -> Done {
        let [a, b, c] = arguments;
        let mut output = [0; 4];
        let bytes = if call == Call::MapGet { 2 } else { 4 };
        let done = states.perform(call, &[a, b, c, 0, 0], inputs, &mut output[..bytes], 7);
        match (call, done) {
            (Call::ArrayRead | Call::MapGet, Done::Result(0)) => {
                Done::Result(u64::from(u32::from_le_bytes(output)))
            }
            _ => done,
        }
    }

    #[test]
    fn arrays_and_counters_keep_values_within_bounds() {
        let mut states = states();
        assert_eq!(
            perform(&mut states, Call::ArrayWrite, [0, 1, 0], [&[1, 2, 0, 0], &[]]),
            done(0)
        );
        assert_eq!(perform(&mut states, Call::ArrayRead, [0, 1, 0], [&[], &[]]), Done::Result(513));
        for index in [2, u64::MAX, u64::MAX / 4] {
            let result = perform(&mut states, Call::ArrayRead, [0, index, 0], [&[], &[]]);
            assert_eq!(result, done(status::OUT_OF_RANGE));
        }
        assert_eq!(perform(&mut states, Call::CounterAdd, [1, 0, 5], [&[], &[]]), Done::Result(5));
        assert_eq!(perform(&mut states, Call::CounterAdd, [1, 0, 5], [&[], &[]]), Done::Result(10));
        assert_eq!(
            perform(&mut states, Call::CounterAdd, [1, 2, 5], [&[], &[]]),
            done(status::OUT_OF_RANGE)
        );
        assert_eq!(perform(&mut states, Call::ArrayRead, [4, 0, 0], [&[], &[]]), Done::Elsewhere);
        let result = perform(&mut states, Call::ArrayRead, [9, 0, 0], [&[], &[]]);
        assert_eq!(result, done(status::NOT_PERMITTED));
    }

    #[test]
    fn maps_are_bounded() {
        let mut states = states();
        let mut map =
            |call, key: u8, value: [u8; 2]| perform(&mut states, call, [2, 0, 0], [&[key], &value]);
        assert_eq!(map(Call::MapGet, 1, [0; 2]), done(status::NOT_FOUND));
        assert_eq!(map(Call::MapPut, 1, [3, 0]), done(status::OK));
        assert_eq!(map(Call::MapPut, 2, [4, 0]), done(status::OK));
        assert_eq!(map(Call::MapPut, 3, [5, 0]), done(status::FULL));
        assert_eq!(map(Call::MapPut, 1, [6, 0]), done(status::OK));
        assert_eq!(map(Call::MapGet, 1, [0; 2]), Done::Result(6));
        assert_eq!(map(Call::MapRemove, 2, [0; 2]), done(status::OK));
        assert_eq!(map(Call::MapRemove, 2, [0; 2]), done(status::NOT_FOUND));
        assert_eq!(map(Call::MapPut, 3, [5, 0]), done(status::OK));
    }

    #[test]
    fn locks_have_one_holder_and_are_released_with_it() {
        let mut states = states();
        let mut lock =
            |call, holder| states.perform(call, &[3, 1, 0, 0, 0], [&[], &[]], &mut [], holder);
        assert_eq!(lock(Call::Lock, 7), done(status::OK));
        assert_eq!(lock(Call::Lock, 8), Done::Held);
        assert_eq!(lock(Call::TryLock, 8), done(status::BUSY));
        assert_eq!(lock(Call::Lock, 7), done(status::BUSY), "held by itself");
        assert_eq!(lock(Call::Unlock, 8), done(status::NOT_PERMITTED));
        assert_eq!(lock(Call::Unlock, 7), done(status::OK));
        assert_eq!(lock(Call::Lock, 8), done(status::OK));
        assert!(states.release(8) && !states.release(8));
    }

    #[test]
    fn locks_per_call_are_limited_and_all_are_released() {
        let state = StateDeclaration {
            name: String::new(),
            kind: StateKind::Locks,
            key_bytes: 0,
            value_bytes: 0,
            entries: 1 << 24,
            scope: Scope::Shared,
        };
        let program = Program { states: vec![state], ..Program::default() };
        let mut states = States::new(&program, Scope::Shared).declared;
        let mut lock = |call, index, holder| {
            let arguments = [0, index, 0, 0, 0];
            states.perform(call, &arguments, [&[], &[]], &mut [], holder)
        };
        for index in 0..64 {
            assert_eq!(lock(Call::Lock, index << 18, 7), done(status::OK));
        }
        assert_eq!(lock(Call::TryLock, 1, 7), done(status::FULL));
        assert_eq!(lock(Call::TryLock, 1, 8), done(status::OK), "the limit is per call");
        assert_eq!(lock(Call::Unlock, 5 << 18, 7), done(status::OK));
        assert_eq!(lock(Call::TryLock, 2, 7), done(status::OK));
        assert!(states.release(7) && !states.release(7));
        let mut lock = |index, holder| {
            states.perform(Call::TryLock, &[0, index, 0, 0, 0], [&[], &[]], &mut [], holder)
        };
        assert_eq!(lock(2, 9), done(status::OK));
        assert_eq!(lock(1, 9), done(status::BUSY), "held by another call");
    }

    #[test]
    fn buffers_of_wrong_length_are_refused_by_every_helper() {
        let mut states = states();
        let short = [1_u8; 1];
        for length in [0, 1, 3, 5] {
            let bytes = &[1; 5][..length];
            let mut output = vec![9; length];
            for call in (0..=255).filter_map(Call::with_number) {
                for handle in 0..6 {
                    let arguments = [handle, 0, 1, 0, 0];
                    states.perform(call, &arguments, [bytes, bytes], &mut output, 7);
                    states.perform(call, &arguments, [&short, bytes], &mut output, 7);
                }
            }
        }
        let array = perform(&mut states, Call::ArrayRead, [0, 0, 0], [&[], &[]]);
        assert_eq!(array, Done::Result(0), "nothing was written");
    }

    #[test]
    fn erased_state_is_freed_a_few_chunks_at_a_time() {
        let mut program = Program::default();
        for (kind, key_bytes, value_bytes, entries) in [
            (StateKind::Array, 0, 64, 1 << 18),
            (StateKind::Counters, 0, 8, 1 << 20),
            (StateKind::Map, 4, 4, 1 << 20),
            (StateKind::Locks, 0, 0, 1 << 20),
        ] {
            let (name, scope) = (String::new(), Scope::Shared);
            let declared = StateDeclaration { name, kind, key_bytes, value_bytes, entries, scope };
            program.states.push(declared);
        }
        let mut erased = Erased::default();
        let mut freed = 0;
        for _ in 0..3 {
            let mut states = States::new(&program, Scope::Shared);
            for index in 0..1 << 12 {
                let arguments = [0, index << 6, 0, 0, 0];
                states.declared.perform(Call::ArrayWrite, &arguments, [&[1; 64], &[]], &mut [], 7);
            }
            erased.add(states);
        }
        while erased.free_some() {
            freed += 1;
        }
        assert!((512..10_000).contains(&freed), "{freed}");
        assert!(erased.is_empty() && !erased.free_some());
    }
}

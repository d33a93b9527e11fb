//! State near the memory: variables, arrays, counters, maps and locks that outlive calls (003 §2).

use farside_rmc::Program;
use farside_rmc::helpers::{Call, StateKind, status};
use farside_rmc::program::{Scope, StateDeclaration};
use std::collections::HashMap;

/// Who holds a lock; zero is nobody.
pub(super) type Holder = u64;

/// What is kept for one declaration.
#[derive(Debug)]
enum Kept {
    /// Declared for the other scope.
    Elsewhere,
    Array {
        value_bytes: usize,
        bytes: Vec<u8>,
    },
    Counters(Vec<u64>),
    Map {
        entries_max: usize,
        entries: HashMap<Box<[u8]>, Box<[u8]>>,
    },
    Locks(Vec<Holder>),
}

/// All state of one scope of one program: of a session, or shared.
#[derive(Debug, Default)]
pub(super) struct States {
    /// As they are lent to a machine.
    pub(super) variables: Vec<u8>,
    pub(super) declared: Declared,
}

/// What is kept for the declarations of a program, by handle.
#[derive(Debug, Default)]
pub(super) struct Declared(Vec<Kept>);

/// What came of an operation on state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// The helper's result; its output is written.
    Result(u64),
    /// The lock is another one's.
    Held,
    /// It is state of the other scope.
    Elsewhere,
}

fn done(status: i64) -> Done {
    Done::Result(status as u64)
}

impl States {
    /// State as it is when a program is registered.
    pub(super) fn new(program: &Program, scope: Scope) -> Self {
        let variables = match scope {
            Scope::QueuePair => program.variables.own.clone(),
            Scope::Shared => program.variables.shared.clone(),
        };
        let kept = |state: &StateDeclaration| {
            let entries = state.entries as usize;
            match state.kind {
                _ if state.scope != scope => Kept::Elsewhere,
                StateKind::Array => {
                    let value_bytes = state.value_bytes as usize;
                    Kept::Array { value_bytes, bytes: vec![0; value_bytes * entries] }
                }
                StateKind::Counters => Kept::Counters(vec![0; entries]),
                StateKind::Map => Kept::Map { entries_max: entries, entries: HashMap::new() },
                StateKind::Locks => Kept::Locks(vec![0; entries]),
            }
        };
        Self { variables, declared: Declared(program.states.iter().map(kept).collect()) }
    }

    /// Bytes that a program's state takes in a scope, when it is full.
    pub(super) fn bytes(program: &Program, scope: Scope) -> u64 {
        let variables = match scope {
            Scope::QueuePair => program.variables.own.len(),
            Scope::Shared => program.variables.shared.len(),
        };
        let states = program.states.iter().filter(|state| state.scope == scope);
        states.map(StateDeclaration::bytes).sum::<u64>() + variables as u64
    }
}

impl Declared {
    /// Carries a helper out on the state that its first argument names.
    pub(super) fn perform(
        &mut self,
        call: Call,
        arguments: &[u64; 5],
        inputs: [&[u8]; 2],
        output: &mut [u8],
        holder: Holder,
    ) -> Done {
        let kept = usize::try_from(arguments[0]).ok().and_then(|at| self.0.get_mut(at));
        let Some(kept) = kept else {
            return done(status::NOT_PERMITTED);
        };
        let index = usize::try_from(arguments[1]).unwrap_or(usize::MAX);
        match (kept, call) {
            (Kept::Elsewhere, _) => Done::Elsewhere,
            (Kept::Array { value_bytes, bytes }, Call::ArrayRead | Call::ArrayWrite) => {
                let start = index.checked_mul(*value_bytes);
                let range = start.and_then(|start| Some(start..start.checked_add(*value_bytes)?));
                let Some(value) = range.and_then(|range| bytes.get_mut(range)) else {
                    return done(status::OUT_OF_RANGE);
                };
                match call {
                    Call::ArrayRead => output.copy_from_slice(value),
                    _ => value.copy_from_slice(inputs[0]),
                }
                done(status::OK)
            }
            (Kept::Counters(counters), Call::CounterAdd) => match counters.get_mut(index) {
                Some(counter) => {
                    *counter = counter.wrapping_add(arguments[2]);
                    Done::Result(*counter)
                }
                None => done(status::OUT_OF_RANGE),
            },
            (Kept::Map { entries_max, entries }, _) => {
                map(*entries_max, entries, call, inputs, output)
            }
            (Kept::Locks(locks), _) => lock(locks, index, call, holder),
            _ => done(status::NOT_PERMITTED),
        }
    }

    /// Gives every lock of a holder back; whether it had any.
    pub(super) fn release(&mut self, holder: Holder) -> bool {
        let mut had = false;
        for kept in &mut self.0 {
            if let Kept::Locks(locks) = kept {
                for lock in locks.iter_mut().filter(|lock| **lock == holder) {
                    *lock = 0;
                    had = true;
                }
            }
        }
        had
    }
}

fn map(
    entries_max: usize,
    entries: &mut HashMap<Box<[u8]>, Box<[u8]>>,
    call: Call,
    inputs: [&[u8]; 2],
    output: &mut [u8],
) -> Done {
    let [key, value] = inputs;
    match call {
        Call::MapGet => match entries.get(key) {
            Some(value) => {
                output.copy_from_slice(value);
                done(status::OK)
            }
            None => done(status::NOT_FOUND),
        },
        Call::MapPut => {
            if let Some(place) = entries.get_mut(key) {
                place.copy_from_slice(value);
            } else if entries.len() < entries_max {
                entries.insert(key.into(), value.into());
            } else {
                return done(status::FULL);
            }
            done(status::OK)
        }
        Call::MapRemove if entries.remove(key).is_some() => done(status::OK),
        Call::MapRemove => done(status::NOT_FOUND),
        _ => done(status::NOT_PERMITTED),
    }
}

fn lock(locks: &mut [Holder], index: usize, call: Call, holder: Holder) -> Done {
    let Some(lock) = locks.get_mut(index) else {
        return done(status::OUT_OF_RANGE);
    };
    match (call, *lock) {
        (Call::Lock | Call::TryLock, 0) => {
            *lock = holder;
            done(status::OK)
        }
        // Whoever waits for what it holds itself would wait for ever.
        (Call::Lock, other) if other != holder => Done::Held,
        (Call::Lock | Call::TryLock, _) => done(status::BUSY),
        (Call::Unlock, other) if other == holder => {
            *lock = 0;
            done(status::OK)
        }
        _ => done(status::NOT_PERMITTED),
    }
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
        assert_eq!(States::bytes(&program, Scope::Shared), 8 + 16 + 6);
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
    fn arrays_and_counters_keep_what_they_are_given_within_their_bounds() {
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
    fn locks_have_one_holder_and_come_back_with_it() {
        let mut states = states();
        let mut lock =
            |call, holder| states.perform(call, &[3, 1, 0, 0, 0], [&[], &[]], &mut [], holder);
        assert_eq!(lock(Call::Lock, 7), done(status::OK));
        assert_eq!(lock(Call::Lock, 8), Done::Held);
        assert_eq!(lock(Call::TryLock, 8), done(status::BUSY));
        assert_eq!(lock(Call::Lock, 7), done(status::BUSY), "of its own");
        assert_eq!(lock(Call::Unlock, 8), done(status::NOT_PERMITTED));
        assert_eq!(lock(Call::Unlock, 7), done(status::OK));
        assert_eq!(lock(Call::Lock, 8), done(status::OK));
        assert!(states.release(8) && !states.release(8));
    }
}

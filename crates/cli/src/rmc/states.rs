//! State declared by a program, kept for one call.

use farside_rmc::helpers::{Call, StateKind, status};
use farside_rmc::program::StateDeclaration;
use std::collections::BTreeMap;

/// Storage of one declared state. Values never written read as zero and take no memory.
enum StateStorage {
    Array { values: BTreeMap<u64, Vec<u8>>, entries: u64 },
    Counters { values: BTreeMap<u64, u64>, entries: u64 },
    Map { values: BTreeMap<Vec<u8>, Vec<u8>>, entries: u64 },
    Locks { held: BTreeMap<u64, ()>, entries: u64 },
}

/// All states of a program, by handle.
pub(super) struct States(Vec<StateStorage>);

impl States {
    pub(super) fn new(declared: &[StateDeclaration]) -> Self {
        let state = |declared: &StateDeclaration| {
            let entries = u64::from(declared.entries);
            match declared.kind {
                StateKind::Array => StateStorage::Array { values: BTreeMap::new(), entries },
                StateKind::Counters => StateStorage::Counters { values: BTreeMap::new(), entries },
                StateKind::Map => StateStorage::Map { values: BTreeMap::new(), entries },
                StateKind::Locks => StateStorage::Locks { held: BTreeMap::new(), entries },
            }
        };
        Self(declared.iter().map(state).collect())
    }

    fn state(&mut self, handle: u64) -> Option<&mut StateStorage> {
        self.0.get_mut(usize::try_from(handle).ok()?)
    }

    /// Adds to a counter and returns its new value; `None` if there is no such counter.
    pub(super) fn add(&mut self, handle: u64, index: u64, addend: u64) -> Option<u64> {
        let Some(StateStorage::Counters { values, entries }) = self.state(handle) else {
            return None;
        };
        if index >= *entries {
            return None;
        }
        let value = values.entry(index).or_default();
        *value = value.wrapping_add(addend);
        Some(*value)
    }

    /// Carries out a helper call that returns a status; `None` if it does not match the state's kind.
    pub(super) fn perform(
        &mut self,
        call: Call,
        [handle, index]: [u64; 2],
        inputs: [&[u8]; 2],
        output: &mut [u8],
    ) -> Option<i64> {
        Some(match (call, self.state(handle)?) {
            (Call::ArrayRead, StateStorage::Array { values, entries }) if index < *entries => {
                match values.get(&index) {
                    Some(value) => output.copy_from_slice(value),
                    None => output.fill(0),
                }
                status::OK
            }
            (Call::ArrayWrite, StateStorage::Array { values, entries }) if index < *entries => {
                values.insert(index, inputs[0].to_vec());
                status::OK
            }
            (Call::ArrayRead | Call::ArrayWrite, StateStorage::Array { .. }) => {
                status::OUT_OF_RANGE
            }
            (Call::MapGet, StateStorage::Map { values, .. }) => match values.get(inputs[0]) {
                Some(value) => {
                    output.copy_from_slice(value);
                    status::OK
                }
                None => status::NOT_FOUND,
            },
            (Call::MapPut, StateStorage::Map { values, entries }) => {
                let full = values.len() as u64 >= *entries;
                if full && !values.contains_key(inputs[0]) {
                    return Some(status::FULL);
                }
                values.insert(inputs[0].to_vec(), inputs[1].to_vec());
                status::OK
            }
            (Call::MapRemove, StateStorage::Map { values, .. }) => match values.remove(inputs[0]) {
                Some(_) => status::OK,
                None => status::NOT_FOUND,
            },
            (Call::Lock | Call::TryLock | Call::Unlock, StateStorage::Locks { held, entries }) => {
                match call {
                    _ if index >= *entries => status::OUT_OF_RANGE,
                    Call::Unlock => {
                        held.remove(&index);
                        status::OK
                    }
                    // No other call runs that could release it.
                    _ if held.contains_key(&index) => status::BUSY,
                    _ => {
                        held.insert(index, ());
                        status::OK
                    }
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_rmc::program::Scope;

    fn states() -> States {
        let state = |kind, key_bytes, value_bytes| StateDeclaration {
            name: String::new(),
            kind,
            key_bytes,
            value_bytes,
            entries: 2,
            scope: Scope::QueuePair,
        };
        States::new(&[
            state(StateKind::Array, 0, 2),
            state(StateKind::Counters, 0, 8),
            state(StateKind::Map, 1, 2),
            state(StateKind::Locks, 0, 0),
        ])
    }

    #[test]
    fn arrays_and_counters_check_bounds() {
        let mut states = states();
        let mut out = [9; 2];
        let none: [&[u8]; 2] = [&[], &[]];
        assert_eq!(states.perform(Call::ArrayRead, [0, 1], none, &mut out), Some(status::OK));
        assert_eq!(out, [0, 0]);
        assert_eq!(states.perform(Call::ArrayWrite, [0, 1], [&[1, 2], &[]], &mut []), Some(0));
        assert_eq!(states.perform(Call::ArrayRead, [0, 1], none, &mut out), Some(0));
        assert_eq!(out, [1, 2]);
        let outside = states.perform(Call::ArrayWrite, [0, 2], [&[1, 2], &[]], &mut []);
        assert_eq!(outside, Some(status::OUT_OF_RANGE));
        assert_eq!((states.add(1, 0, 5), states.add(1, 0, u64::MAX)), (Some(5), Some(4)));
        assert_eq!((states.add(1, 2, 1), states.add(0, 0, 1)), (None, None));
    }

    #[test]
    fn maps_are_bounded_and_locks_exclude() {
        let mut states = states();
        let mut put = |key: u8| states.perform(Call::MapPut, [2, 0], [&[key], &[key, 7]], &mut []);
        assert_eq!([put(1), put(2), put(1), put(3)], [0, 0, 0, status::FULL].map(Some));
        let mut out = [0; 2];
        let mut get = |states: &mut States, key: u8| {
            states.perform(Call::MapGet, [2, 0], [&[key], &[]], &mut out)
        };
        assert_eq!((get(&mut states, 2), get(&mut states, 3)), (Some(0), Some(status::NOT_FOUND)));
        let removed =
            |states: &mut States| states.perform(Call::MapRemove, [2, 0], [&[2], &[]], &mut []);
        assert_eq!(
            (removed(&mut states), removed(&mut states)),
            (Some(0), Some(status::NOT_FOUND))
        );
        assert_eq!(out, [2, 7]);
        let mut lock = |call, index| states.perform(call, [3, index], [&[], &[]], &mut []);
        assert_eq!(lock(Call::Lock, 1), Some(status::OK));
        assert_eq!(lock(Call::TryLock, 1), Some(status::BUSY));
        assert_eq!(lock(Call::Unlock, 1), Some(status::OK));
        assert_eq!(lock(Call::TryLock, 1), Some(status::OK));
        assert_eq!(lock(Call::Lock, 2), Some(status::OUT_OF_RANGE));
        // The handle is of another kind.
        assert_eq!(lock(Call::MapGet, 1), None);
    }
}

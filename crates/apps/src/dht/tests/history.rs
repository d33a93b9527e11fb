//! Checks whether the observed operations on one key are linearizable.

use std::collections::HashSet;

/// An operation on a key, and its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyAction {
    Get(Option<u64>),
    /// The value, and whether the key was new.
    Put(u64, bool),
    PutIfAbsent(u64, bool),
    Delete(bool),
    /// A put that does not say whether the key was new.
    Write(u64),
    /// The result of `mixed` with this number, if there was a value.
    Update(u64, Option<u64>),
}

/// One operation on a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryEvent {
    pub(crate) key: usize,
    pub(crate) action: KeyAction,
    pub(crate) called: u64,
    /// When it returned; `None` if it did not, or failed: then it may have happened at any time since, or
    /// never, and its result is ignored.
    pub(crate) returned: Option<u64>,
}

/// The value that an update makes of a value.
pub(crate) fn mixed(value: u64, number: u64) -> u64 {
    value.wrapping_mul(31).wrapping_add(number)
}

impl HistoryEvent {
    /// The value after this event if it is possible at `before`.
    fn apply(&self, before: Option<u64>) -> Option<Option<u64>> {
        let known = self.returned.is_some();
        match self.action {
            KeyAction::Get(seen) => (!known || seen == before).then_some(before),
            KeyAction::Put(value, new) => {
                (!known || new == before.is_none()).then_some(Some(value))
            }
            KeyAction::PutIfAbsent(value, new) => {
                (!known || new == before.is_none()).then_some(before.or(Some(value)))
            }
            KeyAction::Write(value) => Some(Some(value)),
            KeyAction::Delete(was) => (!known || was == before.is_some()).then_some(None),
            KeyAction::Update(number, seen) => {
                let after = before.map(|value| mixed(value, number));
                (!known || seen == after).then_some(after)
            }
        }
    }
}

/// Explains why the events of one key are impossible, or returns `None` if they are possible.
pub(crate) fn contradiction(events: &[HistoryEvent]) -> Option<String> {
    if !search(events, None, 1).is_empty() {
        return None;
    }
    let mut lines: Vec<_> = events.to_vec();
    lines.sort_by_key(|event| event.called);
    let lines: Vec<_> = lines.iter().map(|event| format!("  {event:?}")).collect();
    Some(format!("no order explains:\n{}", lines.join("\n")))
}

/// The possible values of a key after these events, from a value at their start; none if the events are
/// impossible.
pub(crate) fn ends(events: &[HistoryEvent], start: Option<u64>) -> HashSet<Option<u64>> {
    search(events, start, usize::MAX)
}

/// Searches over the progress of each chain. A chain has sequential operations, as those of one session, so
/// the number of states does not grow with the duration of an operation.
fn search(events: &[HistoryEvent], start: Option<u64>, enough: usize) -> HashSet<Option<u64>> {
    let chains = chains(events);
    let mut ends = HashSet::new();
    let mut seen = HashSet::new();
    let mut stack = vec![(vec![0; chains.len()], start)];
    while let Some((at, value)) = stack.pop() {
        if !seen.insert((at.clone(), value)) {
            continue;
        }
        let next = || chains.iter().zip(&at).map(|(chain, at)| chain.get(*at));
        let deadline = next().flatten().filter_map(|event| event.returned).min();
        if deadline.is_none() {
            ends.insert(value);
            if ends.len() >= enough {
                break;
            }
        }
        for (chain, event) in next().enumerate() {
            let Some(event) = event else { continue };
            if deadline.is_some_and(|deadline| event.called > deadline) {
                continue;
            }
            if let Some(after) = event.apply(value) {
                let mut at = at.clone();
                at[chain] += 1;
                stack.push((at, after));
            }
        }
    }
    ends
}

/// Partitions the events into few chains, in each of which an operation is called after the previous one
/// has returned. An event that never returned is the last of its chain.
fn chains(events: &[HistoryEvent]) -> Vec<Vec<HistoryEvent>> {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.called);
    let mut chains: Vec<Vec<HistoryEvent>> = Vec::new();
    for event in events {
        let ended =
            |last: &HistoryEvent| last.returned.is_some_and(|returned| returned < event.called);
        match chains.iter_mut().find(|chain| chain.last().is_some_and(ended)) {
            Some(chain) => chain.push(event),
            None => chains.push(vec![event]),
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: KeyAction, called: u64, returned: u64) -> HistoryEvent {
        HistoryEvent { key: 0, action, called, returned: Some(returned) }
    }

    #[test]
    fn a_stale_read_is_found() {
        let put = event(KeyAction::Put(7, true), 1, 2);
        assert!(contradiction(&[put, event(KeyAction::Get(Some(7)), 3, 4)]).is_none());
        assert!(contradiction(&[put, event(KeyAction::Get(None), 3, 4)]).is_some());
        assert!(contradiction(&[put, event(KeyAction::Get(None), 0, 4)]).is_none(), "they overlap");
    }

    #[test]
    fn a_lost_update_is_found() {
        let put = event(KeyAction::Put(7, true), 1, 2);
        let update =
            |number, value, called| event(KeyAction::Update(number, Some(value)), called, 9);
        let both = mixed(mixed(7, 1), 2);
        assert!(contradiction(&[put, update(1, mixed(7, 1), 3), update(2, both, 4)]).is_none());
        assert!(
            contradiction(&[put, update(1, mixed(7, 1), 3), update(2, mixed(7, 2), 4)]).is_some()
        );
    }

    #[test]
    fn operation_without_return_may_or_may_not_have_happened() {
        let unknown = HistoryEvent { returned: None, ..event(KeyAction::Put(7, true), 1, 0) };
        for seen in [None, Some(7)] {
            assert!(contradiction(&[unknown, event(KeyAction::Get(seen), 3, 4)]).is_none());
        }
        let early = event(KeyAction::Get(Some(7)), 0, 0);
        assert!(contradiction(&[unknown, early]).is_some(), "but not before it was called");
    }

    #[test]
    fn two_new_keys_cannot_both_be_new() {
        let one = event(KeyAction::PutIfAbsent(1, true), 1, 5);
        let two = event(KeyAction::PutIfAbsent(2, true), 2, 6);
        assert!(contradiction(&[one, two]).is_some());
    }
}

//! The rules of cells: unit tests, and (under `cfg(loom)`) every interleaving of sessions with an engine
//! that takes loans back and lends again, or (under `cfg(shuttle)`) many random ones of more of them. Run
//! them with `cargo xtask ci --only loom` and `--only shuttle`.

use super::*;
use farside_base::{GlobalAddress, LineSize, NodeId};
use farside_protocol::lock::Token;

/// A line; if there is one cell, all lines share it.
fn line(number: u64) -> LineAddress {
    GlobalAddress::new(NodeId(1), LineSize::MIN, number * 64).expect("a small offset").line()
}

fn held(place: Place, start: u32, bytes: u32, mode: Mode) -> LentLock {
    LentLock { place, range: Range { start, bytes }, mode }
}

fn loan(first: u64, tokens: u32) -> Loan {
    Loan { first: Token(first), tokens, bytes: 64 }
}

#[cfg(any(loom, shuttle))]
mod programs {
    use super::*;
    #[cfg(loom)]
    use loom as engine;
    #[cfg(shuttle)]
    use shuttle as engine;

    use engine::sync::atomic::{AtomicU64 as Word, AtomicUsize};
    use engine::sync::{Arc, Mutex};
    use engine::thread;

    /// The state of the lock machine in this model.
    #[derive(Default)]
    struct Machine {
        /// The lock of each line that was taken back while held.
        held: [Option<LentLock>; 2],
        /// The next token, of all lines.
        token_next: u64,
    }

    struct LockNode {
        cells: LockCells,
        machine: Mutex<Machine>,
        /// How many sessions are between lock and unlock of each line.
        inside: [AtomicUsize; 2],
        /// The data that the lock of each line protects: the last token, written without synchronisation.
        last: [Word; 2],
    }

    impl LockNode {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                cells: LockCells::new(1),
                machine: Mutex::new(Machine { held: [None; 2], token_next: 1 }),
                inside: [AtomicUsize::new(0), AtomicUsize::new(0)],
                last: [Word::new(0), Word::new(0)],
            })
        }

        /// Engine: lends a line with an unheld lock, if there is room.
        fn lend(&self, number: usize, tokens: u32) {
            let mut machine = self.machine.lock().unwrap();
            if machine.held[number].is_none() && self.cells.lent().next().is_none() {
                self.cells.lend(line(number as u64), loan(machine.token_next, tokens));
                machine.token_next += u64::from(tokens);
            }
        }

        /// Engine: takes a line back.
        fn take_back(&self, number: usize) {
            let mut machine = self.machine.lock().unwrap();
            if let Some(returned) = self.cells.take_back(line(number as u64)) {
                assert!(machine.held[number].is_none(), "lent while held");
                machine.held[number] = returned.held;
            }
        }

        /// Session: one attempt to lock, the critical section, and the unlock, on loan or not.
        fn visit(&self, number: usize, own: LentLock) {
            let Some(token) = self.cells.lock(line(number as u64), own, || true) else {
                return;
            };
            assert_eq!(self.inside[number].fetch_add(1, Ordering::Relaxed), 0, "two hold");
            let last = self.last[number].load(Ordering::Relaxed);
            assert!(token > last, "token {token} after {last}");
            self.last[number].store(token, Ordering::Relaxed);
            self.inside[number].fetch_sub(1, Ordering::Relaxed);
            if !self.cells.unlock(line(number as u64), own) {
                let mut machine = self.machine.lock().unwrap();
                assert_eq!(machine.held[number].take(), Some(own), "a holder was lost");
            }
        }
    }

    fn writer(place: Place) -> LentLock {
        held(place, 8, 8, Mode::Write)
    }

    /// Runs sessions that visit these lines concurrently with the engine; then checks for leftovers.
    fn run(node: &Arc<LockNode>, visits: &[&'static [usize]], engine: impl FnOnce(&LockNode)) {
        let threads: Vec<_> = visits
            .iter()
            .enumerate()
            .map(|(place, lines)| {
                let (node, lines) = (Arc::clone(node), *lines);
                thread::spawn(move || {
                    lines.iter().for_each(|line| node.visit(*line, writer(place as Place)));
                })
            })
            .collect();
        engine(node);
        for thread in threads {
            thread.join().unwrap();
        }
        for number in [0, 1] {
            node.take_back(number);
        }
        assert_eq!(node.machine.lock().unwrap().held, [None; 2], "a holder of the past");
    }

    pub(super) fn two_sessions_never_hold_at_once() {
        let node = LockNode::new();
        node.lend(0, 4);
        run(&node, &[&[0, 0], &[0]], |_| {});
    }

    pub(super) fn a_loan_taken_back_tells_its_holder() {
        let node = LockNode::new();
        node.lend(0, 4);
        run(&node, &[&[0], &[0]], |node| node.take_back(0));
    }

    pub(super) fn a_line_lent_again_has_one_holder_and_new_tokens() {
        let node = LockNode::new();
        node.lend(0, 2);
        run(&node, &[&[0], &[0]], |node| {
            node.take_back(0);
            node.lend(0, 2);
        });
    }

    pub(super) fn a_cell_lent_for_another_line_is_not_mistaken() {
        let node = LockNode::new();
        node.lend(0, 2);
        run(&node, &[&[0, 1]], |node| {
            node.take_back(0);
            node.lend(1, 2);
            node.take_back(1);
            node.lend(0, 2);
        });
    }
}

#[cfg(any(loom, shuttle))]
macro_rules! searched {
    ($($name:ident)*) => {
        #[cfg(loom)]
        mod loom_tests {
            $(#[test] fn $name() {
                let mut search = loom::model::Builder::new();
                search.preemption_bound = Some(3);
                search.check(super::programs::$name);
            })*
        }

        #[cfg(shuttle)]
        mod shuttle_tests {
            $(#[test] fn $name() { shuttle::check_random(super::programs::$name, 20_000) })*
        }
    };
}

#[cfg(any(loom, shuttle))]
searched! {
    two_sessions_never_hold_at_once
    a_loan_taken_back_tells_its_holder
    a_line_lent_again_has_one_holder_and_new_tokens
    a_cell_lent_for_another_line_is_not_mistaken
}

#[cfg(not(any(loom, shuttle)))]
mod unit {
    use super::*;

    #[test]
    fn a_lent_line_is_locked_and_unlocked_by_one_at_a_time() {
        let cells = LockCells::new(4);
        let (own, other) = (held(3, 8, 8, Mode::Write), held(4, 0, 64, Mode::Read));
        assert_eq!(cells.lock(line(1), own, || true), None, "not lent");
        cells.lend(line(1), loan(100, 3));
        assert!(!cells.unlock(line(1), own), "not held");
        assert_eq!(cells.lock(line(1), own, || true), Some(100));
        assert_eq!(cells.lock(line(1), other, || true), None);
        assert!(!cells.unlock(line(1), other), "another's");
        assert!(!cells.unlock(line(1), held(3, 8, 8, Mode::Read)), "another mode");
        assert!(!cells.unlock(line(1), held(3, 8, 16, Mode::Write)), "another range");
        assert!(cells.unlock(line(1), own) && !cells.unlock(line(1), own));
        assert_eq!(cells.lock(line(1), other, || true), Some(101));
        let returned = Returned { used: 2, held: Some(other) };
        assert_eq!(cells.take_back(line(1)), Some(returned));
        assert_eq!(cells.take_back(line(1)), None);
        assert!(!cells.unlock(line(1), other), "the machine's now");
    }

    #[test]
    fn a_loan_ends_with_its_tokens_and_its_bytes() {
        let cells = LockCells::new(4);
        cells.lend(line(1), Loan { bytes: 40, ..loan(7, 2) });
        assert_eq!(
            cells.lock(line(1), held(0, 8, 33, Mode::Write), || true),
            None,
            "past the allocation"
        );
        for token in [7, 8] {
            let own = held(0, 8, 32, Mode::Write);
            assert_eq!(cells.lock(line(1), own, || true), Some(token));
            assert!(cells.unlock(line(1), own));
        }
        assert_eq!(cells.lock(line(1), held(0, 0, 1, Mode::Read), || true), None, "no token left");
        assert_eq!(cells.take_back(line(1)), Some(Returned { used: 2, held: None }));
        cells.lend(line(1), loan(9, 2));
        assert_eq!(cells.lock(line(1), held(0, 0, 1, Mode::Read), || true), Some(9));
    }

    #[test]
    fn line_is_wanted_after_two_consecutive_unlocks() {
        let cells = LockCells::new(1);
        assert!(!cells.wants(line(1)) && !cells.wants(line(2)), "once each");
        assert!(cells.wants(line(2)));
        cells.lend(line(2), loan(1, 9));
        let own = held(0, 0, 64, Mode::Write);
        assert_eq!(cells.lock(line(2), own, || true), Some(1));
        assert!(!cells.wants(line(1)) && !cells.wants(line(1)), "the cell is in use");
        assert!(cells.unlock(line(2), own) && cells.wants(line(1)));
        let returned = Returned { used: 1, held: None };
        assert_eq!(cells.make_room(line(1)), Some((line(2), returned)));
        cells.lend(line(1), loan(10, 9));
        assert_eq!(cells.lent().collect::<Vec<_>>(), [line(1)]);
        assert_eq!(cells.lock(line(2), own, || true), None);
        assert_eq!(cells.lock(line(1), own, || true), Some(10));
        assert!(cells.may_be_held_by(line(1), 0) && !cells.may_be_held_by(line(1), 1));
        cells.take_back(line(1));
        for _ in 0..UNLOCKS_IN_DISPUTE {
            assert!(!cells.wants(line(1)), "disputed");
        }
        assert!(cells.wants(line(1)));
    }

    #[test]
    fn contended_line_is_lent_at_its_first_unlock() {
        let cells = LockCells::new(1);
        let (own, other) = (held(3, 0, 8, Mode::Write), held(4, 0, 64, Mode::Read));
        assert!(!cells.is_contended(line(1), other), "not lent");
        cells.lend(line(1), loan(1, 2));
        assert!(cells.is_contended(line(1), other), "free again since");
        cells.lock(line(1), own, || true).unwrap();
        assert!(cells.is_contended(line(1), other));
        assert!(!cells.is_contended(line(2), other), "another line's cell");
        assert!(!cells.is_contended(line(1), held(3, 0, 8, Mode::Read)), "its own");
        assert!(!cells.is_contended(line(1), held(4, 8, 8, Mode::Write)), "other bytes");
        cells.take_back(line(1));
        assert!(!cells.is_contended(line(1), other) && !cells.wants(line(1)), "disputed");
        cells.contend(line(1));
        assert!(cells.is_contended(line(1), other) && cells.wants(line(1)));
        cells.dispute(line(2));
        assert!(cells.wants(line(1)), "another line");
        cells.lend(line(1), loan(3, 1));
        cells.lock(line(1), own, || true).unwrap();
        assert!(cells.unlock(line(1), own) && !cells.is_contended(line(1), other), "no token left");
        for end in
            [|cells: &LockCells| cells.dispute(line(1)), |cells: &LockCells| cells.dispute_all()]
        {
            cells.take_back(line(1));
            cells.contend(line(1));
            end(&cells);
            assert!(!cells.is_contended(line(1), other) && !cells.wants(line(1)));
        }
    }

    #[test]
    fn every_holder_has_a_distinct_word() {
        let places = [0, 1, farside_base::Limits::DEFAULT.sessions_max];
        let ranges = [(0, 1), (0, 65_536), (65_535, 1), (64, 8)];
        for state in [0, COUNT, 1_023 * COUNT, u64::MAX] {
            for place in places {
                for (start, bytes) in ranges {
                    for mode in [Mode::Read, Mode::Write] {
                        let own = held(place, start, bytes, mode);
                        let word = own.word(state);
                        assert_eq!(LentLock::of_word(word, state), Some(own));
                        assert_eq!(LentLock::of_word(word, state.wrapping_add(COUNT)), None);
                    }
                }
            }
        }
        assert_eq!(LentLock::of_word(0, 0), None, "no holder was stored");
        assert_eq!(size_of::<Cell>(), 64);
    }

    #[test]
    fn counts_from_both_sides_add_up() {
        let counts = LockCounts::default();
        counts.locked();
        counts.locked();
        counts.unlocked();
        assert_eq!((counts.all(), counts.on_loan()), (1, 1));
        counts.set_machine(3);
        assert_eq!((counts.all(), counts.on_loan()), (4, 1));
        counts.took();
        assert_eq!((counts.all(), counts.on_loan()), (4, 0), "the machine has it now");
        counts.set_machine(4);
        assert_eq!(counts.all(), 4);
        counts.set_machine(0);
        assert_eq!((counts.all(), counts.on_loan()), (0, 0));
    }
}

//! One session of a simulated run: random accesses, whose results are recorded or checked at once.

use super::board::{Board, OperationRecord, WordAction};
use crate::fabric::SimNet;
use farside::{AllocationHint, AllocationSpec, Error, ErrorCode, GlobalAddress, Session};
use farside_base::Random;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Words that one session uses, one in each line of the shared words, with what it has written last.
pub(super) struct OwnWords {
    addresses: Vec<GlobalAddress>,
    /// `None` after a failure: a write may have been lost.
    expected: RefCell<Vec<Option<u64>>>,
}

impl OwnWords {
    /// Bytes of a line before the first own word: more than the shared words take.
    const FIRST: u64 = 256;

    pub(super) fn new(words: &[GlobalAddress], number: usize) -> Self {
        let of_line = |word: &GlobalAddress| {
            word.checked_add(Self::FIRST - word.offset_in_line() as u64 + 8 * number as u64)
        };
        let mut addresses: Vec<GlobalAddress> = words.iter().filter_map(of_line).collect();
        addresses.dedup();
        Self { expected: RefCell::new(vec![Some(0); addresses.len()]), addresses }
    }

    fn pick(&self, random: &mut Random) -> (usize, GlobalAddress) {
        let index = random.index(self.addresses.len());
        (index, self.addresses[index])
    }

    fn doubt(&self, index: usize) {
        self.expected.borrow_mut()[index] = None;
    }

    fn wrote(&self, index: usize, value: u64) {
        self.expected.borrow_mut()[index] = Some(value);
    }

    fn expected(&self, index: usize) -> Option<u64> {
        self.expected.borrow()[index]
    }

    fn forget(&self) {
        self.expected.borrow_mut().fill(None);
    }
}

/// One session of a run.
pub(super) struct Worker {
    pub(super) session: Session,
    pub(super) node: u16,
    pub(super) number: usize,
    pub(super) words: Rc<Vec<GlobalAddress>>,
    /// Words that only this session uses.
    pub(super) own: OwnWords,
    pub(super) own_permille: u32,
    /// Blocks of three lines for atomic writes.
    pub(super) blocks: Rc<Vec<GlobalAddress>>,
    /// Words that are changed only under their locks.
    pub(super) guarded: Rc<Vec<GlobalAddress>>,
    pub(super) board: Rc<Board>,
    pub(super) random: Random,
    /// Pauses between operations up to that long, if set.
    pub(super) idles: Option<(SimNet, u64)>,
    /// Whether its node was removed.
    pub(super) out: Cell<bool>,
}

pub(super) const BLOCK_BYTES: usize = 1_200;

impl Worker {
    pub(super) async fn run(mut self, operations: u16) {
        for _ in 0..operations {
            if self.out.get() {
                return;
            }
            let idles = self.idle().await;
            if self.own_permille > 0 && self.random.chance(self.own_permille) {
                self.own_writes().await;
                continue;
            }
            // A worker that pauses mostly reads.
            let most = if idles && self.random.chance(600) { 3 } else { 13 };
            match self.random.below(most) {
                0..=2 => self.read().await,
                3..=4 => self.write().await,
                5 => self.fetch_add().await,
                6 => self.compare_swap().await,
                7 => self.swap().await,
                8 => self.locked().await,
                9 => self.whole_write().await,
                10 => self.whole_read().await,
                11 => self.own_writes().await,
                _ => self.allocate().await,
            }
        }
    }

    /// Accepts a result as the board does; a removed node never returns.
    fn accept<T>(&self, what: &str, result: Result<T, Error>) -> Option<T> {
        if let Err(Error { code, .. }) = &result {
            self.own.forget();
            if matches!(code, ErrorCode::Isolated | ErrorCode::NodeClosed) {
                self.out.set(true);
            }
        }
        self.board.accept(self.node, what, result)
    }

    /// Pauses at random, if the scenario has pauses. Returns whether it has.
    async fn idle(&mut self) -> bool {
        let Some((net, most_ns)) = self.idles.clone() else {
            return false;
        };
        if self.random.chance(600) {
            let until_ns = net.now_ns() + self.random.below(most_ns);
            std::future::poll_fn(|_| match net.now_ns() >= until_ns {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
        true
    }

    fn pick(&mut self) -> (usize, GlobalAddress) {
        let word = self.random.index(self.words.len());
        (word, self.words[word])
    }

    /// A value that no other worker writes.
    fn fresh(&mut self) -> u64 {
        (self.board.now() << 8) | self.number as u64
    }

    fn begin(&self, word: usize, action: WordAction) -> usize {
        let began = self.board.now();
        let mut history = self.board.history.borrow_mut();
        history.push(OperationRecord { word, session: self.number, action, began, ended: None });
        history.len() - 1
    }

    fn end(&self, record: usize, action: WordAction) {
        let ended = Some(self.board.now());
        let mut history = self.board.history.borrow_mut();
        history[record].action = action;
        history[record].ended = ended;
    }

    async fn read(&mut self) {
        let (word, address) = self.pick();
        let record = self.begin(word, WordAction::Read(0));
        let mut bytes = [0; 8];
        let done = self.session.read_async(address, &mut bytes).await;
        if self.accept("read", done).is_some() {
            self.end(record, WordAction::Read(u64::from_le_bytes(bytes)));
        }
    }

    /// One to three writes, then a fence.
    async fn write(&mut self) {
        let mut records = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let (word, address) = self.pick();
            let value = self.fresh();
            records.push((self.begin(word, WordAction::Write(value)), value));
            let done = self.session.write_async(address, &value.to_le_bytes()).await;
            self.accept("write", done);
        }
        let done = self.session.fence_async().await;
        if self.accept("fence", done).is_some() {
            for (record, value) in records {
                self.end(record, WordAction::Write(value));
            }
        }
    }

    /// Writes and reads words that only this session uses, in lines that others use too, without a fence: each read
    /// returns the last write.
    async fn own_writes(&mut self) {
        for _ in 0..self.random.between(2, 8) {
            let (index, address) = self.own.pick(&mut self.random);
            if self.random.chance(50) {
                // An atomic that is abandoned has taken effect before the next operation that waits, or never.
                self.own.doubt(index);
                let polled = {
                    let mut add = pin!(self.session.fetch_add_async(address, 1));
                    std::future::poll_fn(|context| Poll::Ready(add.as_mut().poll(context))).await
                };
                if let Poll::Ready(done) = polled {
                    self.accept("atomic of an own word", done);
                }
            }
            if self.random.chance(600) {
                let value = self.fresh();
                self.own.wrote(index, value);
                let done = self.session.write_async(address, &value.to_le_bytes()).await;
                self.accept("write of an own word", done);
                continue;
            }
            let mut bytes = [0; 8];
            let done = self.session.read_async(address, &mut bytes).await;
            let found =
                self.accept("read of an own word", done).map(|()| u64::from_le_bytes(bytes));
            let differs =
                |own: &OwnWords| own.expected(index).zip(found).is_some_and(|(a, b)| a != b);
            if !differs(&self.own) {
                continue;
            }
            // A failure of the write has not been reported yet, if there was one.
            let done = self.session.fence_async().await;
            self.accept("fence of own words", done);
            if differs(&self.own) {
                let expected = self.own.expected(index);
                self.board.trouble(format!("own word {address}: {found:?}, written {expected:?}"));
            }
        }
    }

    async fn fetch_add(&mut self) {
        let (word, address) = self.pick();
        let add = self.random.between(1, 5);
        let record = self.begin(word, WordAction::FetchAdd(0, add));
        let done = self.session.fetch_add_async(address, add).await;
        if let Some(before) = self.accept("fetch_add", done) {
            self.end(record, WordAction::FetchAdd(before, add));
        }
    }

    async fn compare_swap(&mut self) {
        let (word, address) = self.pick();
        let mut bytes = [0; 8];
        let done = self.session.read_async(address, &mut bytes).await;
        if self.accept("read", done).is_none() {
            return;
        }
        let (expected, new) = (u64::from_le_bytes(bytes), self.fresh());
        let record = self.begin(word, WordAction::CompareSwap(0, expected, new));
        let done = self.session.compare_swap_async(address, expected, new).await;
        if let Some(before) = self.accept("compare_swap", done) {
            self.end(record, WordAction::CompareSwap(before, expected, new));
        }
    }

    async fn swap(&mut self) {
        let (word, address) = self.pick();
        let new = self.fresh();
        let record = self.begin(word, WordAction::Swap(0, new));
        let done = self.session.swap_async(address, new).await;
        if let Some(before) = self.accept("swap", done) {
            self.end(record, WordAction::Swap(before, new));
        }
    }

    /// Increments a guarded word by plain accesses under its lock.
    async fn locked(&mut self) {
        let index = self.random.index(self.guarded.len());
        let address = self.guarded[index];
        let locked = self.session.lock_write_async(address, 8).await.map(|guard| guard.keep());
        if self.accept("lock", locked).is_none() || self.board.leaver.get() == Some(self.node) {
            return; // not granted, or the node has left since
        }
        let others = self.board.inside.borrow_mut()[index].replace(self.number);
        if let Some(other) = others.filter(|_| !self.board.may_fail.get()) {
            self.board.trouble(format!("sessions {other} and {} hold one lock", self.number));
        }
        let mut bytes = [0; 8];
        let done = self.session.read_async(address, &mut bytes).await;
        if self.accept("locked read", done).is_some() {
            let value = u64::from_le_bytes(bytes) + 1;
            let done = self.session.write_async(address, &value.to_le_bytes()).await;
            self.accept("locked write", done);
        }
        if self.board.leaver.get() == Some(self.node) {
            return; // its lock is gone
        }
        let inside = self.board.inside.borrow_mut()[index].take();
        if inside.is_some_and(|session| session != self.number) && !self.board.may_fail.get() {
            self.board.trouble(format!("session {inside:?} entered while {} held it", self.number));
        }
        let done = self.session.unlock_async(address, 8).await;
        self.accept("unlock", done);
    }

    async fn whole_write(&mut self) {
        let address = *self.random.pick(&self.blocks);
        let bytes = [self.fresh() as u8; BLOCK_BYTES];
        let done = self.session.write_atomic_async(address, &bytes).await;
        self.accept("write_atomic", done);
    }

    async fn whole_read(&mut self) {
        let address = *self.random.pick(&self.blocks);
        let mut bytes = [0; BLOCK_BYTES];
        let done = self.session.read_atomic_async(address, &mut bytes).await;
        if self.accept("read_atomic", done).is_some() && bytes.iter().any(|byte| *byte != bytes[0])
        {
            self.board.trouble(format!("block {address} is torn"));
        }
    }

    /// Allocates memory, uses it, frees it, and checks that it is gone.
    async fn allocate(&mut self) {
        let hint = *self.random.pick(&[AllocationHint::Default, AllocationHint::Remote]);
        let spec = AllocationSpec::new(hint);
        let bytes = self.random.between(1, 1_500);
        let address = self.session.alloc_with_async(bytes, spec).await;
        let Some(address) = self.accept("alloc", address) else {
            return;
        };
        let mut back = vec![1; bytes as usize];
        let read = self.session.read_async(address, &mut back).await;
        if self.accept("read of fresh memory", read).is_some() && back.iter().any(|byte| *byte != 0)
        {
            self.board.trouble(format!("fresh memory at {address} is not zero"));
        }
        let written = self.session.write_async(address, &vec![7; bytes as usize]).await;
        self.accept("write of fresh memory", written);
        let freed = self.session.free_async(address).await;
        if self.accept("free", freed).is_none() {
            return;
        }
        match self.session.read_async(address, &mut back[..1]).await {
            Err(error) if error.code == ErrorCode::Unallocated => {}
            // The line is allocated again, which only the home knows; or the home is dead.
            other => {
                if let Err(error) = other {
                    self.accept("read of freed memory", Err::<(), _>(error));
                }
            }
        }
    }
}

//! Sequential specifications of objects.

/// A sequential object; the value is its state.
pub trait Specification: Clone + Eq + std::hash::Hash + std::fmt::Debug {
    /// What can be called.
    type Operation: Clone + std::fmt::Debug;
    /// What is answered.
    type Answer: PartialEq + Clone + std::fmt::Debug;

    /// Returns the state after `operation`, if the object can give this answer now, else `None`.
    /// Without an answer, which is then unknown, the state after it, if it can happen now.
    fn after(&self, operation: &Self::Operation, answer: Option<&Self::Answer>) -> Option<Self>;

    /// Whether it never changes the state: then it need not be explained without its answer.
    fn is_read(operation: &Self::Operation) -> bool;
}

/// A 64-bit word. Every operation answers the value before, a write answers 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Register(pub u64);

/// What a [`Register`] can do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegisterOperation {
    /// Read it.
    Read,
    /// Set it.
    Write(u64),
    /// Replace it if it has the expected value (first) by the new one (second).
    CompareSwap(u64, u64),
    /// Add to it, wrapping.
    FetchAdd(u64),
    /// Replace it.
    Swap(u64),
}

impl Specification for Register {
    type Operation = RegisterOperation;
    type Answer = u64;

    fn after(&self, operation: &RegisterOperation, answer: Option<&u64>) -> Option<Self> {
        let before = self.0;
        let (after, says) = match *operation {
            RegisterOperation::Read => (before, before),
            RegisterOperation::Write(value) => (value, 0),
            RegisterOperation::CompareSwap(expected, new) if before == expected => (new, before),
            RegisterOperation::CompareSwap(..) => (before, before),
            RegisterOperation::FetchAdd(add) => (before.wrapping_add(add), before),
            RegisterOperation::Swap(value) => (value, before),
        };
        answer.is_none_or(|answer| *answer == says).then_some(Self(after))
    }

    fn is_read(operation: &RegisterOperation) -> bool {
        matches!(operation, RegisterOperation::Read)
    }
}

/// A lock with one writer or many readers, by owner. A mutex is one without readers.
/// Answers: whether it was taken or released. The locks of a dead owner are released by an `Unlock` of
/// unknown outcome for each, invoked when it died.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lock {
    writer: Option<u64>,
    /// In rising order; an owner may be in it several times.
    readers: Vec<u64>,
}

/// What owners do with a [`Lock`]. A waiting form that gave up answers false like a trying one that
/// met another owner, but may do so although the lock was free (a time-out).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockOperation {
    /// Wait for reading.
    Read(u64),
    /// Wait for writing.
    Write(u64),
    /// Take for reading, or be refused because of a writer.
    TryRead(u64),
    /// Take for writing, or be refused because of another holder.
    TryWrite(u64),
    /// From reading to writing, waiting for other readers, or be refused.
    Upgrade(u64),
    /// Release what this owner holds: the write lock, or once for reading.
    Unlock(u64),
}

impl Lock {
    fn taken(&self, operation: LockOperation) -> Option<Self> {
        let mut after = self.clone();
        match operation {
            LockOperation::Read(owner) | LockOperation::TryRead(owner) => {
                if self.writer.is_some() {
                    return None;
                }
                let at = after.readers.partition_point(|reader| *reader <= owner);
                after.readers.insert(at, owner);
            }
            LockOperation::Write(owner) | LockOperation::TryWrite(owner) => {
                if self.writer.is_some() || !self.readers.is_empty() {
                    return None;
                }
                after.writer = Some(owner);
            }
            LockOperation::Upgrade(owner) => {
                if self.writer.is_some() || self.readers != [owner] {
                    return None;
                }
                after.readers.clear();
                after.writer = Some(owner);
            }
            LockOperation::Unlock(owner) if self.writer == Some(owner) => after.writer = None,
            LockOperation::Unlock(owner) => {
                let at = self.readers.binary_search(&owner).ok()?;
                after.readers.remove(at);
            }
        }
        Some(after)
    }
}

impl Specification for Lock {
    type Operation = LockOperation;
    type Answer = bool;

    fn after(&self, operation: &LockOperation, answer: Option<&bool>) -> Option<Self> {
        let taken = self.taken(*operation);
        match answer {
            Some(true) => taken,
            Some(false) => {
                let strict = matches!(
                    operation,
                    LockOperation::TryRead(_)
                        | LockOperation::TryWrite(_)
                        | LockOperation::Unlock(_)
                );
                (!strict || taken.is_none()).then(|| self.clone())
            }
            None => Some(taken.unwrap_or_else(|| self.clone())),
        }
    }

    fn is_read(_: &LockOperation) -> bool {
        false
    }
}

/// One key of a map. Values are represented by numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyValue {
    /// The key is not there.
    #[default]
    Absent,
    /// It has this value.
    Present(u64),
    /// The initial value is unknown: the first answer determines it.
    Unknown,
}

/// What one key of a map can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyValueOperation {
    /// Its value.
    Get,
    /// Set it, whether it is there or not.
    Put(u64),
    /// Take it out.
    Delete,
    /// Replace its value if it is there.
    Update(u64),
}

/// What a map answers about one key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyValueAnswer {
    /// Done; for other operations than `Get`.
    Done,
    /// The value of a `Get`.
    Value(u64),
    /// The key is not there, and nothing was done.
    NotFound,
}

impl Specification for KeyValue {
    type Operation = KeyValueOperation;
    type Answer = KeyValueAnswer;

    fn after(
        &self,
        operation: &KeyValueOperation,
        answer: Option<&KeyValueAnswer>,
    ) -> Option<Self> {
        let says = |expected: KeyValueAnswer| answer.is_none_or(|answer| *answer == expected);
        if *self == Self::Unknown {
            // An answer shows the previous state; without one, the operation took effect as requested.
            return match (operation, answer) {
                (KeyValueOperation::Put(_), _) => Self::Absent.after(operation, answer),
                (_, Some(KeyValueAnswer::NotFound)) => Some(Self::Absent),
                (_, Some(KeyValueAnswer::Value(value))) => {
                    Self::Present(*value).after(operation, answer)
                }
                (_, Some(KeyValueAnswer::Done) | None) => Self::Present(0).after(operation, answer),
            };
        }
        let there = *self != Self::Absent;
        let (done, after) = match (*operation, *self) {
            (KeyValueOperation::Get, Self::Present(value)) => (KeyValueAnswer::Value(value), *self),
            (KeyValueOperation::Put(value), _) => (KeyValueAnswer::Done, Self::Present(value)),
            (KeyValueOperation::Delete, _) if there => (KeyValueAnswer::Done, Self::Absent),
            (KeyValueOperation::Update(value), _) if there => {
                (KeyValueAnswer::Done, Self::Present(value))
            }
            _ => (KeyValueAnswer::NotFound, *self),
        };
        says(done).then_some(after)
    }

    fn is_read(operation: &KeyValueOperation) -> bool {
        matches!(operation, KeyValueOperation::Get)
    }
}

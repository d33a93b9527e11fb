//! Sequential specifications of objects.

/// A sequential object; the value is its state.
pub trait Specification: Clone + Eq + std::hash::Hash + std::fmt::Debug {
    /// An operation with its parameters.
    type Operation: Clone + std::fmt::Debug;
    /// The answer of an operation.
    type Answer: PartialEq + Clone + std::fmt::Debug;

    /// Returns the state after `operation`, if the object can give this answer now, else `None`. Without an answer
    /// (it is unknown), returns the state after the operation, if the operation can happen now.
    fn after(&self, operation: &Self::Operation, answer: Option<&Self::Answer>) -> Option<Self>;

    /// Whether it never changes the state; such an operation without an answer needs no explanation.
    fn is_read(operation: &Self::Operation) -> bool;
}

/// A 64-bit word. Every operation answers the previous value, a write answers 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Register(pub u64);

/// Operations of a [`Register`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegisterOperation {
    /// Reads the word.
    Read,
    /// Sets the word.
    Write(u64),
    /// Replaces the word by the new value (second) if it equals the expected one (first).
    CompareSwap(u64, u64),
    /// Adds to the word, wrapping.
    FetchAdd(u64),
    /// Replaces the word.
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

/// A lock with one writer or many readers, by owner. A mutex is a lock without readers. Answers whether it was
/// acquired or released. The locks of a dead owner are released by one `Unlock` of unknown outcome each, invoked at
/// its death.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lock {
    writer: Option<u64>,
    /// Owners in rising order; an owner may occur several times.
    readers: Vec<u64>,
}

/// Operations of owners on a [`Lock`]. A waiting operation that timed out answers false, like a try that met another
/// owner, but it may do so although the lock was free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockOperation {
    /// Waits to acquire for reading.
    Read(u64),
    /// Waits to acquire for writing.
    Write(u64),
    /// Acquires for reading, or is refused because of a writer.
    TryRead(u64),
    /// Acquires for writing, or is refused because of another holder.
    TryWrite(u64),
    /// Upgrades from reading to writing, waits for other readers, or is refused.
    Upgrade(u64),
    /// Releases a hold of this owner: the write lock, or one read lock.
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
    /// The key is absent.
    #[default]
    Absent,
    /// The key has this value.
    Present(u64),
    /// The initial value is unknown: the first answer determines it.
    Unknown,
}

/// Operations on one key of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyValueOperation {
    /// Reads the value.
    Get,
    /// Sets the value, whether the key is present or not.
    Put(u64),
    /// Removes the key.
    Delete,
    /// Replaces the value if the key is present.
    Update(u64),
}

/// Answers of a map about one key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyValueAnswer {
    /// Done; for operations other than `Get`.
    Done,
    /// The value of a `Get`.
    Value(u64),
    /// The key is absent, and the operation had no effect.
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

//! The queue between two threads of a process: a ring in shared memory with one producer and one consumer (Lamport,
//! *Specifying Concurrent Program Modules*, 1983), and the flag of a thread that sleeps until the other one has published.
//!
//! A batch is published by one store, so that the consumer sees all of it or none. The lock of a slot is never contended:
//! the producer has the slots from `tail` on, the consumer those before. It takes the place of unsafe code.
//!
//! *No lost wake-up*: a thread announces that it sleeps, then checks the ring; the other publishes, then checks the flag.
//! With a full fence between the two steps of each, one of them sees the other.

#[cfg(loom)]
use loom::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, fence},
};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, fence},
};

/// A position in a cache line of its own.
#[repr(align(64))]
struct Position(AtomicUsize);

struct SlotRing<T> {
    slots: Box<[Mutex<Option<T>>]>,
    /// Values that the consumer has taken.
    head: Position,
    /// Values that the producer has published.
    tail: Position,
}

impl<T> SlotRing<T> {
    fn slot(&self, position: usize) -> &Mutex<Option<T>> {
        &self.slots[position & (self.slots.len() - 1)]
    }
}

/// Returns both ends of a ring for this many values, rounded up to a power of two.
pub(super) fn ring<T>(values_max: usize) -> (Producer<T>, Consumer<T>) {
    let slots = (0..values_max.max(1).next_power_of_two()).map(|_| Mutex::new(None)).collect();
    let position = || Position(AtomicUsize::new(0));
    let ring = Arc::new(SlotRing { slots, head: position(), tail: position() });
    (Producer { ring: Arc::clone(&ring), next: 0, head: 0 }, Consumer { ring, next: 0, tail: 0 })
}

/// The end that puts values in.
pub(super) struct Producer<T> {
    ring: Arc<SlotRing<T>>,
    /// The position of the next value.
    next: usize,
    /// As it was last seen.
    head: usize,
}

impl<T> Producer<T> {
    /// Puts a value in, which the consumer sees after [`publish`](Self::publish); gives it back if the ring is full.
    pub(super) fn push(&mut self, value: T) -> Result<(), T> {
        if self.next.wrapping_sub(self.head) == self.ring.slots.len() {
            self.head = self.ring.head.0.load(Ordering::Acquire);
            if self.next.wrapping_sub(self.head) == self.ring.slots.len() {
                return Err(value);
            }
        }
        let slot = self.ring.slot(self.next);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Publishes the values that were put in since the last call, together.
    pub(super) fn publish(&mut self) {
        self.ring.tail.0.store(self.next, Ordering::Release);
    }
}

/// The end that takes values out.
pub(super) struct Consumer<T> {
    ring: Arc<SlotRing<T>>,
    /// The position of the next value.
    next: usize,
    /// As it was last seen.
    tail: usize,
}

impl<T> Consumer<T> {
    /// Takes the oldest published value.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let slot = self.ring.slot(self.next);
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.next = self.next.wrapping_add(1);
        self.ring.head.0.store(self.next, Ordering::Release);
        value
    }

    /// Whether no published value is left.
    pub(super) fn is_empty(&mut self) -> bool {
        if self.next == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.next == self.tail
    }
}

/// Whether a thread sleeps, or is about to.
#[derive(Debug)]
pub(super) struct SleepFlag(AtomicBool);

impl SleepFlag {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Announces that this thread is about to sleep. It checks for work after this call, and then sleeps.
    pub(super) fn announce(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub(super) fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the thread must be woken, after work for it was published. Of several callers one is asked to.
    pub(super) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn full_ring_gives_the_value_back_and_loses_none() {
        let (mut producer, mut consumer) = ring(3);
        (0..4).for_each(|value| producer.push(value).unwrap());
        assert_eq!(producer.push(4), Err(4));
        assert_eq!(consumer.pop(), None, "not published");
        producer.publish();
        assert_eq!(consumer.pop(), Some(0));
        producer.push(4).unwrap();
        assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [1, 2, 3]);
        producer.publish();
        assert_eq!((consumer.pop(), consumer.is_empty()), (Some(4), true));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    #[test]
    fn batches_arrive_whole_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let thread = thread::spawn(move || {
                for batch in [[0, 1], [2, 3]] {
                    for value in batch {
                        while producer.push(value).is_err() {
                            thread::yield_now();
                        }
                    }
                    producer.publish();
                }
            });
            let mut expected = 0;
            while expected < 4 {
                match consumer.pop() {
                    Some(value) => {
                        assert_eq!(value, expected);
                        expected += 1;
                    }
                    None => {
                        assert_eq!(expected % 2, 0, "a part of a batch was seen");
                        thread::yield_now();
                    }
                }
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn sleeper_sees_the_value_or_is_woken() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(1);
            let flag = Arc::new(SleepFlag::new());
            let announced = Arc::clone(&flag);
            let thread = thread::spawn(move || {
                producer.push(7).unwrap();
                producer.publish();
                announced.must_wake()
            });
            flag.announce();
            let has_seen = !consumer.is_empty();
            let is_woken = thread.join().unwrap();
            assert!(has_seen || is_woken, "a wake-up was lost");
        });
    }
}

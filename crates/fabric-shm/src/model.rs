//! The ring and the sleep protocol as small programs for a search of their interleavings: all of them
//! with `--cfg loom`, random ones of larger programs with `--cfg shuttle`.
//!
//! Both halves of the light and heavy barrier are modelled as sequentially consistent fences, which is
//! what they are together ([`crate::barrier`]). [`Barriers::NoLight`] shows that the search finds a
//! missing one.

#[cfg(loom)]
use loom as engine;
#[cfg(shuttle)]
use shuttle as engine;

use crate::bell::{Bell, ShmWaiter, arm, disarm, ring};
use crate::layout::link;
use crate::ring::{
    Consumer, Geometry, NoPlace, Producer, ReadWords, RingMessageKind, SLOT_BYTES, WriteWords,
};
use engine::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use engine::sync::{Arc, Condvar, Mutex};
use engine::thread;
use farside_fabric::Waiter;
use std::time::Duration;

/// The size of a program: a search of all interleavings allows only small ones.
const LARGE: bool = cfg!(shuttle);

/// Slots and bulk so small that every program wraps around.
const TINY: Geometry = Geometry { slots: 2, bulk: 256 };

/// Link memory of searched words.
#[derive(Clone)]
struct ModelWords(Arc<Vec<AtomicU64>>);

impl ModelWords {
    fn new() -> Self {
        let count = 3 + (TINY.slots as usize * 64 + TINY.bulk as usize) / 8;
        Self(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        match offset {
            link::SLOTS_TAKEN => &self.0[0],
            link::BULK_TAKEN => &self.0[1],
            link::BLOCKED => &self.0[2],
            offset => &self.0[3 + (offset - link::SLOTS) as usize / 8],
        }
    }
}

impl ReadWords for ModelWords {
    fn load(&self, offset: u64, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }
}

impl WriteWords for ModelWords {
    fn store(&self, offset: u64, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }
}

/// Two ends of a link, of which one sends and the other receives.
fn ends() -> (Producer<ModelWords, ModelWords>, Consumer<ModelWords, ModelWords>) {
    let (sending, receiving) = (ModelWords::new(), ModelWords::new());
    let producer = Producer::new(sending.clone(), receiving.clone(), TINY);
    (producer, Consumer::new(receiving, sending, TINY))
}

/// Sends `value` in its first and last word, unless the ring is full. A message that fills its slot is
/// sent whole.
fn try_send(producer: &mut Producer<ModelWords, ModelWords>, bytes: u32, value: u64) -> bool {
    if bytes == SLOT_BYTES {
        let mut whole = [0; SLOT_BYTES as usize];
        whole[..8].copy_from_slice(&value.to_ne_bytes());
        whole[48..].copy_from_slice(&value.to_ne_bytes());
        return producer.send_line(&whole);
    }
    let place = match producer.reserve(bytes) {
        Ok(place) => place,
        Err(NoPlace::Full) => return false,
        Err(NoPlace::Violation) => panic!("the consumer's counts are right"),
    };
    let last = u64::from(bytes - 8) / 8 * 8;
    for offset in [0, last] {
        let own = producer.own();
        own.store(place.payload + offset, value, Ordering::Relaxed);
    }
    producer.publish(&place, RingMessageKind::SendImmediate, bytes, value as u32);
    true
}

/// Takes a message and returns its value, if there is one. Checks first whether there is one, as a port
/// does.
fn try_receive(consumer: &mut Consumer<ModelWords, ModelWords>) -> Option<u64> {
    if consumer.seen().is_idle(consumer.other()) {
        return None;
    }
    let Some(message) = consumer.peek().expect("the producer's headers are right") else {
        consumer.settle(false);
        return None;
    };
    let last = u64::from(message.bytes - 8) / 8 * 8;
    let word = |offset| consumer.other().load(message.payload + offset, Ordering::Relaxed);
    let (first, second) = (word(0), word(last));
    assert_eq!(first, second, "all bytes are there with the header");
    if message.kind == RingMessageKind::SendImmediate {
        assert_eq!(first, u64::from(message.immediate));
    }
    consumer.take(&message);
    // As if there were more, every other time.
    consumer.settle(first % 2 == 1);
    Some(first)
}

/// Every message arrives once, whole, in order, although the ring is full in between.
fn messages_pass_in_order(bytes: fn(u64) -> u32, count: u64) {
    let (mut producer, mut consumer) = ends();
    let sender = thread::spawn(move || {
        for value in 1..=count {
            while !try_send(&mut producer, bytes(value), value) {
                thread::yield_now();
            }
        }
    });
    for value in 1..=count {
        let got = loop {
            match try_receive(&mut consumer) {
                Some(got) => break got,
                None => thread::yield_now(),
            }
        };
        assert_eq!(got, value);
    }
    sender.join().expect("no panic");
    assert_eq!(try_receive(&mut consumer), None);
}

fn short_messages_pass_in_order() {
    messages_pass_in_order(|_| 16, if LARGE { 40 } else { 4 });
}

fn whole_slots_pass_in_order() {
    messages_pass_in_order(|_| SLOT_BYTES, if LARGE { 40 } else { 3 });
}

fn long_messages_pass_in_order() {
    messages_pass_in_order(|_| 128, if LARGE { 40 } else { 3 });
}

fn messages_of_all_kinds_pass_in_order() {
    let bytes = |value| [8, 120, 56, 128, 64][value as usize % 5];
    messages_pass_in_order(bytes, if LARGE { 60 } else { 3 });
}

/// A sleep word whose futex is a lock and a condition.
struct SearchedWord {
    word: AtomicU32,
    futex: Mutex<()>,
    woken: Condvar,
}

/// A sleep word as one thread uses it. If its barrier is missing, a wake-up must get lost, or the search is blind.
#[derive(Clone)]
struct SearchedBell {
    shared: Arc<SearchedWord>,
    has_barrier: bool,
}

impl SearchedBell {
    fn new() -> Self {
        let (word, futex, woken) = (AtomicU32::new(0), Mutex::new(()), Condvar::new());
        Self { shared: Arc::new(SearchedWord { word, futex, woken }), has_barrier: true }
    }
}

impl Bell for SearchedBell {
    fn load(&self) -> u32 {
        self.shared.word.load(Ordering::Acquire)
    }

    fn exchange(&self, now: u32, new: u32) -> bool {
        let order = Ordering::Relaxed;
        self.shared.word.compare_exchange(now, new, order, order).is_ok()
    }

    fn add(&self, count: u32) {
        self.shared.word.fetch_add(count, Ordering::Release);
    }

    /// The kernel compares and queues under a lock that a waker takes too.
    fn sleep(&self, now: u32, timeout: Option<Duration>) -> bool {
        assert_eq!(timeout, None, "searched programs have no clock");
        let queue = self.shared.futex.lock().expect("no panic");
        if self.shared.word.load(Ordering::Relaxed) == now {
            drop(self.shared.woken.wait(queue).expect("no panic"));
        }
        true
    }

    fn wake(&self) {
        drop(self.shared.futex.lock().expect("no panic"));
        self.shared.woken.notify_all();
    }

    fn barrier_full(&self) {
        if self.has_barrier {
            fence(Ordering::SeqCst);
        }
    }
}

/// Sleeps until `arrived` reaches `count`, as a port's user does. Never returns if a wake-up is
/// lost, which the search reports.
fn sleep_until(arrived: &AtomicU32, count: u32, bell: &SearchedBell) {
    let waiter = ShmWaiter::new(bell.clone());
    while arrived.load(Ordering::Acquire) < count {
        arm(bell);
        if arrived.load(Ordering::Acquire) < count {
            assert!(waiter.wait(None));
        }
        disarm(bell);
    }
}

/// Bringers bring one thing each, and the sleeper gets all.
fn bring(bringers: u32, has_barrier: bool) {
    let bell = SearchedBell::new();
    let arrived = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..bringers)
        .map(|_| {
            let bell = SearchedBell { has_barrier, ..bell.clone() };
            let arrived = Arc::clone(&arrived);
            thread::spawn(move || {
                if bringers == 1 {
                    arrived.store(1, Ordering::Release);
                } else {
                    arrived.fetch_add(1, Ordering::Release);
                }
                ring(&bell);
            })
        })
        .collect();
    sleep_until(&arrived, bringers, &bell);
    for thread in threads {
        thread.join().expect("no panic");
    }
}

const BRINGERS: u32 = if LARGE { 5 } else { 2 };

fn sleeper_wakes() {
    bring(1, true);
}

fn sleeper_wakes_for_all() {
    bring(BRINGERS, true);
}

/// A thread that waits is woken by `wake`, however another arms and disarms the port meanwhile.
fn wake_reaches_a_waiter_of_another_thread() {
    let bell = SearchedBell::new();
    let waiter = Arc::new(ShmWaiter::new(bell.clone()));
    let sleeper = {
        let waiter = Arc::clone(&waiter);
        thread::spawn(move || assert!(waiter.wait(None)))
    };
    let owner = {
        let bell = bell.clone();
        thread::spawn(move || {
            arm(&bell);
            disarm(&bell);
        })
    };
    waiter.wake();
    owner.join().expect("no panic");
    sleeper.join().expect("no panic");
}

/// A sender that found the ring full sleeps until the receiver has made room.
fn full_sender_sleeps_until_there_is_room() {
    let (mut producer, mut consumer) = ends();
    let bell = SearchedBell::new();
    for value in 1..=2 {
        assert!(try_send(&mut producer, 16, value));
    }
    let receiver = {
        let bell = bell.clone();
        thread::spawn(move || {
            let message = consumer.peek().expect("right headers");
            consumer.take(&message.expect("two messages"));
            if consumer.settle(false) {
                ring(&bell);
            }
            // As a port does before it sleeps.
            if consumer.tell() {
                ring(&bell);
            }
        })
    };
    let waiter = ShmWaiter::new(bell.clone());
    while !try_send(&mut producer, 16, 3) {
        arm(&bell);
        if !producer.has_room_again() {
            assert!(waiter.wait(None));
        }
        disarm(&bell);
    }
    receiver.join().expect("no panic");
}

macro_rules! searches {
    ($($program:ident)*) => {
        #[cfg(loom)]
        mod loom_search {
            $(#[test]
            fn $program() {
                let mut search = loom::model::Builder::new();
                search.preemption_bound = Some(3);
                search.check(super::$program);
            })*

            /// Shows that a lost wake-up would be found.
            #[test]
            #[should_panic(expected = "deadlock")]
            fn missing_barrier_is_found() {
                loom::model(|| super::bring(1, false));
            }
        }

        #[cfg(shuttle)]
        mod shuttle_search {
            $(#[test]
            fn $program() {
                shuttle::check_random(super::$program, 2_000);
            })*
        }
    };
}

searches! {
    short_messages_pass_in_order
    whole_slots_pass_in_order
    long_messages_pass_in_order
    messages_of_all_kinds_pass_in_order
    sleeper_wakes
    sleeper_wakes_for_all
    wake_reaches_a_waiter_of_another_thread
    full_sender_sleeps_until_there_is_room
}

//! Tests of an executor without a fabric.

use super::*;
use crate::call::memory::lent_region::{LentRegion, RegionSite};
use farside_base::Access;
use farside_fabric::Arena;
use farside_rmc::Limits;

fn object(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

#[test]
fn object_is_verified_once_while_its_programs_are_registered() {
    let mut executor = Executor::new(ScratchPool::new(None), 1);
    let text = ".program one\nr0 = 1\nexit\n";
    let load = |executor: &Executor, text| {
        executor.load(&object(text), &Limits::DEFAULT).unwrap().remove(0)
    };
    let loaded = load(&executor, text);
    assert!(!Arc::ptr_eq(&loaded, &load(&executor, text)), "not kept yet");
    let number = executor.number_for(&object(text));
    for session in [1, 2] {
        executor.keep(&object(text), number, session, &[Arc::clone(&loaded)]);
        assert!(Arc::ptr_eq(&loaded, &load(&executor, text)), "other bytes, the same contents");
    }
    assert_ne!(executor.number_for(&object(".program one\nr0 = 2\nexit\n")), number);
    executor.erase_own(1, number);
    assert!(Arc::ptr_eq(&loaded, &load(&executor, text)), "another session has it");
    executor.erase(number);
    assert!(!Arc::ptr_eq(&loaded, &load(&executor, text)), "erased with its last session");
    assert!(executor.numbers.is_empty());
}

/// Registers an object under a given number. Numbers are not secret, and an object can be constructed to have a
/// given number.
fn register(executor: &mut Executor, text: &str, number: u64) {
    let programs = executor.load(&object(text), &Limits::DEFAULT).unwrap();
    executor.keep(&object(text), number, 0, &programs);
}

#[test]
fn call_never_uses_state_of_another_object_with_its_number() {
    let mut executor = Executor::new(ScratchPool::new(None), 1);
    let site = RegionSite::Local(Arena::heap(64));
    executor.resources.memory.add(0);
    executor.resources.memory.lend(0, LentRegion { site, bytes: 64, access: Access::ALL }, None);
    let waits = "
        .state kept map 8 8 4 shared
            r1 = 0
            r2 = 0
            r3 = 0
            r4 = 1000000000
            call wait_word
            *(u64 *)(r10 - 8) = 1
            r1 = state 0
            r2 = r10
            r2 += -8
            r3 = r10
            r3 += -16
            call map_get
            exit
    ";
    register(&mut executor, waits, 0x500);
    executor.start(0, (0, 0), 0x500, &[]).unwrap();
    assert!(matches!(executor.slice(0, 0), SliceOutcome::Waits));
    executor.erase(0x500);
    register(&mut executor, &waits.replace("map 8 8", "map 8 16").replace("- 16", "- 24"), 0x500);
    assert_eq!(executor.take_woken(), Some(0), "its wait is over");
    let SliceOutcome::Over(CallEnd::Stopped(why, _, text)) = executor.slice(0, 1) else {
        panic!("it continues")
    };
    assert_eq!(why, Stopped::Cancelled, "{text}");
    assert!(text.contains("unregistered"), "{text}");
}

#[test]
fn slice_ends_after_allocating_state() {
    let mut executor = Executor::new(ScratchPool::new(None), 1);
    let write = "r3 = r10\nr3 += -8\nr1 = state far\ncall array_write\n";
    let writes: String = (0..8).map(|at| format!("r2 = {}\n{write}", at * 100_000)).collect();
    let begin = ".state far array 0 8 1000000 shared\nr1 = 1\n*(u64 *)(r10 - 8) = r1\n";
    let object: Arc<[u8]> = format!("{begin}{writes}r0 = 5\nexit\n").as_bytes().into();
    let programs = executor.load(&object, &Limits::DEFAULT).unwrap();
    executor.keep(&object, 0x100, 0, &programs);
    // The first call allocates a chunk with each write and ends in its eighth slice; the second call finds the
    // chunks.
    for expected in [7, 0] {
        executor.start(0, (0, 0), 0x100, &[]).unwrap();
        let mut slices = 0;
        while matches!(executor.slice(0, 0), SliceOutcome::Ready) {
            slices += 1;
        }
        assert_eq!(slices, expected);
    }
    assert!(!executor.free_some(), "nothing was erased");
    executor.erase(0x100);
    assert!(executor.has_silent_work() && executor.free_some());
    while executor.free_some() {}
    assert!(!executor.has_silent_work());
}

#[test]
fn blocked_calls_are_polled_round_robin_a_few_per_poll() {
    let mut executor = Executor::new(ScratchPool::new(None), 1);
    let arena = Arena::heap(4096);
    let site = RegionSite::Local(arena.clone());
    let access = farside_base::Access::ALL;
    executor.resources.memory.add(0);
    executor.resources.memory.lend(0, LentRegion { site, bytes: 4096, access }, None);
    // Waits until the word at the first parameter is not zero, for at most the second parameter in nanoseconds.
    let wait = "r6 = r1\nr1 = 0\nr2 = *(u64 *)(r6 + 0)\nr3 = 0\nr4 = *(u64 *)(r6 + 8)\n";
    let object: Arc<[u8]> = format!("{wait}call wait_word\nexit\n").as_bytes().into();
    let programs = executor.load(&object, &Limits::DEFAULT).unwrap();
    executor.keep(&object, 0x100, 0, &programs);
    for at in 0..100 {
        let wait_ns = if at < 50 { 1000 } else { u64::MAX };
        let parameters = [at as u64 * 8, wait_ns].map(u64::to_le_bytes).concat();
        executor.start(at, (0, 0), 0x100, &parameters).unwrap();
        assert!(matches!(executor.slice(at, 0), SliceOutcome::Waits));
    }
    arena.write(99 * 8, &[1]).unwrap();
    let mut over = Vec::new();
    for _ in 0..7 {
        let before = over.len();
        executor.poll_blocked(1000);
        over.extend(std::iter::from_fn(|| executor.take_woken()));
        assert!(over.len() - before <= 16, "{over:?}");
    }
    over.sort_unstable();
    assert_eq!(over, (0..50).chain([99]).collect::<Vec<_>>());
    for at in over {
        let result = if at == 99 { 0 } else { status::TIMED_OUT as u64 };
        let SliceOutcome::Over(end) = executor.slice(at, 1000) else { panic!("{at} continues") };
        assert_eq!(end, CallEnd::Returned(result));
    }
    (50..99).for_each(|at| executor.stop(at));
    assert!(!executor.has_blocked());
}

/// Gives a call slices until it waits.
fn run_until_it_waits(executor: &mut Executor, at: usize, now_ns: u64) {
    loop {
        match executor.slice(at, now_ns) {
            SliceOutcome::Ready => {}
            SliceOutcome::Waits => return,
            other => panic!("call {at}: {other:?}"),
        }
    }
}

#[test]
fn unlock_wakes_calls_that_wait_for_the_lock() {
    let mut executor = Executor::new(ScratchPool::new(None), 1);
    let site = RegionSite::Local(Arena::heap(64));
    executor.resources.memory.add(0);
    executor.resources.memory.lend(0, LentRegion { site, bytes: 64, access: Access::ALL }, None);
    let waits = |time: u64| format!("r1 = 0\nr2 = 0\nr3 = 0\nr4 = {time}\ncall wait_word\n");
    let calls = |name: &str| format!("r1 = state 0\nr2 = 0\ncall {name}\n");
    let (lock, unlock) = (calls("lock"), calls("unlock"));
    let text = format!(
        ".state locks locks 0 0 1 shared\n{lock}{}{unlock}{}exit\n",
        waits(1000),
        waits(1_000_000)
    );
    register(&mut executor, &text, 0x500);
    for at in [0, 1] {
        executor.start(at, (0, 0), 0x500, &[]).unwrap();
        run_until_it_waits(&mut executor, at, 0);
    }
    assert_eq!(executor.take_woken(), None, "call 0 has the lock, call 1 waits for it");
    executor.poll_blocked(1000);
    assert_eq!(executor.take_woken(), Some(0));
    run_until_it_waits(&mut executor, 0, 1000);
    assert_eq!(executor.take_woken(), Some(1));
}

//! Tables whose clients hold puts of hot keys.

use super::*;

farside_testkit::on_each_fabric! { mem shm tcp => (
    held_puts_keep_their_requests
    table_with_held_puts_is_a_map
    blocks_survive_changes_by_others
    wrong_options_are_refused
) with crate::fabrics::make }

/// Long enough that no flush is late.
fn hot_options() -> HotOptions {
    HotOptions { timeout: Duration::from_hours(1), puts: 2, ..HotOptions::default() }
}

impl Memories<'_> {
    fn open_hot(&self, options: &HotOptions) -> (MemoryClient, RemoteTable) {
        let (client, mut table) = self.open();
        table.hold_hot_puts(options).unwrap();
        (client, table)
    }
}

/// Work requests and doorbells of a call.
fn requests(client: &mut MemoryClient, call: impl FnOnce(&mut MemoryClient)) -> (u64, u64) {
    let before = client.stats();
    call(client);
    let now = client.stats();
    (now.work_requests - before.work_requests, now.doorbells - before.doorbells)
}

fn held_puts_keep_their_requests(make: &Make) {
    let memories = Memories { posts_all: true, ..Memories::new(make, 1, 4 << 20) };
    let (mut other, mut reader) = memories.create();
    let (mut client, mut table) = memories.open_hot(&hot_options());
    for name in [b"warm up", b"present"] {
        reader.put(&mut other, name, b"value", WATCHDOG).unwrap();
    }
    for number in 0..16_u64 {
        let name = number.to_le_bytes();
        for count in 0..3 {
            assert_eq!(table.hot_keys(), number as usize);
            table.put(&mut client, &name, &[count; 64], WATCHDOG).unwrap();
            if count == 0 {
                continue;
            }
            let stays = requests(&mut client, |client| {
                assert_eq!(table.get(client, &name, WATCHDOG), Ok(Some(vec![count; 64])));
            });
            if table.hot_keys() > number as usize {
                assert_eq!(stays, (1, 1), "the word of the block");
                break;
            }
        }
    }
    assert_eq!((table.hot_keys(), table.pending()), (16, 0));

    // 16 puts: one WRITE of the block, one compare-and-swap.
    let ten = requests(&mut client, |client| {
        for number in 0..160_u64 {
            let value = (number / 3).to_le_bytes();
            table.put(client, &(number % 3).to_le_bytes(), &value, WATCHDOG).unwrap();
            if number == 2 {
                assert_eq!(table.pending(), 3);
                let held = requests(client, |client| {
                    assert!(table.get(client, &[0; 8], WATCHDOG).unwrap().is_some());
                });
                assert_eq!(held, (0, 0), "a held value is read here");
            }
        }
        table.flush(client, WATCHDOG).unwrap();
    });
    assert_eq!(ten.0, 20);
    assert!(ten.1 == 10 || !client.capabilities().message_order, "{ten:?}");
    let name = 0_u64.to_le_bytes();
    let found = Ok(Some(53_u64.to_le_bytes().to_vec()));
    let mut get = |other: &mut MemoryClient| {
        requests(other, |other| assert_eq!(reader.get(other, &name, WATCHDOG), found))
    };
    assert_eq!(get(&mut other), (4, 2), "bucket; word and cells");
    assert_eq!(get(&mut other), (4, 1), "word, cells and slot");
    // Entry and bucket; word and cells; revocation; slot.
    let foreign = requests(&mut other, |other| {
        reader.put(other, &name, &[7; 20], WATCHDOG).unwrap();
    });
    assert!(foreign == (7, 4) || !other.capabilities().message_order, "{foreign:?}");
    assert_eq!(table.get(&mut client, &name, WATCHDOG), Ok(Some(vec![7; 20])));
    assert_eq!(table.hot_keys(), 0, "the block was revoked");
}

/// Random operations of two clients that hold puts, of which one works until it flushes.
fn table_with_held_puts_is_a_map(make: &Make) {
    const KEYS: u64 = 2000;
    let memories = Memories::new(make, 2, 16 << 20);
    let created = memories.create();
    let options = HotOptions { blocks: 3, entries: 8, theta: 5, ..hot_options() };
    let mut ends = [0; 2].map(|_| memories.open_hot(&options));
    let (mut map, mut random) = (BTreeMap::new(), Random::new(17));
    let (mut held, mut hot) = (0, 0);
    for round in 0..60 {
        let (client, table) = &mut ends[round % 2];
        for _ in 0..200 {
            // Half of them are of 20 keys, which change from time to time.
            let number = match random.below(2) {
                0 => random.below(20) + 40 * (round as u64 / 20),
                _ => random.below(KEYS),
            };
            let key = key(number);
            match random.below(8) {
                0..5 => {
                    let value = vec![random.below(256) as u8; random.below(100) as usize];
                    table.put(client, &key, &value, WATCHDOG).unwrap();
                    map.insert(key, value);
                }
                5 => {
                    let removed = table.delete(client, &key, WATCHDOG).unwrap();
                    assert_eq!(removed, map.remove(&key).is_some());
                }
                6 => {
                    let name = [key.as_slice()];
                    let values = table.get_many(client, &name, WATCHDOG).unwrap();
                    assert_eq!(values[0].as_ref(), map.get(&key));
                }
                _ => {
                    let value = table.get(client, &key, WATCHDOG).unwrap();
                    assert_eq!(value.as_ref(), map.get(&key));
                }
            }
            held = held.max(table.pending());
            hot = hot.max(table.hot_keys());
        }
        table.flush(client, WATCHDOG).unwrap();
        assert_eq!(table.pending(), 0);
    }
    assert!(held > 2 && hot > 8, "too few hot keys: {held} {hot}");
    assert!(ends.iter().any(|(_, table)| table.splits() > 0), "nothing was split");
    for (mut client, table) in ends {
        table.close(&mut client, WATCHDOG).unwrap();
    }
    let (mut client, mut table) = created;
    for number in 0..KEYS {
        let value = table.get(&mut client, &key(number), WATCHDOG).unwrap();
        assert_eq!(value.as_ref(), map.get(&key(number)));
    }
}

/// Makes a key hot, with this value.
fn make_hot(client: &mut MemoryClient, table: &mut RemoteTable, name: &[u8], value: &[u8]) {
    let before = table.hot_keys();
    while table.hot_keys() == before {
        table.put(client, name, value, WATCHDOG).unwrap();
    }
    table.flush(client, WATCHDOG).unwrap();
}

/// Puts that are held while another client changes their keys take effect after that.
fn blocks_survive_changes_by_others(make: &Make) {
    let memories = Memories::new(make, 1, 8 << 20);
    let (mut other, mut reader) = memories.create();
    let (mut client, mut table) = memories.open_hot(&hot_options());
    for name in [b"a", b"b", b"c"] {
        make_hot(&mut client, &mut table, name, b"first");
    }
    table.put(&mut client, b"a", b"held", WATCHDOG).unwrap();
    table.put(&mut client, b"b", b"held", WATCHDOG).unwrap();
    let mut see =
        |other: &mut MemoryClient, name: &[u8]| reader.get(other, name, WATCHDOG).unwrap();
    assert_eq!(see(&mut other, b"a").as_deref(), Some(&b"first"[..]), "not flushed yet");
    assert_eq!(table.get(&mut client, b"a", WATCHDOG), Ok(Some(b"held".to_vec())));
    reader.put(&mut other, b"a", b"between", WATCHDOG).unwrap();
    assert!(reader.delete(&mut other, b"b", WATCHDOG).unwrap());
    assert_eq!(reader.get(&mut other, b"b", WATCHDOG), Ok(None));
    assert_eq!(reader.get(&mut other, b"a", WATCHDOG), Ok(Some(b"between".to_vec())));
    table.flush(&mut client, WATCHDOG).unwrap();
    for (name, value) in [(b"a", &b"held"[..]), (b"b", b"held"), (b"c", b"first")] {
        assert_eq!(reader.get(&mut other, name, WATCHDOG).unwrap().as_deref(), Some(value));
    }

    // What the client itself changes, with a value that is too large for a block among it.
    for name in [b"a", b"b"] {
        make_hot(&mut client, &mut table, name, b"second");
        table.put(&mut client, name, b"held", WATCHDOG).unwrap();
    }
    table.put(&mut client, b"a", &[5; 500], WATCHDOG).unwrap();
    assert_eq!(table.delete(&mut client, b"b", WATCHDOG), Ok(true));
    assert_eq!(reader.get(&mut other, b"a", WATCHDOG), Ok(Some(vec![5; 500])));
    assert_eq!(reader.get(&mut other, b"b", WATCHDOG), Ok(None));
    assert_eq!(table.get(&mut client, b"b", WATCHDOG), Ok(None));

    // Another program writes over an entry.
    make_hot(&mut client, &mut table, b"c", b"second");
    let slot = table.cold.recall(table.cold.lookup(b"c")).unwrap().1;
    for half in [0, 1] {
        let cell = table.cold.partitions[0].address(slot.cell(half) + 30);
        client.write_bytes(cell, b"nonsense", WATCHDOG).unwrap();
    }
    let torn = reader.get(&mut other, b"c", WATCHDOG);
    assert!(matches!(torn, Err(TableError::Corrupt(_))), "{torn:?}");
    table.put(&mut client, b"c", b"third", WATCHDOG).unwrap();
    table.flush(&mut client, WATCHDOG).unwrap();
    assert_eq!(reader.get(&mut other, b"c", WATCHDOG), Ok(Some(b"third".to_vec())));

    // A client that is gone, with puts that are held: what it has flushed stays, and no client waits.
    make_hot(&mut client, &mut table, b"a", b"third");
    table.put(&mut client, b"a", b"lost", WATCHDOG).unwrap();
    drop((client, table));
    assert_eq!(reader.get(&mut other, b"a", WATCHDOG), Ok(Some(b"third".to_vec())));
    reader.put(&mut other, b"a", b"fourth", WATCHDOG).unwrap();
    assert_eq!(reader.get(&mut other, b"a", WATCHDOG), Ok(Some(b"fourth".to_vec())));
}

fn wrong_options_are_refused(make: &Make) {
    let memories = Memories::new(make, 1, 2 << 20);
    let (mut client, mut table) = memories.create();
    let right = HotOptions::default();
    for wrong in [
        HotOptions { blocks: 0, ..right.clone() },
        HotOptions { entries: 17, ..right.clone() },
        HotOptions { entry_bytes: 100, ..right.clone() },
        HotOptions { entry_bytes: 2048, ..right.clone() },
        HotOptions { theta: 0, ..right.clone() },
    ] {
        let refused = table.hold_hot_puts(&wrong).map_err(|error| error.code());
        assert_eq!(refused, Err(ErrorCode::BadConfiguration), "{wrong:?}");
    }
    table.hold_hot_puts(&right).unwrap();
    assert!(table.hold_hot_puts(&right).is_err(), "twice");
    // A put that is held for longer than the time-out is flushed by the next call.
    let (mut other, mut late) =
        memories.open_hot(&HotOptions { timeout: Duration::ZERO, ..hot_options() });
    make_hot(&mut other, &mut late, b"key", b"first");
    late.put(&mut other, b"key", b"second", WATCHDOG).unwrap();
    late.get(&mut other, b"another", WATCHDOG).unwrap();
    other.wait_for_all(late.cold.partitions[0].address(0).memory(), WATCHDOG).unwrap();
    assert_eq!(table.get(&mut client, b"key", WATCHDOG), Ok(Some(b"second".to_vec())));
}

/// Each put is a commit, as fast as they can follow each other.
#[test]
fn busy_block_is_read_in_order() {
    const PUTS: u64 = 20_000;
    let make = make("shm");
    let memories = Memories::new(&make, 1, 4 << 20);
    let (mut client, mut table) = memories.create();
    table.put(&mut client, b"count", &0_u64.to_le_bytes(), WATCHDOG).unwrap();
    let is_done = AtomicU64::new(0);
    let hot = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let options = HotOptions { theta: 1, ..hot_options() };
            let (mut client, mut table) = memories.open_hot(&options);
            let mut hot = 0;
            for count in 1..100 * PUTS {
                table.put(&mut client, b"count", &count.to_le_bytes(), WATCHDOG).unwrap();
                hot += table.hot_keys();
                if is_done.load(Ordering::SeqCst) == 1 {
                    break;
                }
            }
            hot
        });
        let mut before = 0;
        while before < PUTS {
            let found = table.get(&mut client, b"count", WATCHDOG).unwrap().unwrap();
            let count = u64::from_le_bytes(found.try_into().unwrap());
            assert!(count >= before, "{count} after {before}");
            before = count;
        }
        is_done.store(1, Ordering::SeqCst);
        writer.join().unwrap()
    });
    assert!(hot > 0, "not hot");
}

const OPERATIONS: u64 = 300;
const KEYS: u64 = 3;

/// The events of one client, and how many keys were hot, summed over its operations.
fn held_history(
    memories: &Memories<'_>,
    clock: &AtomicU64,
    seed: u64,
    number: u64,
) -> (Vec<HistoryEvent>, usize) {
    let options = HotOptions { blocks: 2, entries: 2, theta: 3, ..hot_options() };
    let (mut client, mut table) = memories.open_hot(&options);
    PAUSES.set(Some(Random::new(seed * 100 + number)));
    let mut random = Random::new(seed * 10 + number);
    let (mut events, mut open) = (Vec::<HistoryEvent>::new(), Vec::<usize>::new());
    let mut hot = 0;
    for operation in 0..OPERATIONS {
        // Mostly one key, so that it becomes hot.
        let which = if random.below(3) == 0 { random.below(KEYS) } else { number % KEYS };
        let name = which.to_le_bytes();
        let value = number << 32 | operation;
        let called = clock.fetch_add(1, Ordering::SeqCst);
        let mut is_known = true;
        let action = match random.below(12) {
            0 => KeyAction::Delete(table.delete(&mut client, &name, WATCHDOG).unwrap()),
            1..9 => {
                table.put(&mut client, &name, &value.to_le_bytes(), WATCHDOG).unwrap();
                is_known = table.pending() == 0;
                KeyAction::Write(value)
            }
            _ => {
                let seen = table.get(&mut client, &name, WATCHDOG).unwrap();
                let seen = seen.map(|seen| u64::from_le_bytes(seen.try_into().unwrap()));
                let is_own = |at: &usize| {
                    seen.is_some_and(|seen| events[*at].action == KeyAction::Write(seen))
                };
                if open.iter().any(is_own) {
                    continue;
                }
                KeyAction::Get(seen)
            }
        };
        hot += table.hot_keys();
        let returned = Some(clock.fetch_add(1, Ordering::SeqCst));
        if !is_known {
            open.push(events.len());
        }
        events.push(HistoryEvent { key: which as usize, action, called, returned });
        if open.len() > 5 {
            table.flush(&mut client, WATCHDOG).unwrap();
        }
        if table.pending() == 0 {
            let returned = Some(clock.fetch_add(1, Ordering::SeqCst));
            open.drain(..).for_each(|at| events[at].returned = returned);
        }
    }
    table.flush(&mut client, WATCHDOG).unwrap();
    let returned = Some(clock.fetch_add(1, Ordering::SeqCst));
    open.into_iter().for_each(|at| events[at].returned = returned);
    (events, hot)
}

/// Histories of a few keys by clients that hold puts: a put takes effect between its call and the end of its flush.
/// A get of a client's own put that may be held is left out.
#[test]
fn held_puts_have_one_order() {
    let (mut hot, make) = (0, make("shm"));
    for seed in 1..=12_u64 {
        let memories = Memories::new(&make, 1, 16 << 20);
        let clock = AtomicU64::new(0);
        let _creator = memories.create();
        let run = |number: u64| held_history(&memories, &clock, seed, number);
        let done = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|number| scope.spawn(move || run(number))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
        });
        hot += done.iter().map(|(_, hot)| hot).sum::<usize>();
        for key in 0..KEYS as usize {
            let events = done.iter().flat_map(|(events, _)| events.iter().copied());
            let of_key: Vec<_> = events.filter(|event| event.key == key).collect();
            if let Some(why) = contradiction(&of_key) {
                panic!("seed {seed}, key {key}: {why}");
            }
        }
    }
    assert!(hot > 500, "too few hot keys: {hot}");
}

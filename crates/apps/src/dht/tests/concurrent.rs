//! Several users at once: every key's history is linearizable, also with deaths.

use super::super::error::DhtError;
use super::super::space::Space;
use super::by_call::ModelCalls;
use super::history::{HistoryEvent, KeyAction, contradiction, mixed};
use super::model::{Death, ModelSession, Rules, run};
use super::{HASH_SEED, create, crowded_keys, open, shape};
use crate::dht::LookupStats;
use crate::dht::hash::hash;
use crate::dht::layout::{TableShape, bucket_index};
use crate::dht::pool::Pool;
use crate::dht::table::TableAccess;
use farside::{ErrorCode, GlobalAddress};
use farside_testkit::Random;
use std::collections::BTreeSet;
use std::sync::Mutex;

const OPERATIONS: usize = 90;
const SESSIONS: [u16; 3] = [0, 1, 2];

/// A value of some length that repeats a number, so that a torn value is detected.
fn bytes_of(number: u64, length: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(length)
}

fn number_of(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes.chunks(8).all(|chunk| chunk == &bytes[..8]), "a torn value: {bytes:?}");
    number
}

/// A session's view of the table, and the results of its calls.
struct User {
    table: TableAccess,
    calls: ModelCalls,
}

/// Runs a random operation on a random key; returns the event, or the error.
fn operate(
    session: &mut ModelSession,
    user: &mut User,
    random: &mut Random,
    keys: &[Vec<u8>],
) -> (HistoryEvent, Option<DhtError>) {
    let table = &mut user.table;
    let key = random.below(keys.len() as u64) as usize;
    let number = random.word() >> 8;
    // One line of 64 B, of 128 B, or several of 128 B.
    let length = [2, 5, 10, 30][random.below(4) as usize];
    let called = session.now();
    let (name, kind) = (&keys[key], random.below(16));
    let result = match kind {
        0..5 => {
            let mut out = Vec::new();
            // Every other one is by a call.
            let found = match number % 2 {
                0 => table.get(session, name, &mut out),
                _ => user.calls.get(table, session, name, &mut out),
            };
            found.map(|found| KeyAction::Get(found.then(|| number_of(&out))))
        }
        5..9 => {
            let value = bytes_of(number, length);
            table.put(session, name, &value, true).map(|new| KeyAction::Put(number, new))
        }
        9..11 => {
            let value = bytes_of(number, length);
            table.put(session, name, &value, false).map(|new| KeyAction::PutIfAbsent(number, new))
        }
        11..13 => table.delete(session, name).map(KeyAction::Delete),
        _ => {
            let mut after = None;
            let updated = table.update(session, name, |value| {
                let new = mixed(number_of(value), number);
                after = Some(new);
                *value = bytes_of(new, length);
            });
            updated.map(|found| KeyAction::Update(number, after.filter(|_| found)))
        }
    };
    let unknown = match kind {
        0..5 => KeyAction::Get(None),
        5..9 => KeyAction::Put(number, false),
        9..11 => KeyAction::PutIfAbsent(number, false),
        11..13 => KeyAction::Delete(false),
        _ => KeyAction::Update(number, None),
    };
    let returned = result.is_ok().then(|| session.now());
    let (action, error) = match result {
        Ok(action) => (action, None),
        Err(error) => (unknown, Some(error)),
    };
    (HistoryEvent { key, action, called, returned }, error)
}

/// Fences an operation in memory of nodes with state. Only if that has no error, what it wrote, and what it read of
/// another session of its node, is durable.
fn acknowledge(
    session: &mut ModelSession,
    event: HistoryEvent,
    error: Option<DhtError>,
) -> (HistoryEvent, Option<DhtError>) {
    if error.is_some() || !session.rules().logged {
        return (event, error);
    }
    match session.fence() {
        Ok(()) => (HistoryEvent { returned: Some(session.now()), ..event }, None),
        Err(error) => (HistoryEvent { returned: None, ..event }, Some(error.into())),
    }
}

/// Runs three sessions on three nodes on one crowded bucket, then reads every key.
fn trial(seed: u64, rules: Rules) -> LookupStats {
    // Few keys meet often; many keys split often.
    let keys = crowded_keys(if seed.is_multiple_of(2) { 12 } else { 90 }, 1);
    // A table that is not logged may be at nodes with state too.
    let shape = TableShape { logged: rules.logged && seed % 8 < 5, ..shape(1, 128) };
    let before = |session: &mut ModelSession| create(session, &shape, 1).root;
    let looked = Mutex::new(LookupStats::default());
    let body = |number: usize, session: &mut ModelSession, root: &GlobalAddress| {
        let mut random = Random::new(seed * 100 + number as u64);
        let mut events = Vec::new();
        let Ok(mut table) = open(session, *root, seed + number as u64) else {
            return events;
        };
        table.pool = Pool::new([0, 1, 8][seed as usize % 3], seed + number as u64);
        let mut user = User { table, calls: ModelCalls::default() };
        while events.len() < OPERATIONS {
            let (event, error) = operate(session, &mut user, &mut random, &keys);
            let (event, error) = acknowledge(session, event, error);
            events.push(event);
            match error {
                Some(error) if error.code() == ErrorCode::NodeClosed => break,
                Some(error) if error.code() == ErrorCode::WritesLost && rules.logged => {}
                Some(error) => assert!(error.is_lost(), "seed {seed}: {error}"),
                None => {}
            }
        }
        add(&mut looked.lock().unwrap(), &user.calls.stats);
        events
    };
    // Sessions of one node see what is not durable.
    let nodes = if rules.logged && seed % 4 > 1 { [1, 1, 0] } else { SESSIONS };
    run(seed, rules, &nodes, before, body, |session, root, results| {
        // Reports what the session's node has lost before.
        let _ = session.fence();
        let mut table = open(session, root, 99).unwrap();
        let (present, lost) = look_at_all(session, &mut table, &keys, results.concat());
        let may_lose = rules.death.is_some() && !rules.logged;
        assert!(lost == 0 || may_lose, "seed {seed}: {lost} keys lost");
        let mut scanned = BTreeSet::new();
        let report = table.scan(session, |key, _| {
            assert!(scanned.insert(key.to_vec()), "seed {seed}: {key:?} twice");
        });
        let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(scanned == present || lost > 0, "seed {seed}: {report:?}");
    });
    looked.into_inner().unwrap()
}

fn add(to: &mut LookupStats, more: &LookupStats) {
    to.answered += more.answered;
    to.direct += more.direct;
    to.moved += more.moved;
    to.stale += more.stale;
    to.large += more.large;
    to.failed += more.failed;
}

/// Reads every key once more and checks its history; returns the keys present, and the number of lost ones.
fn look_at_all(
    session: &mut ModelSession,
    table: &mut TableAccess,
    keys: &[Vec<u8>],
    mut events: Vec<HistoryEvent>,
) -> (BTreeSet<Vec<u8>>, usize) {
    let mut present = BTreeSet::new();
    let mut lost = 0;
    for (key, name) in keys.iter().enumerate() {
        let mut out = Vec::new();
        let called = session.now();
        match table.get(session, name, &mut out) {
            Ok(found) => {
                let action = KeyAction::Get(found.then(|| number_of(&out)));
                let returned = Some(session.now());
                events.push(HistoryEvent { key, action, called, returned });
                present.extend(found.then(|| name.clone()));
            }
            Err(error) => {
                assert!(error.is_lost(), "seed {}: {error}", session.seed());
                lost += 1;
            }
        }
        let of_key: Vec<_> = events.iter().filter(|event| event.key == key).copied().collect();
        if let Some(why) = contradiction(&of_key) {
            panic!("seed {}, key {key}: {why}", session.seed());
        }
    }
    (present, lost)
}

fn rules(seed: u64) -> Rules {
    let mut random = Random::new(!seed);
    Rules {
        switch_odds: [2, 3, 8, 30][random.below(4) as usize],
        drain_odds: [1, 2, 10, 100][random.below(4) as usize],
        ..Rules::CALM
    }
}

/// Seeds of a run: `FARSIDE_DHT_SEEDS=from..to` replaces the few default ones.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let given = std::env::var("FARSIDE_DHT_SEEDS").ok();
    let range = given.as_deref().and_then(|text| text.split_once(".."));
    match range {
        Some((from, to)) => from.parse().expect("a number")..to.parse().expect("a number"),
        None => 0..count,
    }
}

#[test]
fn histories_are_linearizable() {
    let mut looked = LookupStats::default();
    for seed in seeds(120) {
        add(&mut looked, &trial(seed, rules(seed)));
    }
    // Calls were answered, and also fell back for each reason.
    let LookupStats { answered, direct, moved, stale, large, failed } = looked;
    assert!(answered > 10 * (moved + stale), "{looked:?}");
    assert!(moved > 0 && stale > 0, "{looked:?}");
    assert_eq!((direct, large, failed), (0, 0, 0));
}

#[test]
fn operations_of_a_stopped_session_are_completed_by_others() {
    for seed in seeds(120) {
        let mut random = Random::new(seed + 7);
        let at = 100 + random.below(4_000);
        let death = Some((at, Death::Session(random.below(3) as usize)));
        trial(seed, Rules { death, ..rules(seed) });
    }
}

#[test]
fn dying_node_takes_no_more_than_its_share() {
    for seed in seeds(120) {
        let mut random = Random::new(seed + 9);
        let at = 100 + random.below(4_000);
        // Node 0 is home of all buckets; node 1 only of records, and owner of lines that it changed.
        let node = u16::from(!random.one_in(4));
        trial(seed, Rules { death: Some((at, Death::Node(node))), ..rules(seed) });
    }
}

#[test]
fn logged_table_stays_whole_when_its_nodes_and_users_restart() {
    for seed in seeds(400) {
        let mut random = Random::new(seed + 11);
        let at = 100 + random.below(6_000);
        let death = match random.below(4) {
            0 => Death::RestartAll,
            // Node 0 is home of all buckets.
            1 => Death::Restart(1),
            _ => Death::Restart(0),
        };
        trial(seed, Rules { death: Some((at, death)), logged: true, ..rules(seed) });
    }
}

/// A session dies after each number of steps of a split; then two others work on every key: one that knows
/// the new segment from a completed bucket, and one that only knows the old one.
#[test]
fn interrupted_split_is_completed_by_others() {
    let keys = crowded_keys(120, 1);
    let (few, one_more) = keys_of_a_bucket(&keys);
    // All of these move: a key that stays would complete the bucket before one that moves is tried.
    let moves = |key: &Vec<u8>| bucket_of(key) == 11 && hash(key, HASH_SEED) >> 62 == 1;
    let others: Vec<_> = keys.iter().filter(|key| moves(key)).take(9).cloned().collect();
    // Too long for the old record, so that the entry changes and not only the record.
    let after = vec![b'a'; 300];
    let mut stopped = 0;
    for step in 1.. {
        let before = |session: &mut ModelSession| {
            let mut table = create(session, &shape(1, 128), 1);
            for key in few.iter().chain(&others) {
                table.put(session, key, b"before", true).unwrap();
            }
            table
        };
        let body = |_: usize, session: &mut ModelSession, old: &TableAccess| {
            let mut table = open(session, old.root, 2)?;
            table.put(session, &one_more, b"before", true)
        };
        let mut done = false;
        let rules = Rules { death: Some((step, Death::Session(0))), ..Rules::CALM };
        // The same seed each time, so that no step is skipped.
        run(1, rules, &[0], before, body, |session, mut old, results| {
            done = results[0].is_ok();
            let mut new = open(session, old.root, 3).unwrap();
            let mut out = Vec::new();
            for key in &few {
                assert!(
                    new.get(session, key, &mut out).unwrap() && out == b"before",
                    "step {step}"
                );
            }
            for key in &others {
                assert!(!new.put(session, key, &after, true).unwrap(), "step {step}");
                assert!(old.get(session, key, &mut out).unwrap(), "step {step}");
                assert!(out == after, "step {step}: a stale value of {key:?}");
                assert!(old.delete(session, key).unwrap(), "step {step}");
                assert!(!new.get(session, key, &mut out).unwrap(), "step {step}");
            }
        });
        if done {
            break;
        }
        stopped += 1;
    }
    assert!(stopped > 60, "a split takes more steps than {stopped}");
}

/// The home of a logged table restarts after each number of steps of a split, with any of the split's lines durable. Then
/// keys that may have moved are changed, and the split is begun again or continued.
#[test]
fn split_is_repeated_after_a_restart_at_any_step() {
    let (few, one_more) = keys_of_a_bucket(&crowded_keys(120, 1));
    let shape = TableShape { logged: true, ..shape(1, 128) };
    // The most steps that a split has taken so far.
    let mut steps = 1;
    for step in 1.. {
        if step > steps {
            break;
        }
        for seed in seeds(8) {
            let before = |session: &mut ModelSession| {
                let mut table = create(session, &shape, 1);
                few.iter()
                    .for_each(|key| assert!(table.put(session, key, b"before", true).unwrap()));
                session.fence().unwrap();
                table
            };
            let body = |_: usize, session: &mut ModelSession, old: &TableAccess| {
                let began = session.now();
                let mut table = open(session, old.root, 2).unwrap();
                _ = table.put(session, &one_more, b"before", true);
                session.now() - began
            };
            let death = Some((step, Death::Restart(0)));
            let rules = Rules { death, logged: true, drain_odds: 1, ..Rules::CALM };
            run(seed, rules, &[1], before, body, |session, mut old, results| {
                steps = steps.max(results[0]);
                _ = session.fence();
                let mut new = open(session, old.root, 3).unwrap();
                let keys: Vec<_> = few.iter().chain([&one_more]).collect();
                let at = format!("step {step}, seed {seed}");
                let new_keys = check_changes(session, [&mut new, &mut old], &keys, &at);
                assert!(new_keys <= 1, "{at}: {new_keys} keys of {} were lost", keys.len());
            });
        }
    }
    assert!(steps > 80, "a split takes more steps than {steps}");
}

/// A split is begun by a user that ends, and continued for single keys by another, whose home restarts.
#[test]
fn key_of_an_interrupted_split_is_settled_over_a_restart() {
    let (few, one_more) = keys_of_a_bucket(&crowded_keys(120, 1));
    let shape = TableShape { logged: true, ..shape(1, 128) };
    for seed in seeds(1_500) {
        let mut random = Random::new(seed + 13);
        let (split_steps, steps) = (random.below(110), 1 + random.below(120));
        let before = |session: &mut ModelSession| {
            let mut table = create(session, &shape, 1);
            few.iter().for_each(|key| assert!(table.put(session, key, b"before", true).unwrap()));
            session.limit_steps(Some(split_steps));
            _ = table.put(session, &one_more, b"before", true);
            session.limit_steps(None);
            session.fence().unwrap();
            table
        };
        let body = |_: usize, session: &mut ModelSession, old: &TableAccess| {
            let mut table = open(session, old.root, 2).unwrap();
            let mut random = Random::new(seed);
            for _ in 0..8 {
                _ = table.delete(session, &few[random.below(15) as usize]);
            }
        };
        let death = Some((steps, Death::Restart(0)));
        let rules = Rules { death, logged: true, drain_odds: 1, ..Rules::CALM };
        run(seed, rules, &[1], before, body, |session, mut old, _| {
            _ = session.fence();
            let mut new = open(session, old.root, 3).unwrap();
            let keys: Vec<_> = few.iter().chain([&one_more]).collect();
            check_changes(session, [&mut new, &mut old], &keys, &format!("seed {seed}"));
        });
    }
}

/// Puts other values of these keys by the first of two users, and checks that both find them. Returns how many were new.
fn check_changes(
    session: &mut ModelSession,
    users: [&mut TableAccess; 2],
    keys: &[&Vec<u8>],
    at: &str,
) -> usize {
    // Too long for the old record, so that the entry changes and not only the record.
    let after = vec![b'a'; 300];
    let (mut out, mut new) = (Vec::new(), 0);
    for key in keys {
        let put = users[0].put(session, key, &after, true);
        new += usize::from(put.unwrap_or_else(|error| panic!("{at}, {key:?}: {error}")));
    }
    for user in users {
        for key in keys {
            assert!(user.get(session, key, &mut out).unwrap(), "{at}: {key:?}");
            assert!(out == after, "{at}: a stale value of {key:?}");
        }
    }
    new
}

/// Of crowded keys, those that fill a bucket, and one more of it.
fn keys_of_a_bucket(keys: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut of_bucket = keys.iter().filter(|key| bucket_of(key) == 3).cloned();
    (of_bucket.by_ref().take(15).collect(), of_bucket.next().unwrap())
}

fn bucket_of(key: &[u8]) -> usize {
    bucket_index(hash(key, HASH_SEED))
}

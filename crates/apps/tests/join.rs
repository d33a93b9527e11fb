//! Joins of several executors, compared with a simple reference.

mod fabrics;

use fabrics::Make;
use farside::ErrorCode;
use farside_apps::join::{JoinExecutor, JoinKey, JoinKind, JoinOptions, JoinSide, local_join};
use farside_apps::shuffle::{RowFormat, ShuffleError};
use farside_testkit::{Process, Random, WATCHDOG, role, say, unique_name};
use std::collections::HashMap;

farside_testkit::on_each_fabric! { mem shm tcp => (
    agrees_with_reference_on_adversarial_inputs
    agrees_with_reference_on_rows_of_any_length
    agrees_with_reference_on_keys_of_any_length
    agrees_with_reference_on_many_rows
    lost_executor_fails_the_others
    stopped_input_fails_all_executors
) with crate::fabrics::make }

type Output = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Every `executors`-th row from `number` on.
fn share<T>(rows: &[T], number: u16, executors: u16) -> impl Iterator<Item = &T> {
    rows.iter().skip(number.into()).step_by(executors.into())
}

/// Joins by executors that are threads; passes the output of each to `sink`, and returns what it makes of them.
fn run<S: Default + Send>(
    make: &Make,
    options: &JoinOptions,
    [left, right]: [&[Vec<u8>]; 2],
    sink: impl Fn(&mut S, &[u8], Option<&[u8]>) + Sync,
) -> Vec<S> {
    let lend = |number| JoinExecutor::lend(&make(), &unique_name("join"), number, options).unwrap();
    let executors: Vec<_> = (0..options.executors).map(lend).collect();
    let peers: Vec<_> = executors.iter().map(JoinExecutor::addresses).collect();
    let all = options.executors;
    let work = |number: u16, executor: JoinExecutor| {
        let mut output = S::default();
        let (left, right) = (share(left, number, all), share(right, number, all));
        let out = |left: &[u8], right: Option<&[u8]>| sink(&mut output, left, right);
        let stats = executor.run(&peers, left.map(Ok), right.map(Ok), WATCHDOG, out).unwrap();
        (output, stats)
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..)
            .zip(executors)
            .map(|(number, executor)| scope.spawn(move || work(number, executor)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let inputs = |end: usize| done.iter().map(|(_, stats)| stats.input_rows[end]).sum::<u64>();
    assert_eq!([inputs(0), inputs(1)], [left.len() as u64, right.len() as u64]);
    done.into_iter().map(|(output, _)| output).collect()
}

/// The join of all rows, in no order.
fn reference(options: &JoinOptions, [left, right]: [&[Vec<u8>]; 2]) -> Output {
    let key = |row: &'_ Vec<u8>, side: &JoinSide| {
        let (is_null, key) = match &side.key {
            JoinKey::Bytes { range, null_at } => {
                (null_at.is_some_and(|at| row[at] != 0), &row[range.clone()])
            }
            JoinKey::Prefixed => (row[3] & 0x80 != 0, JoinKey::split(row).unwrap().0),
        };
        (!is_null).then(|| key.to_vec())
    };
    let mut table = HashMap::<Vec<u8>, Vec<&Vec<u8>>>::new();
    for row in right {
        if let Some(key) = key(row, &options.right) {
            table.entry(key).or_default().push(row);
        }
    }
    let mut output = Output::new();
    for row in left {
        let key = key(row, &options.left);
        let found = key.and_then(|key| table.get(&key)).map_or(&[][..], |rows| rows);
        let pairs = found.iter().map(|other| (row.clone(), Some((*other).clone())));
        match options.kind {
            JoinKind::Inner => output.extend(pairs),
            JoinKind::LeftOuter if !found.is_empty() => output.extend(pairs),
            JoinKind::Semi if found.is_empty() => {}
            JoinKind::Anti if !found.is_empty() => {}
            JoinKind::LeftOuter | JoinKind::Semi | JoinKind::Anti => {
                output.push((row.clone(), None));
            }
        }
    }
    output
}

/// Checks all kinds, by executors and by one thread.
fn check(make: &Make, options: &JoinOptions, inputs: [&[Vec<u8>]; 2], what: &str) {
    for kind in JoinKind::ALL {
        let options = JoinOptions { kind, ..options.clone() };
        let mut expected = reference(&options, inputs);
        expected.sort();
        let push = |output: &mut Output, left: &[u8], right: Option<&[u8]>| {
            output.push((left.to_vec(), right.map(<[u8]>::to_vec)));
        };
        let mut joined = run(make, &options, inputs, push).concat();
        joined.sort();
        assert!(joined == expected, "{what}, {kind:?}, {} executors", options.executors);
        let mut local = Output::new();
        let [left, right] = inputs.map(<[_]>::iter);
        local_join(&options, left, right, |left, right| push(&mut local, left, right)).unwrap();
        local.sort();
        assert!(local == expected, "{what}, {kind:?}, by one thread");
    }
}

/// A row of a key of 8 B, a number, and a byte that is 1 if the key is null.
fn row(key: u64, number: u64, is_null: bool) -> Vec<u8> {
    let words = [key.to_le_bytes(), number.to_le_bytes()].concat();
    [&words[..], &[is_null.into()]].concat()
}

/// Rows with keys of this function.
fn rows(count: u64, key: impl Fn(u64) -> u64) -> Vec<Vec<u8>> {
    (0..count).map(|at| row(key(at), at, false)).collect()
}

fn side() -> JoinSide {
    JoinSide { rows: RowFormat::Fixed(17), key: JoinKey::Bytes { range: 0..8, null_at: Some(16) } }
}

fn options(executors: u16) -> JoinOptions {
    JoinOptions {
        left: side(),
        right: side(),
        executors,
        batch_bytes: 256,
        ..JoinOptions::default()
    }
}

fn agrees_with_reference_on_adversarial_inputs(make: &Make) {
    let mut random = Random::new(5);
    let mut nulls = |count: u64| -> Vec<Vec<u8>> {
        (0..count).map(|at| row(random.below(40), at, random.one_in(3))).collect()
    };
    let cases = [
        ("nothing", rows(0, |_| 0), rows(0, |_| 0)),
        ("no right rows", rows(50, |at| at), rows(0, |_| 0)),
        ("no left rows", rows(0, |_| 0), rows(50, |at| at)),
        ("one row", rows(1, |_| 7), rows(1, |_| 7)),
        ("one row without a partner", rows(1, |_| 7), rows(1, |_| 8)),
        ("one key", rows(120, |_| 7), rows(90, |_| 7)),
        ("one key against all", rows(3_000, |_| 7), rows(3_000, |at| at)),
        ("unique keys", rows(2_000, |at| at), rows(2_000, |at| at * 3)),
        ("repeated keys", rows(1_000, |at| at % 97), rows(1_000, |at| at % 89)),
        ("null keys", nulls(500), nulls(400)),
        ("null keys alone", vec![row(1, 1, true); 30], vec![row(1, 2, true); 30]),
    ];
    for (what, left, right) in &cases {
        for executors in [1, 3] {
            check(make, &options(executors), [left, right], what);
        }
    }
}

fn agrees_with_reference_on_rows_of_any_length(make: &Make) {
    let mut random = Random::new(9);
    let mut rows = |count: u64, at: usize| -> Vec<Vec<u8>> {
        (0..count)
            .map(|_| {
                let mut row = vec![0; at + 3 + random.index(60)];
                row.iter_mut().for_each(|byte| *byte = random.byte());
                row[at..at + 3].copy_from_slice(&[0, 0, random.byte() % 50]);
                row
            })
            .collect()
    };
    let (left, right) = (rows(1_000, 0), rows(700, 5));
    let side = |at: usize| JoinSide {
        rows: RowFormat::Variable,
        key: JoinKey::Bytes { range: at..at + 3, null_at: None },
    };
    let options = JoinOptions { left: side(0), right: side(5), ..options(2) };
    check(make, &options, [&left, &right], "any length");
}

fn agrees_with_reference_on_keys_of_any_length(make: &Make) {
    let mut random = Random::new(28);
    let mut rows = |count: u64| -> Vec<Vec<u8>> {
        let row = |_| {
            let key = vec![random.byte() % 3; random.index(5)];
            let rest = vec![random.byte(); random.index(20)];
            let prefix = JoinKey::prefix(key.len() as u32, random.index(10) == 0);
            [&prefix[..], &key, &rest].concat()
        };
        (0..count).map(row).collect()
    };
    let (left, right) = (rows(300), rows(200));
    let side = || JoinSide { rows: RowFormat::Variable, key: JoinKey::Prefixed };
    let options = JoinOptions { left: side(), right: side(), ..options(2) };
    check(make, &options, [&left, &right], "keys of any length");
}

/// An input that ends by an error ends the join everywhere; nothing is returned as if it were complete.
fn stopped_input_fails_all_executors(make: &Make) {
    let options = options(2);
    let lend =
        |number| JoinExecutor::lend(&make(), &unique_name("join"), number, &options).unwrap();
    let (first, second) = (lend(0), lend(1));
    let peers = [first.addresses(), second.addresses()];
    let (left, right) = (rows(1_000, |at| at), rows(1_000, |at| at));
    std::thread::scope(|scope| {
        let (left, right, peers) = (&left, &right, &peers);
        scope.spawn(move || {
            let stops = left.iter().map(Ok).chain([Err(ShuffleError::Stopped)]);
            let failed = second.run(peers, stops, right.iter().map(Ok), WATCHDOG, |_, _| {});
            assert_eq!(failed, Err(ShuffleError::Stopped));
        });
        let (left, right) = (left.iter().map(Ok), right.iter().map(Ok));
        let mut returned = 0;
        let failed = first.run(peers, left, right, WATCHDOG, |_, _| returned += 1);
        is_lost(&failed.unwrap_err());
        assert_eq!(returned, 0);
    });
}

/// Parts that are divided again: more bytes than a table is built from.
fn agrees_with_reference_on_many_rows(make: &Make) {
    let count = 300_000;
    let (left, right) = (rows(count, |at| at % 200_000), rows(count, |at| at * 7 % 250_000));
    let inputs = [&left[..], &right[..]];
    let options = JoinOptions { batch_bytes: 32 << 10, ..options(2) };
    // A sum that does not depend on the order.
    let add = |sums: &mut [u64; 2], left: &[u8], right: Option<&[u8]>| {
        let word = |row: &[u8], at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
        let right = right.unwrap();
        assert_eq!(left[..8], right[..8]);
        let pair = word(left, 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(word(right, 8));
        sums[0] += 1;
        sums[1] = sums[1].wrapping_add(pair.wrapping_mul(pair | 1));
    };
    let mut expected = [0; 2];
    for (left, right) in reference(&options, inputs) {
        add(&mut expected, &left, right.as_deref());
    }
    let joined = run(make, &options, inputs, add);
    let sum = |at: usize| joined.iter().fold(0_u64, |sum, one| sum.wrapping_add(one[at]));
    assert_eq!([sum(0), sum(1)], expected);
}

fn lost_executor_fails_the_others(make: &Make) {
    let options = options(2);
    let lend =
        |number| JoinExecutor::lend(&make(), &unique_name("join"), number, &options).unwrap();
    let (first, second) = (lend(0), lend(1));
    let peers = [first.addresses(), second.addresses()];
    let (left, right) = (rows(10_000, |at| at), rows(10_000, |at| at));
    std::thread::scope(|scope| {
        let (left, peers) = (&left, &peers);
        scope.spawn(move || {
            // A row of another length, after more than the other has room for before it receives.
            let mut wrong = rows(10_000, |at| at);
            wrong.push(vec![0; 3]);
            let failed =
                second.run(peers, left.iter().map(Ok), wrong.iter().map(Ok), WATCHDOG, |_, _| {});
            assert_eq!(failed, Err(ShuffleError::RowSize { bytes: 3, possible: 17 }));
        });
        let failed =
            first.run(peers, left.iter().map(Ok), right.iter().map(Ok), WATCHDOG, |_, _| {});
        is_lost(&failed.unwrap_err());
    });
}

fn is_lost(error: &ShuffleError) {
    assert!(matches!(error.code(), ErrorCode::PeerLost | ErrorCode::Indeterminate), "{error}");
}

#[test]
fn wrong_options_are_refused() {
    let fabric = farside::fabrics::shared_memory().unwrap();
    let key = |range, null_at| JoinSide { key: JoinKey::Bytes { range, null_at }, ..side() };
    let cases = [
        JoinOptions { left: key(10..18, None), ..options(1) },
        JoinOptions { left: key(0..8, Some(17)), ..options(1) },
        JoinOptions { right: key(0..4, None), ..options(1) },
        options(0),
        JoinOptions { batch_bytes: 16, ..options(1) },
    ];
    for options in cases {
        let wrong = JoinExecutor::lend(&fabric, &unique_name("join"), 0, &options).unwrap_err();
        assert_eq!(wrong.code(), ErrorCode::BadConfiguration, "{options:?}");
    }
}

/// Rows without an end.
fn endless(mut each: impl FnMut(u64)) -> impl Iterator<Item = Result<Vec<u8>, ShuffleError>> {
    (0..).map(move |at| {
        each(at);
        Ok(row(at % 1000, at, false))
    })
}

/// An executor that pushes until it is killed.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let fabric = farside::fabrics::shared_memory().unwrap();
    let executor = JoinExecutor::lend(&fabric, &role[0], 1, &options(2)).unwrap();
    let own = executor.addresses();
    say(&format!("addresses {} {}", own[0], own[1]));
    let peers = [[role[1].clone(), role[2].clone()], own];
    let none = std::iter::empty::<Result<Vec<u8>, ShuffleError>>();
    let pushes = endless(|at| {
        if at == 100 {
            say("pushing");
        }
    });
    executor.run(&peers, none, pushes, WATCHDOG, |_, _| {}).unwrap();
}

#[test]
fn killed_executor_fails_the_others() {
    let fabric = farside::fabrics::shared_memory().unwrap();
    let executor = JoinExecutor::lend(&fabric, &unique_name("join"), 0, &options(2)).unwrap();
    let own = executor.addresses();
    let mut child = Process::child(&format!("{} {} {}", unique_name("child"), own[0], own[1]));
    let theirs = child.hear("addresses ");
    let (left, right) = theirs.split_once(' ').unwrap();
    let peers = [own, [left.to_owned(), right.to_owned()]];
    let none = std::iter::empty::<Result<Vec<u8>, ShuffleError>>();
    let mut child = Some(child);
    let kills = endless(|at| {
        // By then the other has received from this executor, so that it pushes too.
        if at == 20_000
            && let Some(mut child) = child.take()
        {
            child.hear("pushing");
        }
    });
    let failed = executor.run(&peers, none, kills, WATCHDOG, |_, _| {});
    is_lost(&failed.unwrap_err());
}

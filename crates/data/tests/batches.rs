//! Shuffles and joins of record batches, compared with a simple reference.

mod common;

use arrow_array::cast::AsArray;
use arrow_array::{RecordBatch, types::Int64Type};
use common::{TestRow, batch, random_rows, rows};
use farside::fabrics;
use farside_apps::join::JoinKind;
use farside_apps::shuffle::ShuffleError;
use farside_data::{
    BatchInbox, BatchInboxOptions, BatchJoin, BatchJoinExecutor, BatchReceived, BatchRule,
    BatchSender, DataError,
};
use farside_testkit::{Random, WATCHDOG, unique_name};
use std::sync::Arc;
use std::time::Duration;

const BATCH_BYTES: u32 = 4 << 10;

fn lend(senders: u16, batch_bytes: u32) -> BatchInbox {
    let options = BatchInboxOptions { senders, batch_bytes, slots_each: 4 };
    BatchInbox::lend(&fabrics::shared_memory().unwrap(), &unique_name("data"), &options).unwrap()
}

fn connect(
    number: u16,
    inboxes: &[&BatchInbox],
    like: &RecordBatch,
    rule: BatchRule,
) -> BatchSender {
    let addresses: Vec<_> = inboxes.iter().map(|inbox| inbox.address()).collect();
    let fabric = fabrics::shared_memory().unwrap();
    BatchSender::connect(&fabric, number, &addresses, &like.schema(), rule, WATCHDOG).unwrap()
}

fn by_number() -> BatchRule {
    BatchRule::Hash(vec!["in_number".to_owned()])
}

/// Every row arrives once, at the inbox of its key, in the order of its sender.
#[test]
fn rows_arrive_once_and_in_order() {
    let mut random = Random::new(1);
    let inputs: Vec<_> = (0..2).map(|_| random_rows(&mut random, 5_000, 40)).collect();
    let inboxes: Vec<_> = (0..3).map(|_| lend(2, BATCH_BYTES)).collect();
    let ends: Vec<_> = inboxes.iter().collect();
    let mut senders: Vec<_> =
        (0..2).map(|number| connect(number, &ends, &batch("in", &[]), by_number())).collect();
    let received: Vec<Vec<TestRow>> = std::thread::scope(|scope| {
        let receivers: Vec<_> = inboxes
            .into_iter()
            .map(|mut inbox| {
                scope.spawn(move || {
                    let mut all = Vec::new();
                    while let Some(batch) = inbox.receive(WATCHDOG).unwrap() {
                        all.extend(rows(&batch, 0).into_iter().flatten());
                    }
                    assert_eq!(inbox.schema().unwrap().field(1).name(), "in_text");
                    all
                })
            })
            .collect();
        for (sender, input) in senders.iter_mut().zip(&inputs) {
            scope.spawn(move || {
                input
                    .chunks(70)
                    .for_each(|rows| sender.push(&batch("in", rows), WATCHDOG).unwrap());
                sender.finish(WATCHDOG).unwrap();
            });
        }
        receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect()
    });
    let mut all: Vec<_> = received.iter().flatten().cloned().collect();
    let mut expected = inputs.concat();
    all.sort();
    expected.sort();
    assert!(all == expected);
    let mut home = std::collections::HashMap::new();
    for (at, row) in
        received.iter().enumerate().flat_map(|(at, rows)| rows.iter().map(move |row| (at, row)))
    {
        assert_eq!(*home.entry(row.0).or_insert(at), at, "a key at two inboxes");
    }
}

#[test]
fn rows_go_where_a_rule_of_the_program_says() {
    let mut inboxes = [lend(1, BATCH_BYTES), lend(1, BATCH_BYTES)];
    let ends: Vec<_> = inboxes.iter().collect();
    let rule = BatchRule::Custom(Box::new(|batch, row| {
        usize::from(batch.column(2).as_primitive::<Int64Type>().value(row) >= 10)
    }));
    let input: Vec<TestRow> = (0..30).map(|at| (None, None, at)).collect();
    let mut sender = connect(0, &ends, &batch("in", &[]), rule);
    sender.push(&batch("in", &input), WATCHDOG).unwrap();
    sender.finish(WATCHDOG).unwrap();
    for (inbox, expected) in inboxes.iter_mut().zip([0..10, 10..30]) {
        let batch = inbox.receive(WATCHDOG).unwrap().unwrap();
        assert_eq!(rows(&batch, 0), input[expected].iter().cloned().map(Some).collect::<Vec<_>>());
        assert_eq!(inbox.receive(WATCHDOG).unwrap(), None);
    }
}

/// The first batch leaves before 2 % of the input is read; each byte is written once, by three requests a batch.
#[test]
fn first_batch_leaves_early_and_bytes_are_written_once() {
    let mut inbox = lend(1, BATCH_BYTES);
    let mut sender = connect(0, &[&inbox], &batch("in", &[]), by_number());
    let input: Vec<TestRow> = (0..50_000).map(|at| (Some(at), None, at)).collect();
    let (mut read, mut received, mut first) = (0, 0, None);
    for part in input.chunks(100) {
        sender.push(&batch("in", part), WATCHDOG).unwrap();
        read += part.len();
        while let BatchReceived::Batch(batch) = inbox.try_receive().unwrap() {
            received += batch.num_rows();
            first.get_or_insert(read);
        }
    }
    assert!(first.unwrap() * 50 < input.len(), "{first:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(batch) = inbox.receive(WATCHDOG).unwrap() {
                received += batch.num_rows();
            }
        });
        sender.finish(WATCHDOG).unwrap();
    });
    assert_eq!(received, input.len());
    let stats = sender.stats();
    assert_eq!(stats.rows, input.len() as u64 + 1); // and the schema, once
    let writes = stats.client.work_requests - stats.credit_reads;
    // The reservation, the rows and the word of each batch; what connecting took.
    let connecting = writes - 3 * stats.batches;
    assert!(connecting < 10, "{connecting}");
    assert_eq!(stats.client.copies, 0);
}

/// A row is 9 B of each number and 1 B of the null text, and its length of 4 B.
#[test]
fn full_inbox_holds_two_batches_at_the_sender() {
    let mut inbox = lend(1, 1 << 10);
    let mut sender = connect(0, &[&inbox], &batch("in", &[]), by_number());
    let mut accepted = 0;
    let late = loop {
        match sender.push(&batch("in", &[(Some(1), None, accepted)]), Duration::from_millis(50)) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(late, DataError::Shuffle(ShuffleError::ReceiversLate(_))), "{late}");
    let row_bytes = 9 + 1 + 9 + 4;
    let slots = 4 + 2; // of the inbox and of the sender
    assert!(accepted as usize * row_bytes <= slots << 10);
    let first = inbox.receive(WATCHDOG).unwrap().unwrap();
    assert!(first.num_rows() > 0);
}

#[test]
fn input_without_rows_brings_its_schema() {
    let mut inbox = lend(1, BATCH_BYTES);
    let mut sender = connect(0, &[&inbox], &batch("in", &[]), by_number());
    sender.finish(WATCHDOG).unwrap();
    assert_eq!(inbox.receive(WATCHDOG).unwrap(), None);
    assert_eq!(inbox.schema(), Some(&batch("in", &[]).schema()));
}

#[test]
fn other_schemas_and_large_rows_are_refused() {
    let mut inbox = lend(2, 1 << 10);
    let mut sender = connect(0, &[&inbox], &batch("in", &[]), by_number());
    let other = sender.push(&batch("other", &[]), WATCHDOG).unwrap_err();
    assert!(matches!(&other, DataError::SchemaDiffers(name) if name == "other_number"), "{other}");
    let large = batch("in", &[(None, Some("x".repeat(2_000)), 0)]);
    let large = sender.push(&large, WATCHDOG).unwrap_err();
    assert!(matches!(large, DataError::RowTooLarge { possible: 1020, .. }), "{large}");
    let addresses = [inbox.address()];
    let fabric = fabrics::shared_memory().unwrap();
    let schema = batch("in", &[]).schema();
    let missing = BatchSender::connect(
        &fabric,
        1,
        &addresses,
        &schema,
        BatchRule::Hash(vec!["key".to_owned()]),
        WATCHDOG,
    );
    assert!(matches!(missing.unwrap_err(), DataError::NoColumn(name, _) if name == "key"));
    let rule = BatchRule::Hash(vec!["b_number".to_owned()]);
    let mut second = connect(1, &[&inbox], &batch("b", &[]), rule);
    sender.finish(WATCHDOG).unwrap();
    second.finish(WATCHDOG).unwrap();
    let differs = loop {
        match inbox.receive(WATCHDOG) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(differs, DataError::SchemaDiffers(_)), "{differs}");
}

/// The pairs of a join by nested loops.
fn reference(
    kind: JoinKind,
    [left, right]: [&[TestRow]; 2],
    keys: usize,
) -> Vec<(TestRow, Option<TestRow>)> {
    let equals = |one: &TestRow, other: &TestRow| {
        one.0.is_some() && one.0 == other.0 && (keys == 1 || (one.1.is_some() && one.1 == other.1))
    };
    let mut pairs = Vec::new();
    for row in left {
        let found: Vec<_> = right.iter().filter(|other| equals(row, other)).cloned().collect();
        match (kind, found.is_empty()) {
            (JoinKind::Inner | JoinKind::LeftOuter, false) => {
                pairs.extend(found.into_iter().map(|other| (row.clone(), Some(other))));
            }
            (JoinKind::LeftOuter | JoinKind::Anti, true) | (JoinKind::Semi, false) => {
                pairs.push((row.clone(), None));
            }
            (JoinKind::Inner | JoinKind::Semi, true) | (JoinKind::Anti, false) => {}
        }
    }
    pairs
}

/// Runs the executors of a join, each with every n-th batch.
fn run_join(
    join: &Arc<BatchJoin>,
    executors: u16,
    inputs: [&[RecordBatch]; 2],
) -> Vec<Result<Vec<RecordBatch>, DataError>> {
    let lend = |number| {
        let fabric = fabrics::shared_memory().unwrap();
        BatchJoinExecutor::lend(
            &fabric,
            &unique_name("join"),
            (number, executors),
            join,
            BATCH_BYTES,
        )
        .unwrap()
    };
    let all: Vec<_> = (0..executors).map(lend).collect();
    let peers: Vec<_> = all.iter().map(BatchJoinExecutor::addresses).collect();
    std::thread::scope(|scope| {
        let peers = &peers;
        let run = |(number, executor): (usize, BatchJoinExecutor)| {
            let [left, right] = inputs.map(|batches| {
                batches.iter().skip(number).step_by(executors.into()).cloned().map(Ok)
            });
            scope.spawn(move || {
                let mut output = Vec::new();
                executor.run(peers, left, right, WATCHDOG, |batch| {
                    output.push(batch);
                    Ok(())
                })?;
                Ok(output)
            })
        };
        let threads: Vec<_> = all.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn join_agrees_with_reference_on_random_and_adversarial_inputs() {
    let mut random = Random::new(2);
    let many = random_rows(&mut random, 1_500, 50);
    let few = random_rows(&mut random, 300, 50);
    let one_key: Vec<TestRow> = (0..120).map(|at| (Some(7), Some("y".to_owned()), at)).collect();
    let no_keys: Vec<TestRow> = (0..100).map(|at| (None, None, at)).collect();
    let mut skew: Vec<TestRow> = many.iter().cloned().chain(one_key.clone()).collect();
    (0..).zip(&mut skew).for_each(|(at, row)| row.2 = at);
    let one = vec![one_key[0].clone()];
    let inputs: [(&str, &[TestRow], &[TestRow]); 9] = [
        ("random", &many, &few),
        ("one key", &one_key, &one_key),
        ("no left rows", &[], &few),
        ("no right rows", &few, &[]),
        ("no rows", &[], &[]),
        ("one row", &one, &one),
        ("all keys null", &no_keys, &no_keys),
        ("null left keys", &no_keys, &few),
        ("skew", &skew, &one_key),
    ];
    for (what, left, right) in inputs {
        for (kind, keys, executors) in [
            (JoinKind::Inner, 1, 2),
            (JoinKind::Inner, 2, 3),
            (JoinKind::LeftOuter, 2, 2),
            (JoinKind::Semi, 1, 2),
            (JoinKind::Anti, 2, 1),
        ] {
            let on = [("l_number", "r_number"), ("l_text", "r_text")];
            let (left_schema, right_schema) = (batch("l", &[]).schema(), batch("r", &[]).schema());
            let join = BatchJoin::new(kind, &left_schema, &right_schema, &on[..keys]).unwrap();
            let join = Arc::new(join);
            let batches = |name: &str, rows: &[TestRow]| -> Vec<_> {
                rows.chunks(64).map(|rows| batch(name, rows)).collect()
            };
            let inputs = [&batches("l", left)[..], &batches("r", right)[..]];
            let output: Vec<_> =
                run_join(&join, executors, inputs).into_iter().flat_map(Result::unwrap).collect();
            let mut expected: Vec<_> = reference(kind, [left, right], keys)
                .into_iter()
                .map(|(left, right)| (left.2, right.map(|right| right.2)))
                .collect();
            let has_right = matches!(kind, JoinKind::Inner | JoinKind::LeftOuter);
            let mut joined = Vec::new();
            for batch in &output {
                assert_eq!(batch.schema(), *join.schema());
                let lefts = rows(batch, 0);
                let ids = has_right
                    .then(|| batch.column_by_name("r_row").unwrap().as_primitive::<Int64Type>());
                for (at, row) in lefts.into_iter().enumerate() {
                    let row = row.unwrap();
                    assert_eq!(row, left[row.2 as usize % left.len()].clone(), "{what}");
                    let right = ids.and_then(|ids| {
                        arrow_array::Array::is_valid(ids, at).then(|| ids.value(at))
                    });
                    joined.push((row.2, right));
                }
            }
            joined.sort();
            expected.sort();
            assert!(joined == expected, "{what}, {kind:?}, {keys} keys, {executors} executors");
        }
    }
}

#[test]
fn repeated_names_get_a_suffix_and_keys_are_once() {
    let schema = batch("t", &[]).schema();
    let on = [("t_number", "t_number")];
    let join = BatchJoin::new(JoinKind::Inner, &schema, &schema, &on).unwrap();
    let names: Vec<_> = join.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["t_number", "t_text", "t_row", "t_text_right", "t_row_right"]);
    let semi = BatchJoin::new(JoinKind::Semi, &schema, &schema, &on).unwrap();
    assert_eq!(*semi.schema(), schema);
}

#[test]
fn wrong_keys_are_typed_errors() {
    let (left, right) = (batch("l", &[]).schema(), batch("r", &[]).schema());
    let join =
        |on: &[(&str, &str)]| BatchJoin::new(JoinKind::Inner, &left, &right, on).unwrap_err();
    let types = join(&[("l_number", "r_text")]);
    assert!(matches!(&types, DataError::KeyTypes(names, _) if names == &["l_number", "r_text"]));
    assert!(types.to_string().contains("Int64") && types.to_string().contains("Utf8"), "{types}");
    let missing = join(&[("l_number", "l_number")]);
    assert!(missing.to_string().contains("r_number, r_text, r_row"), "{missing}");
    let twice = join(&[("l_number", "r_number"), ("l_number", "r_row")]);
    assert!(matches!(twice, DataError::RepeatedColumn(_)), "{twice}");
}

/// The first error of an input is returned, and no executor returns a part as if it were the whole.
#[test]
fn error_of_an_input_fails_all_executors() {
    let schema = batch("t", &[]).schema();
    let on = [("t_number", "t_number")];
    let join = Arc::new(BatchJoin::new(JoinKind::Inner, &schema, &schema, &on).unwrap());
    let rows: Vec<TestRow> = (0..2_000).map(|at| (Some(at), None, at)).collect();
    let good: Vec<_> = rows.chunks(100).map(|rows| batch("t", rows)).collect();
    let mut bad = good.clone();
    bad[11] = batch("other", &rows[..5]);
    let results = run_join(&join, 2, [&bad, &good]);
    assert!(matches!(&results[1], Err(DataError::SchemaDiffers(_))), "{:?}", results[1]);
    assert!(matches!(&results[0], Err(DataError::Shuffle(_))), "{:?}", results[0]);
}

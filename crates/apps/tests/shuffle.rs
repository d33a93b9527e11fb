//! Shuffles between threads over each fabric, and between processes of which one is killed.

mod fabrics;

use fabrics::{Make, make};
use farside::ErrorCode;
use farside_apps::shuffle::{
    InboxOptions, Received, RowBatch, RowFormat, Rule, SenderOptions, ShuffleError, ShuffleInbox,
    ShuffleSender, destination,
};
use farside_testkit::{Process, Random, WATCHDOG, role, say, unique_name};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    rows_arrive_once_and_in_order
    rows_of_any_length_arrive
    gathered_rows_arrive
    rows_of_one_key_arrive
    senders_without_rows_end
    first_batch_leaves_at_once
    full_inbox_holds_two_batches_at_the_sender
    each_byte_is_written_once
    lost_sender_fails_its_receivers
    lost_receiver_fails_its_senders
) with crate::fabrics::make }

fn lend(make: &Make, options: &InboxOptions) -> ShuffleInbox {
    ShuffleInbox::lend(&make(), &unique_name("inbox"), options).unwrap()
}

fn connect(
    make: &Make,
    number: u16,
    addresses: &[String],
    options: SenderOptions,
) -> ShuffleSender {
    ShuffleSender::connect(&make(), number, addresses, options, WATCHDOG).unwrap()
}

/// A sender whose rows go to inboxes by their lengths.
fn connect_by_length(make: &Make, number: u16, addresses: &[String]) -> ShuffleSender {
    let rule = Rule::Custom(Box::new(by_length));
    connect(make, number, addresses, SenderOptions { rule, ..SenderOptions::default() })
}

/// An inbox and its only sender.
fn pair(make: &Make, options: &InboxOptions) -> (ShuffleInbox, ShuffleSender) {
    let inbox = lend(make, options);
    let sender = connect(make, 0, &[inbox.address().to_owned()], SenderOptions::default());
    (inbox, sender)
}

/// Runs senders and receivers, and returns for each receiver the senders and rows that it received.
fn run(
    make: &Make,
    receivers: usize,
    options: &InboxOptions,
    send: &(dyn Fn(&[String], u16) + Sync),
) -> Vec<Vec<(u16, Vec<u8>)>> {
    let inboxes: Vec<_> = (0..receivers).map(|_| lend(make, options)).collect();
    let addresses: Vec<_> = inboxes.iter().map(|inbox| inbox.address().to_owned()).collect();
    std::thread::scope(|scope| {
        let addresses = &addresses;
        for number in 0..options.senders {
            scope.spawn(move || send(addresses, number));
        }
        let receive = |mut inbox: ShuffleInbox| {
            let (mut batch, mut rows) = (RowBatch::default(), Vec::new());
            while inbox.receive(&mut batch, WATCHDOG).unwrap() {
                rows.extend(batch.rows().map(|row| (batch.sender(), row.to_vec())));
            }
            assert_eq!(inbox.try_receive(&mut batch), Ok(Received::Ended));
            rows
        };
        let threads: Vec<_> =
            inboxes.into_iter().map(|inbox| scope.spawn(move || receive(inbox))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Rows of 16 B: a key below `keys`, and a number that is the row's alone.
fn rows_of(number: u16, count: u64, keys: u64) -> impl Iterator<Item = [u8; 16]> {
    let mut random = Random::new(u64::from(number) + 1);
    (0..count).map(move |at| {
        let mut row = [0; 16];
        row[..8].copy_from_slice(&(random.word() % keys).to_le_bytes());
        row[8..].copy_from_slice(&(u64::from(number) << 32 | at).to_le_bytes());
        row
    })
}

/// Checks that each receiver has the rows that are for it, of each sender in order.
fn check<R: AsRef<[u8]>>(
    received: &[Vec<(u16, Vec<u8>)>],
    senders: u16,
    sent: impl Fn(u16) -> Vec<R>,
    to: impl Fn(&[u8]) -> usize,
) {
    for number in 0..senders {
        let sent = sent(number);
        for (receiver, rows) in received.iter().enumerate() {
            let rows = rows.iter().filter(|row| row.0 == number).map(|row| &row.1[..]);
            let expected = sent.iter().map(AsRef::as_ref).filter(|row| to(row) == receiver);
            assert!(rows.eq(expected), "sender {number}, receiver {receiver}");
        }
    }
}

fn rows_arrive_once_and_in_order(make: &Make) {
    for (senders, receivers, count, batch_rows) in [(3, 2, 100_000, u32::MAX), (2, 3, 500, 1)] {
        let options =
            InboxOptions { senders, batch_bytes: 4096, slots: 8, ..InboxOptions::default() };
        let sent = |number| rows_of(number, count, u64::MAX).collect::<Vec<_>>();
        let received = run(make, receivers, &options, &|addresses, number| {
            let options = SenderOptions { batch_rows, ..SenderOptions::default() };
            let mut sender = connect(make, number, addresses, options);
            for row in sent(number) {
                sender.push(&row, WATCHDOG).unwrap();
            }
            sender.finish(WATCHDOG).unwrap();
            assert_eq!(sender.push(&[0; 16], WATCHDOG), Err(ShuffleError::Finished));
        });
        check(&received, senders, sent, |row| destination(&row[..8], receivers));
    }
}

/// Rows of any length, empty ones and the largest among them.
fn lengths(number: u16, largest: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(u64::from(number) + 7);
    let mut row = |at: u64| {
        let length = match random.word() % 20 {
            0 => 0,
            1 => largest,
            _ => (random.word() % 100) as usize,
        };
        (0..length).map(|byte| (at as usize + byte) as u8).collect()
    };
    (0..3_000).map(&mut row).collect()
}

fn by_length(row: &[u8]) -> usize {
    row.len() % 3
}

fn rows_of_any_length_arrive(make: &Make) {
    let rows = RowFormat::Variable;
    let options = InboxOptions { senders: 2, rows, batch_bytes: 1000, slots: 4 };
    let received = run(make, 3, &options, &|addresses, number| {
        let mut sender = connect_by_length(make, number, addresses);
        for row in lengths(number, 996) {
            sender.push(&row, WATCHDOG).unwrap();
        }
        let wrong = sender.push_to(0, &[0; 997], WATCHDOG);
        assert_eq!(wrong, Err(ShuffleError::RowSize { bytes: 997, possible: 996 }));
        sender.finish(WATCHDOG).unwrap();
    });
    check(&received, 2, |number| lengths(number, 996), by_length);
}

fn gathered_rows_arrive(make: &Make) {
    // Of a fixed length, with staged rows between.
    let options =
        InboxOptions { senders: 2, batch_bytes: 1024, slots: 4, ..InboxOptions::default() };
    let sent = |number| rows_of(number, 5_000, 100).collect::<Vec<_>>();
    let received = run(make, 2, &options, &|addresses, number| {
        let mut sender = connect(make, number, addresses, SenderOptions::default());
        let input = sender.register(1000 * 16).unwrap();
        for part in sent(number).chunks(1000) {
            sender.gather_from(&input, WATCHDOG).unwrap();
            for (row, at) in part.iter().zip((0..).step_by(16)) {
                match row[0] % 8 {
                    0 => sender.push(row, WATCHDOG).unwrap(),
                    _ => {
                        input.write(at, row).unwrap();
                        sender.push_at(at, 16, WATCHDOG).unwrap();
                    }
                }
            }
        }
        sender.finish(WATCHDOG).unwrap();
    });
    check(&received, 2, sent, |row| destination(&row[..8], 2));

    let rows = RowFormat::Variable;
    let options = InboxOptions { senders: 2, rows, batch_bytes: 1000, slots: 4 };
    let received = run(make, 3, &options, &|addresses, number| {
        let mut sender = connect_by_length(make, number, addresses);
        let sent = lengths(number, 996);
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|row| (row.len() as u32).to_le_bytes().into_iter().chain(row.iter().copied()))
            .collect();
        let input = sender.register(bytes.len() as u64).unwrap();
        input.write(0, &bytes).unwrap();
        assert!(matches!(sender.push_at(0, 1, WATCHDOG), Err(ShuffleError::Options(_))));
        sender.gather_from(&input, WATCHDOG).unwrap();
        let mut at = 0;
        for row in &sent {
            sender.push_at(at, row.len() as u32, WATCHDOG).unwrap();
            at += 4 + row.len() as u64;
        }
        let past = sender.push_at(input.len() as u64, 1, WATCHDOG);
        assert_eq!(past, Err(ShuffleError::RowSize { bytes: 1, possible: 0 }));
        sender.finish(WATCHDOG).unwrap();
    });
    check(&received, 2, |number| lengths(number, 996), by_length);
}

fn rows_of_one_key_arrive(make: &Make) {
    // One slot: each batch waits for the one before.
    let options =
        InboxOptions { senders: 3, batch_bytes: 512, slots: 1, ..InboxOptions::default() };
    let sent = |number| rows_of(number, 3_000, 1).collect::<Vec<_>>();
    let received = run(make, 4, &options, &|addresses, number| {
        let mut sender = connect(make, number, addresses, SenderOptions::default());
        sent(number).iter().for_each(|row| sender.push(row, WATCHDOG).unwrap());
        sender.finish(WATCHDOG).unwrap();
    });
    assert_eq!(received.iter().filter(|rows| !rows.is_empty()).count(), 1);
    check(&received, 3, sent, |row| destination(&row[..8], 4));
}

fn senders_without_rows_end(make: &Make) {
    let options = InboxOptions { senders: 2, ..InboxOptions::default() };
    let received = run(make, 2, &options, &|addresses, number| {
        let mut sender = connect(make, number, addresses, SenderOptions::default());
        if number == 1 {
            sender.push_to(1, &[3; 16], WATCHDOG).unwrap();
        }
        sender.finish(WATCHDOG).unwrap();
        sender.finish(WATCHDOG).unwrap();
    });
    assert_eq!(received, [vec![], vec![(1, vec![3; 16])]]);
}

fn first_batch_leaves_at_once(make: &Make) {
    let count = 100_000;
    let options = InboxOptions { batch_bytes: 1024, ..InboxOptions::default() };
    let (mut inbox, mut sender) = pair(make, &options);
    let (mut batch, mut pushed, mut first) = (RowBatch::default(), 0, None);
    for row in rows_of(0, count, u64::MAX) {
        sender.push(&row, WATCHDOG).unwrap();
        pushed += 1;
        if pushed == 64 {
            // It is full, and needs no further row to leave.
            while inbox.try_receive(&mut batch).unwrap() == Received::Nothing {
                sender.progress().unwrap();
            }
            first = Some(batch.rows().count());
            break;
        }
    }
    assert_eq!(first, Some(64));
    assert!(pushed * 50 < count);
}

fn full_inbox_holds_two_batches_at_the_sender(make: &Make) {
    let options = InboxOptions { batch_bytes: 160, slots: 3, ..InboxOptions::default() };
    let (mut inbox, mut sender) = pair(make, &options);
    let mut accepted = 0;
    let late = loop {
        match sender.push(&[5; 16], Duration::from_millis(50)) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(late, ShuffleError::ReceiversLate(vec![0]));
    assert_eq!(sender.try_push(&[5; 16]), Ok(false));
    // Three in the inbox, one on its way, one that is filled.
    assert_eq!(accepted, (3 + 2) * 10);
    let mut batch = RowBatch::default();
    assert!(inbox.receive(&mut batch, WATCHDOG).unwrap());
    sender.push(&[6; 16], WATCHDOG).unwrap();
    let mut received = batch.rows().count();
    loop {
        sender.try_finish().unwrap();
        match inbox.try_receive(&mut batch).unwrap() {
            Received::Batch => received += batch.rows().count(),
            Received::Nothing => {}
            Received::Ended => break,
        }
    }
    assert_eq!(received, accepted + 1);
}

fn each_byte_is_written_once(make: &Make) {
    let options = InboxOptions { batch_bytes: 256, ..InboxOptions::default() };
    for gathers in [false, true] {
        let (_inbox, mut sender) = pair(make, &options);
        let input = sender.register(16 * 2 * 160).unwrap();
        if gathers {
            sender.gather_from(&input, WATCHDOG).unwrap();
        }
        let before = sender.stats().client.work_requests;
        for at in 0..160 {
            match gathers {
                true => sender.push_at(32 * at, 16, WATCHDOG).unwrap(), // apart in the input
                false => sender.push(&[1; 16], WATCHDOG).unwrap(),
            }
        }
        sender.flush(WATCHDOG).unwrap();
        let stats = sender.stats();
        assert_eq!((stats.rows, stats.batches, stats.credit_reads), (160, 10, 0));
        // The reservation, the rows (16 pieces are one request) and the word; no copy by the client.
        assert_eq!((stats.client.work_requests - before, stats.client.copies), (30, 0));
    }
}

fn lost_sender_fails_its_receivers(make: &Make) {
    let options = InboxOptions { senders: 2, ..InboxOptions::default() };
    let inbox = lend(make, &options);
    let addresses = [inbox.address().to_owned()];
    let mut inbox = inbox;
    let mut first = connect(make, 0, &addresses, SenderOptions::default());
    let mut second = connect(make, 1, &addresses, SenderOptions::default());
    first.push(&[1; 16], WATCHDOG).unwrap();
    first.finish(WATCHDOG).unwrap();
    second.push(&[2; 16], WATCHDOG).unwrap();
    second.flush(WATCHDOG).unwrap();
    let mut batch = RowBatch::default();
    assert!(inbox.receive(&mut batch, WATCHDOG).unwrap());
    assert!(inbox.receive(&mut batch, WATCHDOG).unwrap());
    let late = inbox.receive(&mut batch, Duration::from_millis(20)).unwrap_err();
    assert_eq!(late, ShuffleError::SendersLate { missing: vec![1], reserved: None });
    drop(second); // and the other has ended: it is not lost
    for _ in 0..2 {
        let lost = inbox.receive(&mut batch, WATCHDOG).unwrap_err();
        assert_eq!(lost, ShuffleError::SendersLost { among: vec![1], lost: 1 });
    }
}

fn lost_receiver_fails_its_senders(make: &Make) {
    let (inbox, mut sender) = pair(make, &InboxOptions::default());
    sender.push(&[1; 16], WATCHDOG).unwrap();
    drop(inbox);
    let lost = loop {
        match sender.push(&[1; 16], WATCHDOG) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(lost, ShuffleError::Receiver(0, _)), "{lost}");
    assert!(matches!(lost.code(), ErrorCode::PeerLost | ErrorCode::Indeterminate), "{lost}");
    assert_eq!(sender.finish(WATCHDOG), Err(lost));
}

/// A sender that pushes, or a receiver that receives, until it is killed.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let fabric = farside::fabrics::shared_memory().unwrap();
    match &role[0][..] {
        "send" => {
            let options = SenderOptions::default();
            let mut sender =
                ShuffleSender::connect(&fabric, 1, &role[1..], options, WATCHDOG).unwrap();
            for at in 0_u64.. {
                let mut row = [9; 16];
                row[..8].copy_from_slice(&at.to_le_bytes());
                sender.push(&row, WATCHDOG).unwrap();
                if at == 50_000 {
                    say("pushing");
                }
            }
        }
        _ => {
            let options = InboxOptions { slots: 4, ..InboxOptions::default() };
            let mut inbox = ShuffleInbox::lend(&fabric, &role[1], &options).unwrap();
            let (mut batch, mut batches) = (RowBatch::default(), 0);
            while inbox.receive(&mut batch, WATCHDOG).unwrap() {
                batches += 1;
                if batches == 20 {
                    say("receiving");
                }
            }
        }
    }
}

#[test]
fn killed_sender_fails_the_receiver() {
    let make = make("shm");
    let options =
        InboxOptions { senders: 2, batch_bytes: 1024, slots: 8, ..InboxOptions::default() };
    let mut inbox = lend(&*make, &options);
    let addresses = [inbox.address().to_owned()];
    let mut sender = connect(&*make, 0, &addresses, SenderOptions::default());
    let child = Process::child(&format!("send {}", addresses[0]));
    let mut batch = RowBatch::default();
    let (mut next, mut child) = (0, Some(child));
    let lost = loop {
        // Until the other is killed, at any step of a batch.
        sender.try_push(&[1; 16]).unwrap();
        sender.progress().unwrap();
        let received = match inbox.try_receive(&mut batch) {
            Ok(received) => received,
            Err(error) => break error,
        };
        assert_ne!(received, Received::Ended);
        if received == Received::Batch && batch.sender() == 1 {
            for row in batch.rows() {
                assert_eq!(row[..8], u64::to_le_bytes(next));
                next += 1;
            }
        }
        if next > 60_000 {
            drop(child.take());
        }
    };
    let ShuffleError::SendersLost { among, lost } = lost else { panic!("{lost}") };
    assert!(among.contains(&1) && lost == 1, "{among:?}");
}

#[test]
fn killed_receiver_fails_the_sender() {
    let make = make("shm");
    let name = unique_name("inbox");
    let mut child = Process::child(&format!("receive {name}"));
    let mut sender = connect(&*make, 0, &[name], SenderOptions::default());
    for _ in 0..100_000 {
        sender.push(&[1; 16], WATCHDOG).unwrap();
    }
    child.hear("receiving");
    drop(child);
    let lost = loop {
        match sender.push(&[1; 16], WATCHDOG) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(lost, ShuffleError::Receiver(0, _)), "{lost}");
}

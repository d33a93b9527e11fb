//! Content of an inbox that no sender writes.

use super::layout::{InboxLayout, SlotWord, TAIL};
use super::{
    InboxOptions, Received, RowBatch, RowFormat, SenderOptions, ShuffleError, ShuffleInbox,
    ShuffleSender,
};
use farside::fabrics::{Fabric, MemFabric};
use farside::onesided::{
    LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteMemory,
};
use farside_testkit::WATCHDOG;
use std::sync::Arc;
use std::time::Duration;

fn fabric() -> Arc<dyn Fabric> {
    Arc::new(MemFabric::new())
}

/// An inbox, and a client that writes what it likes.
fn foreign(options: &InboxOptions) -> (ShuffleInbox, MemoryClient, RemoteMemory) {
    let fabric = fabric();
    let inbox = ShuffleInbox::lend(&fabric, "inbox", options).unwrap();
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default()).unwrap();
    let memory = client.open(inbox.address(), WATCHDOG).unwrap();
    (inbox, client, memory)
}

#[test]
fn content_that_no_sender_writes_is_reported() {
    let good = SlotWord { lap: 1, sender: 0, is_last: false, bytes: 32 };
    let cases = [
        (RowFormat::Fixed(16), SlotWord { sender: 2, ..good }),
        (RowFormat::Fixed(16), SlotWord { bytes: 40, ..good }),
        (RowFormat::Fixed(16), SlotWord { bytes: (32 << 10) + 16, ..good }),
        (RowFormat::Variable, SlotWord { bytes: 32, ..good }), // its rows pass its end
        (RowFormat::Variable, SlotWord { bytes: 3, ..good }),
    ];
    for (rows, word) in cases {
        let options = InboxOptions { senders: 2, rows, ..InboxOptions::default() };
        let layout = InboxLayout::new(&options).unwrap();
        let (mut inbox, mut client, memory) = foreign(&options);
        client.write_bytes(memory.at(layout.rows(0)), &[7; 64], WATCHDOG).unwrap();
        let bytes = word.encode().to_le_bytes();
        client.write_bytes(memory.at(layout.word(0)), &bytes, WATCHDOG).unwrap();
        let mut batch = RowBatch::default();
        for _ in 0..2 {
            let failed = inbox.receive(&mut batch, WATCHDOG);
            assert_eq!(failed, Err(ShuffleError::Damaged(0)), "{rows:?} {word:?}");
        }
    }
}

#[test]
fn slot_that_is_reserved_and_not_written_is_named() {
    let options = InboxOptions::default();
    let (mut inbox, mut client, memory) = foreign(&options);
    let mut batch = RowBatch::default();
    let late = inbox.receive(&mut batch, Duration::ZERO);
    assert_eq!(late, Err(ShuffleError::SendersLate { missing: vec![0], reserved: None }));
    let reserved = client.fetch_add(memory.at(TAIL), 1).unwrap();
    client.wait(reserved, WATCHDOG).unwrap();
    let late = inbox.receive(&mut batch, Duration::ZERO);
    assert_eq!(late, Err(ShuffleError::SendersLate { missing: vec![0], reserved: Some(0) }));
    assert_eq!(inbox.try_receive(&mut batch), Ok(Received::Nothing));
}

#[test]
fn memory_that_is_no_inbox_is_refused() {
    let fabric = fabric();
    let connect = |name: &str, number: u16| {
        let options = SenderOptions::default();
        ShuffleSender::connect(&fabric, number, &[name], options, Duration::from_millis(20))
    };
    let refused = |name: &str, number: u16| match connect(name, number) {
        Err(ShuffleError::NotAnInbox(_, why)) => why,
        other => panic!("{other:?}"),
    };
    let lend = |name: &str, bytes: u64| {
        MemoryServer::lend(&fabric, name, bytes, &LendOptions::default()).unwrap()
    };
    let (_short, empty) = (lend("short", 32), lend("empty", 4096));
    assert_eq!(refused("short", 0), "it is too short");
    assert_eq!(refused("empty", 0), "its header is empty");
    empty.store_word(0, 9).unwrap();
    assert_eq!(refused("empty", 0), "it begins with other bytes");
    let layout = InboxLayout::new(&InboxOptions::default()).unwrap();
    for (at, word) in layout.encode().into_iter().enumerate() {
        empty.store_word(8 * at as u64, word).unwrap();
    }
    assert_eq!(refused("empty", 0), "it is shorter than its header says");
    let inbox = ShuffleInbox::lend(&fabric, "inbox", &InboxOptions::default()).unwrap();
    assert_eq!(refused(inbox.address(), 1), "it has fewer senders than this sender's number");
    let _sender = connect("inbox", 0).unwrap();
    let taken = connect("inbox", 0).unwrap_err();
    assert_eq!(taken, ShuffleError::SenderTaken(0, 0));
    assert!(matches!(connect("nowhere", 0), Err(ShuffleError::Receiver(0, _))));
}

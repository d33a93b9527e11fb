//! The program of the guide on the shuffle and the join.

use farside::fabrics;
use farside_apps::shuffle::{
    InboxOptions, RowBatch, SenderOptions, ShuffleError, ShuffleInbox, ShuffleSender,
};
use std::time::Duration;

fn main() -> Result<(), ShuffleError> {
    let second = Duration::from_secs(1);
    // In each receiver. Its address goes to all senders.
    let fabric = fabrics::shared_memory()?;
    let options = InboxOptions { senders: 1, ..InboxOptions::default() }; // rows of 16 B
    let mut inbox = ShuffleInbox::lend(&fabric, "guide-inbox", &options)?;

    // In each sender: its number, and the addresses of all inboxes.
    let addresses = [inbox.address()];
    let mut sender =
        ShuffleSender::connect(&fabric, 0, &addresses, SenderOptions::default(), second)?;
    sender.push(b"key of 8and value", second).unwrap_err(); // 17 B
    sender.push(b"key of 8its data", second)?; // to the inbox of the hash of its first 8 B
    sender.finish(second)?;

    let mut batch = RowBatch::default();
    while inbox.receive(&mut batch, second)? {
        batch.rows().for_each(|row| assert_eq!(row.len(), 16));
    }
    Ok(())
}

//! Orders that survive their process: `docs/guides/durable-log.md`.

use farside::durable::{DurableLog, DurableLogOptions, RecordTag};
use std::time::Duration;

fn main() -> Result<(), farside::Error> {
    let folder = std::env::temp_dir().join(format!("orders-{}", std::process::id()));
    let (log, recovered) = DurableLog::open(&folder, &DurableLogOptions::default())?;
    assert!(log.promise().survives_process); // and power, on a disk

    // The state of the program: a checkpoint of its own, then all records after it.
    let mut orders = Vec::new();
    for record in log.reader(recovered.begin) {
        orders.push(record?.payload);
    }

    let order = RecordTag { kind: 1, ..RecordTag::default() };
    log.append(order, b"two pears")?;
    let end = log.append(order, b"one apple")?;
    log.commit(end, Duration::from_secs(10))?; // both are durable: tell the customers
    log.trim(recovered.begin)?; // up to where the checkpoint has all
    log.close()?;
    std::fs::remove_dir_all(&folder).ok();
    Ok(())
}

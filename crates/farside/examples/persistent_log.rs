//! A log on persistent memory: `persistent_log FOLDER`, a folder of a file system that is mounted with `-o dax`.

use farside::durable::{DurableLog, DurableLogOptions, PersistentDevice, RecordTag};
use farside::{Error, ErrorCode};
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Error> {
    let Some(folder) = std::env::args_os().nth(1) else {
        return Err(Error::with(ErrorCode::BadConfiguration, "persistent_log FOLDER"));
    };
    keep(Path::new(&folder))
}

fn keep(folder: &Path) -> Result<(), Error> {
    let device = PersistentDevice::open(folder)?;
    let (log, _) = DurableLog::on(Box::new(device), &DurableLogOptions::default())?;
    assert!(log.promise().survives_power);
    let order = RecordTag { kind: 1, ..RecordTag::default() };
    let end = log.append(order, b"two pears")?;
    log.commit(end, Duration::from_secs(10))?; // no system call
    log.close()
}

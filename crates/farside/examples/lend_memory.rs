//! Memory of one machine, used by another: `docs/guides/memory-of-other-machines.md`.

use farside::fabrics;
use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
use std::time::Duration;

fn main() -> Result<(), farside::Error> {
    let second = Duration::from_secs(1);
    // On the machine with the memory; "tcp://10.0.0.1:7471" lends it to other hosts.
    let fabric = fabrics::shared_memory()?;
    let server = MemoryServer::lend(&fabric, "guide-pool", 64 << 20, &LendOptions::default())?;

    // In any other process.
    let mut client =
        MemoryClient::new(&fabrics::shared_memory()?, &MemoryClientOptions::default())?;
    let pool = client.open(server.address(), second)?;

    let buffer = client.register(8192)?; // registered memory: no copy on the way
    buffer.write(0, b"a record")?;
    let write = client.write(pool.at(4096), &buffer, 0..4096)?;
    let count = client.fetch_add(pool.at(0), 1)?; // counts the records
    client.submit(); // both requests, one doorbell
    client.wait(write, second)?; // the record is there
    assert_eq!(client.wait(count, second)?, 0); // the count before
    Ok(())
}

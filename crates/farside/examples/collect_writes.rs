//! Small writes of remote memory, collected: `docs/guides/memory-of-other-machines.md`.

use farside::fabrics;
use farside::onesided::{
    BurstBuffer, BurstOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer,
};
use std::time::Duration;

fn main() -> Result<(), farside::Error> {
    let second = Duration::from_secs(1);
    let fabric = fabrics::shared_memory()?;
    let server = MemoryServer::lend(&fabric, "guide-burst", 1 << 20, &LendOptions::default())?;
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
    let memory = client.open(server.address(), second)?;

    let options = BurstOptions::default().block_bytes(1024).theta(16);
    let mut burst = BurstBuffer::new(&client, memory.at(0), memory.bytes(), &options)?;
    burst.hint_hot(0..64 << 10)?; // these blocks keep their places
    burst.write(&mut client, 4096, b"a record", second)?;
    let mut record = [0; 8];
    burst.read(&mut client, 4096, &mut record, second)?; // its own writes, at once
    assert_eq!(&record, b"a record");
    burst.flush(&mut client, second)?; // others see it
    Ok(())
}

//! Memory of the sockets of a machine, used through proxies: `docs/guides/memory-of-other-machines.md`.

use farside::fabrics;
use farside::onesided::{LendOptions, MemoryServer, SocketClients, SocketOptions};
use farside::topology::Topology;
use std::time::Duration;

fn main() -> Result<(), farside::Error> {
    let second = Duration::from_secs(1);
    let machine = Topology::of_system()?; // or "0-7;8-15".parse()?
    let fabric = fabrics::shared_memory()?;

    // On the machine with the memory: a server for each of its sockets.
    let near = |name: &str, socket: usize| {
        let options = LendOptions::default().socket(Some(machine.socket(socket)?.clone()));
        MemoryServer::lend(&fabric, name, 64 << 20, &options)
    };
    let servers = [near("guide-near", 0)?];

    // On the machine that uses it: a client and a proxy for each socket.
    let addresses: Vec<&str> = servers.iter().map(MemoryServer::address).collect();
    let options = SocketOptions::default();
    let clients =
        SocketClients::open(&machine, &[fabrics::shared_memory()?], &addresses, &options, second)?;
    let memory = clients.memories()[0];

    // On a thread of socket 0, with memory of any socket.
    machine.socket(0)?.bind_current_thread()?;
    let mut requester = clients.requester(0)?;
    let buffer = requester.register(memory, 4096)?; // next to this thread
    buffer.write(0, b"a record")?;
    let write = requester.write(memory.at(4096), &buffer, 0..4096)?;
    let count = requester.fetch_add(memory.at(0), 1)?;
    requester.submit(); // the proxy posts both with one doorbell
    requester.wait(write, second)?;
    assert_eq!(requester.wait(count, second)?, 0);
    Ok(())
}

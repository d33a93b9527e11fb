//! The README's example.

use farside::prelude::*;

fn main() -> Result<(), Error> {
    // Founds the cluster, or joins it. "tcp://10.0.0.1:7471" does the same over TCP.
    let node = Node::open(&Config::new("readme"), "shm", Security::open())?;
    let mut session = node.session()?;

    let counter = session.alloc(8)?; // a global address: any node may use it, and store it
    session.fetch_add(counter, 1)?;

    let text = session.alloc(4096)?;
    session.write(text, b"hello")?; // returns at once; others see it soon,
    session.fence()?; // and from here on for certain

    let mut guard = session.lock_write(text, 4096)?; // exclusive over all nodes
    guard.write(text, b"world")?;
    guard.unlock()?;

    let mut bytes = [0; 5];
    session.read(text, &mut bytes)?; // a tag check and a copy, once the line is cached
    assert_eq!(&bytes, b"world");
    drop(session);
    node.leave()?;
    Ok(())
}

//! The README's example.

use farside::{Config, Node};

fn main() -> Result<(), farside::Error> {
    let node = Node::create(&Config::new("readme"))?; // others: Node::join(&Config::new("readme"))
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

//! Memory that survives its process: `docs/guides/clusters-that-restart.md`.

use farside::{AllocationSpec, Config, Durability, Node};

fn main() -> Result<(), farside::Error> {
    let name = format!("orders-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    let config = Config::new(name).memory_bytes(4 << 20).state(Some(folder.clone()));

    let node = Node::create(&config)?;
    let mut session = node.session()?;
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let orders = session.alloc_with(4096, logged)?;
    session.publish_root("orders", orders, 4096)?;
    session.write(orders, b"two pears")?;
    session.fence()?; // durable: tell the customers
    drop(session);
    node.leave()?;

    // The same after a crash: the folder has the memory, its number and its names.
    let node = Node::create(&config)?;
    let mut session = node.session()?;
    let mut order = [0; 9];
    let root = session.root("orders")?;
    session.read(root.address, &mut order)?;
    assert_eq!(&order, b"two pears");
    drop(session);
    node.leave()?;
    std::fs::remove_dir_all(&folder).ok();
    Ok(())
}

//! Processes of one parallel program, here threads: named roots, arrays and a group.

use farside::{Error, Group, Node};

fn solve(node: &Node, size: usize) -> Result<f64, Error> {
    let mut session = node.session()?;
    let mut group = Group::join(&mut session, "solver", size)?; // waits for all; ranks 0 to size - 1
    let chunk = 1000;
    let cells = session.root_or_create("cells", (size * chunk * 8) as u64)?.array::<f64>();
    let own = cells.slice(group.rank() * chunk..(group.rank() + 1) * chunk)?;
    own.fill(&mut session, 1.0 + group.rank() as f64)?;
    group.barrier(&mut session)?; // what all have written is visible to all
    let next = cells.get(&mut session, (group.rank() + 1) % size * chunk)?;
    let mut sum = [next];
    group.all_reduce(&mut session, &mut sum, |left, right| left + right)?;
    group.leave(&mut session)?; // the last one frees the group
    Ok(sum[0])
}

fn main() -> Result<(), Error> {
    let mut config = farside::Config::new(format!("guide-{}", std::process::id()));
    (config.memory_bytes, config.cache_bytes) = (4 << 20, 4 << 20);
    let node = Node::create(&config)?; // and here the processes are threads
    let threads =
        [node.clone(), node.clone(), node].map(|node| std::thread::spawn(move || solve(&node, 3)));
    for thread in threads {
        assert_eq!(thread.join().expect("no panic")?, 6.0);
    }
    Ok(())
}

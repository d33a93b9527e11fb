//! `farside up`: a local cluster that programs join by name.

use crate::arguments::Up;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::output::{Output, bytes};
use crate::worker::NodeSpec;
use serde::Serialize;

/// Starts the cluster, says how to join it, and stays until told to end.
pub(crate) fn run(arguments: &Up, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Started<'a> {
        cluster: &'a str,
        nodes: Vec<Member>,
    }
    #[derive(Serialize)]
    struct Member {
        node: u16,
        process: u32,
    }
    let spec = NodeSpec {
        cluster: arguments.name.clone(),
        create: true,
        memory_bytes: arguments.memory_bytes,
        cache_bytes: arguments.cache_bytes,
        line_bytes: arguments.line_bytes,
        cache_shares: None,
        spin_ns: None,
        processor: None,
    };
    let mut cluster = Cluster::start(&spec, usize::from(arguments.nodes))?;
    let nodes = (0..cluster.len())
        .map(|index| Member { node: cluster.node(index), process: cluster.process(index) });
    output.value(&Started { cluster: &arguments.name, nodes: nodes.collect() });
    let name = &arguments.name;
    output.line(format!(
        "cluster {name}: {} nodes, {} each",
        cluster.len(),
        bytes(arguments.memory_bytes)
    ));
    output.line(format!("join:  farside::Node::join(&farside::Config::new(\"{name}\"))"));
    output.line("end:   Ctrl-C");
    cluster.wait()?;
    cluster.leave()?;
    output.line(format!("cluster {name} has ended"));
    Ok(())
}

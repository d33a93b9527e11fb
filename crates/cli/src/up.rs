//! `farside up`: a cluster that programs join, by name or over TCP.

use crate::arguments::Up;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::output::{Output, bytes};
use crate::worker::NodeSpec;
use serde::Serialize;
use std::net::SocketAddr;

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
        /// Where it is reached, over TCP.
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<SocketAddr>,
    }
    let hosts = Hosts::of(&arguments.places)?;
    let spec = NodeSpec {
        cluster: arguments.name.clone(),
        create: true,
        memory_bytes: arguments.memory_bytes,
        cache_bytes: arguments.cache_bytes,
        line_bytes: arguments.line_bytes,
        cache_shares: None,
        spin_ns: None,
        processor: None,
        host: None,
    };
    let mut cluster = Cluster::start(&hosts, &spec, usize::from(arguments.nodes))?;
    let nodes = (0..cluster.len()).map(|index| Member {
        node: cluster.node(index),
        process: cluster.process(index),
        address: cluster.address(index),
    });
    output.value(&Started { cluster: &arguments.name, nodes: nodes.collect() });
    let name = &arguments.name;
    output.line(format!(
        "cluster {name}: {} nodes {}, {} each",
        cluster.len(),
        hosts.describe(),
        bytes(arguments.memory_bytes)
    ));
    let addresses: Vec<_> = (0..cluster.len()).filter_map(|index| cluster.address(index)).collect();
    output.line(match &addresses[..] {
        [] => format!("join:  farside::Node::join(&farside::Config::new(\"{name}\"))"),
        all => {
            let all: Vec<_> = all.iter().map(SocketAddr::to_string).collect();
            format!(
                "join:  farside node --listen HOST:PORT --cluster {name} --join {}",
                all.join(",")
            )
        }
    });
    output.line("end:   Ctrl-C");
    cluster.wait()?;
    cluster.leave()?;
    output.line(format!("cluster {name} has ended"));
    Ok(())
}

//! The fabrics and clusters of tests of several nodes.

// Each test program uses some of them.
#![allow(dead_code, reason = "shared by several test programs")]

use farside::{Config, Node};
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::WATCHDOG;
use std::sync::{Arc, Mutex};

/// Makes the fabric of a node; the nodes of a cluster can reach each other over what it makes.
pub(crate) type Make = dyn Fn() -> Arc<dyn Fabric>;

pub(crate) fn mem() -> Box<Make> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    Box::new(move || Arc::clone(&fabric))
}

pub(crate) fn shm() -> Box<Make> {
    Box::new(|| Arc::new(ShmFabric::new().unwrap()))
}

pub(crate) fn tcp() -> Box<Make> {
    let hosts = Mutex::new(Vec::new());
    Box::new(move || {
        let mut hosts = hosts.lock().unwrap();
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let options = TcpOptions { listen, hosts: hosts.clone(), ..TcpOptions::default() };
        let fabric = TcpFabric::new(options).unwrap();
        hosts.push(fabric.listens_at().unwrap());
        Arc::new(fabric)
    })
}

/// Makes the fabrics of a name, for tests of [`farside_testkit::on_each_fabric!`].
pub(crate) fn named(fabric: &str) -> Box<Make> {
    match fabric {
        "mem" => mem(),
        "shm" => shm(),
        "tcp" => tcp(),
        other => panic!("no fabric {other}"),
    }
}

/// Returns a cluster of this many nodes, which all know each other.
pub(crate) fn cluster(make: &Make, config: &Config, count: usize) -> Vec<Node> {
    let mut nodes = vec![Node::create_on(config, make()).unwrap()];
    nodes.extend((1..count).map(|_| Node::join_on(config, make()).unwrap()));
    nodes.iter().for_each(|node| node.wait_for_members(count, WATCHDOG).unwrap());
    nodes
}

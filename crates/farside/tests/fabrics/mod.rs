//! The fabrics of tests of several nodes, and a macro that makes one test for each of them.

// Each test program uses some of them.
#![allow(dead_code, reason = "shared by several test programs")]

use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
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

/// Makes a module for each fabric, with a test for each of these functions, which take a [`Make`].
macro_rules! on_each_fabric {
    ($($fabric:ident)* => $tests:tt) => {
        $(mod $fabric { crate::fabrics::on_each_fabric!(@tests $fabric $tests); })*
    };
    (@tests $fabric:ident ($($name:ident)*)) => {
        $(#[test] fn $name() { super::$name(&*crate::fabrics::$fabric()) })*
    };
}
pub(crate) use on_each_fabric;

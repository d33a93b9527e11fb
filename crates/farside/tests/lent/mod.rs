//! Memory servers of tests, and their clients.
#![allow(dead_code, reason = "each test file uses a part")]

use crate::fabrics::Make;
use crate::proxy::Proxy;
use farside::fabrics::{Endpoint, Fabric};
use farside::onesided::{
    LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteMemory,
};
use farside::{Error, ErrorCode};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{WATCHDOG, unique_name};
use std::sync::Arc;

pub(crate) const BYTES: u64 = 1 << 20;

pub(crate) fn server(fabric: &Arc<dyn Fabric>, name: &str) -> MemoryServer {
    MemoryServer::lend(fabric, name, BYTES, &LendOptions::default()).unwrap()
}

/// A server, and a client that has opened its memory.
pub(crate) fn pair(make: &Make, test: &str) -> (MemoryServer, MemoryClient, RemoteMemory) {
    let server = server(&make(), &unique_name(test));
    let (client, memory) = client_of(&make(), &server, &MemoryClientOptions::default());
    (server, client, memory)
}

/// The same; all requests are posted.
pub(crate) fn posting_pair(make: &Make, test: &str) -> (MemoryServer, MemoryClient, RemoteMemory) {
    let server = server(&make(), &unique_name(test));
    let options = MemoryClientOptions::default().in_call(false);
    let (client, memory) = client_of(&make(), &server, &options);
    (server, client, memory)
}

pub(crate) fn client_of(
    fabric: &Arc<dyn Fabric>,
    server: &MemoryServer,
    options: &MemoryClientOptions,
) -> (MemoryClient, RemoteMemory) {
    let mut client = MemoryClient::new(fabric, options).unwrap();
    let memory = client.open(server.address(), WATCHDOG).unwrap();
    (client, memory)
}

/// A server whose connections go through a proxy, and a fabric that reaches it.
pub(crate) fn cut_pair(test: &str) -> (Proxy, MemoryServer, Arc<dyn Fabric>) {
    let way = Proxy::new();
    let lender = tcp(Vec::new(), Some(&way));
    way.leads_to(lender.listens_at().unwrap().resolve().unwrap()[0]);
    let lender: Arc<dyn Fabric> = Arc::new(lender);
    let server = server(&lender, &unique_name(test));
    let fabric: Arc<dyn Fabric> = Arc::new(tcp(vec![way.at().into()], None));
    (way, server, fabric)
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    result.unwrap_err().code
}

/// The fabric of a process, which reaches these hosts.
pub(crate) fn process_fabric(name: &str, hosts: &[&Proxy]) -> Arc<dyn Fabric> {
    match name {
        "shm" => Arc::new(ShmFabric::new().unwrap()),
        _ => Arc::new(tcp(hosts.iter().map(|host| host.at().into()).collect(), None)),
    }
}

pub(crate) fn tcp(hosts: Vec<Endpoint>, advertise: Option<&Proxy>) -> TcpFabric {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let advertise = advertise.map(|way| way.at().into());
    TcpFabric::new(TcpOptions { listen, advertise, hosts, ..TcpOptions::default() }).unwrap()
}

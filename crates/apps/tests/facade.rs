//! A program whose only dependency is `farside`: what public signatures show can be named and used.

use farside::fabrics::{
    Access, Capabilities, Endpoint, Fabric, FabricError, FabricOptions, MemFabric, Port, PortSpec,
    Region, RegionKind, RegionSpec, Requirements, Scheme,
};
use farside::prelude::*;
use farside::security::BootstrapError;
use farside::{Departure, ErrorEntry, Member, MemoryId, Occupancy, SessionId, Stats};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

fn register(fabric: &dyn Fabric) -> Result<Region, FabricError> {
    fabric.register(&RegionSpec { bytes: 4096, access: Access::WRITE, kind: RegionKind::Memory })
}

fn port(fabric: &dyn Fabric) -> Result<Box<dyn Port>, FabricError> {
    fabric.open(&PortSpec { listen: Some("facade".to_owned()) })
}

fn keyed() -> Result<Security, BootstrapError> {
    Security::new(Identity::cluster_key(&ClusterKey::generate()?)?, Protect::Everything)
}

#[test]
fn types_of_public_signatures_have_names() -> Result<(), Error> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let has: Capabilities = fabric.capabilities();
    let needs: Requirements = farside::REQUIREMENTS;
    assert!(needs.check(&has).is_ok() && register(&*fabric).is_ok() && port(&*fabric).is_ok());
    let entry: ErrorEntry = ErrorCode::NodeLost.entry();
    assert_eq!(entry.kind, ErrorKind::Lost);
    let host: Endpoint = "127.0.0.1:0".parse()?;
    let options = FabricOptions::new(Scheme::Tcp).listen(Some(host)).security(keyed()?);
    assert!(options.open()?.fabric.host().is_some());
    let config = Config::new(format!("facade-{}", std::process::id()))
        .memory_bytes(1 << 20)
        .cache_bytes(1 << 20);
    let node = Node::create_on(&config, fabric)?;
    let (_, _, members): (Option<MemoryId>, Stats, Vec<Member>) =
        (node.memory(), node.stats(), node.members());
    assert_eq!(members.len(), 1);
    let _: fn(&dyn Fabric, &str, Duration) -> Result<Occupancy, Error> = farside::occupancy;
    let _: fn(&Session) -> SessionId = Session::id;
    let _: Departure = node.leave()?;
    Ok(())
}

/// The same program over shared memory and TCP: two nodes, a word and a lock.
#[test]
fn one_string_changes_the_fabric() -> Result<(), Error> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in ["shm".to_owned(), format!("tcp://{free}")] {
        let name = format!("facade-url-{}", std::process::id());
        let config = Config::new(name).memory_bytes(1 << 20).cache_bytes(1 << 20);
        let first = Node::open(&config, &url, Security::open())?;
        let second = Node::open(&config, &url, Security::open())?;
        let mut session = first.session()?;
        let word = session.alloc(8)?;
        let mut other = second.session()?;
        let mut guard = other.lock_write(word, 8)?;
        guard.write_u64(word, 41)?;
        guard.unlock()?;
        assert_eq!(session.fetch_add(word, 1)?, 41);
    }
    Ok(())
}

//! Shared test code: nodes of this fabric.
#![allow(dead_code, reason = "each test file uses a part")]

use farside_base::Access;
use farside_fabric_shm::ShmFabric;

pub(crate) type TestNode = farside_testkit::TestNode<ShmFabric>;

pub(crate) fn node(listen: Option<&str>) -> TestNode {
    node_of(ShmFabric::new().expect("a fabric"), listen)
}

pub(crate) fn node_of(fabric: ShmFabric, listen: Option<&str>) -> TestNode {
    TestNode::new(fabric, listen, Access::ALL)
}

/// Returns a listen name of this test run.
pub(crate) fn name(what: &str) -> String {
    format!("test-{}-{what}", std::process::id())
}

//! The verbs fabric under the conformance suite, over the fake library: no device, every machine.

use farside_bootstrap::{Endpoint, Security};
use farside_fabric::Fabric;
use farside_fabric::conformance::Subject;
use farside_fabric_verbs::{Options, VerbsFabric};
use farside_fabric_verbs_fake::Fake;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct FakeVerbs {
    options: Options,
    next: AtomicUsize,
}

impl FakeVerbs {
    fn new() -> Self {
        let listeners: Vec<_> = (0..8)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"))
            .collect();
        let hosts = listeners
            .iter()
            .map(|one| Endpoint::from(one.local_addr().expect("an address of a listener")));
        let mut options = Options::new(Security::open());
        options.hosts = hosts.collect();
        let library = Fake::path().expect("the library beside the test");
        options.library = library.to_string_lossy().into_owned();
        Self { options, next: AtomicUsize::new(0) }
    }
}

impl Subject for FakeVerbs {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        let open = || {
            let mut options = self.options.clone();
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            options.listen = Some(options.hosts[at].clone());
            VerbsFabric::open(options).expect("the fake device")
        };
        (0..count).map(|_| Arc::new(open()) as Arc<dyn Fabric>).collect()
    }

    fn names_are_shared(&self) -> bool {
        false
    }
}

farside_fabric::conformance_suite!(FakeVerbs::new());

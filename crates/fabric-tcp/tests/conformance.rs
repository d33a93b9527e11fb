//! The TCP fabric under the conformance suite, with each of the three protections. Each fabric has a
//! listener, memory and an engine of its own, as if it were another host.

mod common;

use common::fabrics_of;
use farside_bootstrap::{ClusterKey, Identity, Protect, Security};
use farside_fabric::Fabric;
use farside_fabric::conformance::Subject;
use std::sync::Arc;

struct Tcp(Security);

impl Tcp {
    fn open() -> Self {
        Self(Security::open())
    }

    fn keyed(protect: Protect) -> Self {
        let key = ClusterKey::generate().expect("random numbers");
        let identity = Identity::cluster_key(&key).expect("a key pair");
        Self(Security::new(identity, protect).expect("a key goes with both"))
    }
}

impl Subject for Tcp {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        fabrics_of(&self.0, count).into_iter().map(|fabric| Arc::new(fabric) as _).collect()
    }

    fn names_are_shared(&self) -> bool {
        false
    }
}

mod plain {
    use super::*;
    farside_fabric::conformance_suite!(Tcp::open());
}

mod protected_handshake {
    use super::*;
    farside_fabric::conformance_suite!(Tcp::keyed(Protect::Handshake));
}

mod protected {
    use super::*;
    farside_fabric::conformance_suite!(Tcp::keyed(Protect::Everything));
}

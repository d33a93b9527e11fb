//! The litmus tests at wire height: real threads over the shared-memory fabric.

use farside_fabric_shm::ShmFabric;
use farside_sim::litmus::{CATALOG, LitmusReport, MemoryModel, Placement, WireSubject, run_free};
use std::sync::Arc;

/// Number of rounds of each test and placement; `FARSIDE_RUNS` overrides it.
fn rounds() -> u64 {
    farside_sim::seeds::setting("FARSIDE_RUNS", 15)
}

#[test]
fn litmus_wire_shm() {
    let mut direct_reads = 0;
    for (number, litmus) in CATALOG.iter().enumerate() {
        for placement in Placement::all(litmus) {
            let name = format!("litmus-{}-{number}-{}", std::process::id(), placement.name);
            let subject =
                WireSubject::start(&name, &placement, &|| Arc::new(ShmFabric::new().unwrap()));
            let subject = subject.unwrap_or_else(|error| panic!("{}: {error}", litmus.name));
            let seen = run_free(litmus, &subject, &placement, number as u64, rounds());
            let seen = seen.unwrap_or_else(|stuck| panic!("{stuck}"));
            let report = LitmusReport::new(litmus, "wire", MemoryModel::Pso, &seen);
            report.holds().unwrap_or_else(|text| panic!("{} {text}", placement.name));
            direct_reads += subject.direct_reads();
        }
    }
    assert!(direct_reads > 0, "some sessions read directly");
}

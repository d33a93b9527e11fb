//! How a log record gets into the persistent memory of another machine, by what is known of it.

use farside::durable::remote::{Known, RemoteHint, RemotePlanner, RemoteWrite, TargetFacts};
use farside::{Error, fabrics};

fn main() -> Result<(), Error> {
    let capabilities = fabrics::shared_memory()?.capabilities();
    // From `farside doctor` at the target; what is left out stays unknown.
    let facts = TargetFacts { caches_persist: Known::Yes, ..TargetFacts::optane() };
    let mut planner = RemotePlanner::new(capabilities, facts);
    let plan = planner.plan(&RemoteWrite::log(0, 100))?;
    assert!(plan.explain().contains("WRITE and READ; one doorbell")); // a line for each hint follows
    assert_eq!(planner.applied(RemoteHint::H9), 1); // one doorbell, one round trip
    Ok(())
}

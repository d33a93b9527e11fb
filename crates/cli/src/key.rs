//! `farside key`: the secret key that the hosts of a cluster share.

use farside_bootstrap::ClusterKey;
use farside_command::failure::Failure;
use farside_command::output::Output;
use serde_json::json;
use std::path::Path;

/// Writes a new key to a file.
pub(crate) fn create(path: &Path, output: Output) -> Result<(), Failure> {
    let failed = |e| Failure::system(format!("{e}"));
    let file = path.display().to_string();
    let key = ClusterKey::generate().map_err(failed)?;
    key.save(path).map_err(failed)?;
    let fingerprint = key.fingerprint();
    output.value(&json!({ "file": file, "fingerprint": fingerprint }));
    output.line(format!("{file}: fingerprint {fingerprint}"));
    output.line("copy it to every host of the cluster, readable only by its owner");
    Ok(())
}

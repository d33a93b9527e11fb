//! `farside key`: the secret key that the hosts of a cluster share.

use crate::arguments::Key;
use crate::failure::Failure;
use crate::output::Output;
use farside_bootstrap::ClusterKey;
use serde_json::json;

pub(crate) fn run(which: &Key, output: Output) -> Result<(), Failure> {
    let failed = |e| Failure::system(format!("{e}"));
    match which {
        Key::New(arguments) => {
            let file = arguments.file.display().to_string();
            let key = ClusterKey::generate().map_err(failed)?;
            key.save(&arguments.file).map_err(failed)?;
            let fingerprint = key.fingerprint();
            output.value(&json!({ "file": file, "fingerprint": fingerprint }));
            output.line(format!("{file}: fingerprint {fingerprint}"));
            output.line("copy it to every host of the cluster, readable only by its owner");
            Ok(())
        }
    }
}

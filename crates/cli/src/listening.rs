//! What a server checks before it listens.

use farside_bootstrap::Address;
use farside_command::failure::Failure;
use farside_command::settings::FabricSettings;
use farside_launcher::agent::is_loopback;

/// Refuses to lend memory to other hosts without a key, unless `--insecure` is given. `at` is a name on this machine, or
/// `HOST:PORT`, optionally with `/NAME`.
pub(crate) fn check_security(
    at: &str,
    choice: &FabricSettings,
    insecure: bool,
) -> Result<(), Failure> {
    let whole = at.split_once('/').map_or(at, |(host, _)| host);
    let beyond = format!("{whole}/any").parse::<Address>();
    let beyond = beyond.is_ok_and(|address| !is_loopback(&address.endpoint));
    if beyond && choice.key.is_none() && !insecure {
        return Err(Failure::usage(format!(
            "without a key every process that can reach {at} could read and write the lent memory: create \
             one with `farside key new cluster.key`, copy it to every host and give --key cluster.key. \
             On a private network, --insecure allows serving without a key"
        )));
    }
    Ok(())
}

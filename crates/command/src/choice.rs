//! Selects and opens the fabric of a command from its arguments, and the sockets of this machine. A new fabric is added here only.

use crate::fabrics;
use crate::failure::Failure;
use crate::settings::{CongestionName, FabricKind, FabricSettings, HostFabric, Protection, Rdma};
use farside::fabrics::{FabricOptions, OpenFabric, Scheme};
use farside::topology::Topology;
use farside_bootstrap::{Address, Admission, ClusterKey, Endpoint, Identity, Protect, Security};
use farside_fabric::Fabric;
use std::path::Path;
use std::sync::Arc;

/// Default name of an executor of calls, if an address gives only its host.
pub const EXECUTOR: &str = "rmc";

/// An open fabric, and the address to listen at or to connect to.
pub struct Chosen {
    /// The open fabric.
    pub fabric: Arc<dyn Fabric>,
    /// The name to listen at, or the full address to connect to.
    pub address: String,
    /// Description of the protection.
    pub security: String,
}

/// Opens a fabric that listens at `at`: a name on this machine, or `HOST:PORT`, optionally with `/NAME`; the default
/// is `name`.
pub fn listener(arguments: &FabricSettings, at: &str, name: &str) -> Result<Chosen, Failure> {
    let server = ServerAddress::parse(arguments, at, name)?;
    let address = match &server {
        ServerAddress::Machine(name) => name.clone(),
        ServerAddress::Host(address) => address.name.clone(),
    };
    let listen = |address: Address| Some(address.endpoint);
    let (fabric, security) = server.open_fabric(arguments, listen)?;
    Ok(Chosen { fabric, address, security })
}

/// Opens a fabric to connect to `to`, which has the format of `at` in [`listener`].
pub fn caller(arguments: &FabricSettings, to: &str, name: &str) -> Result<Chosen, Failure> {
    let server = ServerAddress::parse(arguments, to, name)?;
    let address = match &server {
        ServerAddress::Machine(name) => name.clone(),
        ServerAddress::Host(address) => address.to_string(),
    };
    let (fabric, security) = server.open_fabric(arguments, |_| None)?;
    Ok(Chosen { fabric, address, security })
}

/// Returns the sockets of this machine that a text gives, or those of the system.
///
/// # Errors
/// Usage for a text that names no processors of this machine; those of [`Topology::of_system`].
pub fn topology(text: Option<&str>) -> Result<Topology, Failure> {
    match text {
        Some(text) => text.parse().map_err(|error: farside::Error| Failure::usage(error.detail)),
        None => Ok(Topology::of_system()?),
    }
}

/// Returns the full address of `to`, a server on the same fabric as the one at `at`.
pub fn address_to_call(
    arguments: &FabricSettings,
    to: &str,
    name: &str,
    at: &str,
) -> Result<String, Failure> {
    let to_server = ServerAddress::parse(arguments, to, name)?;
    let at_server = ServerAddress::parse(arguments, at, name)?;
    match (to_server, at_server) {
        (ServerAddress::Machine(name), ServerAddress::Machine(_)) => Ok(name),
        (ServerAddress::Host(address), ServerAddress::Host(_)) => Ok(address.to_string()),
        _ => Err(Failure::usage(format!(
            "`{to}` and `{at}` are on different fabrics: give two names on this machine, or two \
             HOST:PORT"
        ))),
    }
}

/// Address of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ServerAddress {
    /// A name on this machine.
    Machine(String),
    /// An address at a host.
    Host(Address),
}

impl ServerAddress {
    fn parse(arguments: &FabricSettings, text: &str, name: &str) -> Result<Self, Failure> {
        let kind = arguments.fabric.unwrap_or(match text.contains(':') {
            true => FabricKind::Tcp,
            false => FabricKind::Shm,
        });
        match kind {
            FabricKind::Shm if text.contains(['/', ':']) => {
                Err(Failure::usage(format!("`{text}`: over shm, give a name without host")))
            }
            FabricKind::Shm => Ok(Self::Machine(text.to_owned())),
            FabricKind::Tcp | FabricKind::Verbs => {
                let full =
                    if text.contains('/') { text.to_owned() } else { format!("{text}/{name}") };
                let address = full.parse().map_err(|e| Failure::usage(format!("{text}: {e}")))?;
                Ok(Self::Host(address))
            }
        }
    }

    fn open_fabric(
        self,
        arguments: &FabricSettings,
        listen: impl FnOnce(Address) -> Option<Endpoint>,
    ) -> Result<(Arc<dyn Fabric>, String), Failure> {
        arguments.rdma.check(arguments.fabric == Some(FabricKind::Verbs))?;
        let over_tcp = matches!(self, Self::Host(_)) && arguments.fabric != Some(FabricKind::Verbs);
        let congestion = CongestionName::of(arguments.congestion, over_tcp)?;
        match self {
            Self::Machine(_) if arguments.key.is_some() || arguments.protect.is_some() => {
                let text = "--key and --protect are for fabrics between machines: shm connects only \
                            processes of one machine and user";
                Err(Failure::usage(text))
            }
            Self::Machine(_) => Ok((fabrics::shm()?, "one machine and user".to_owned())),
            Self::Host(address) => {
                let (scheme, plain) = match over_tcp {
                    true => (Scheme::Tcp, ""),
                    false => (Scheme::Verbs, "; data packets are plain text"),
                };
                let security = security(arguments)?;
                let options = FabricOptions::new(scheme)
                    .listen(listen(address))
                    .security(security.clone())
                    .congestion(congestion);
                let OpenFabric { fabric, admission, .. } =
                    arguments.rdma.apply(options).open().map_err(|error| {
                        let name = scheme.name();
                        Failure::system(format!("{name} fabric: {}", error.detail))
                    })?;
                let words = security_words(&security, admission.as_ref());
                Ok((fabric, format!("{words}{plain}")))
            }
        }
    }
}

/// Describes what is protected and which peers may connect.
pub fn security_words(security: &Security, admission: Option<&Admission>) -> String {
    let words = security.describe();
    match admission.and_then(Admission::describe) {
        Some(peers) => format!("{words}, {peers}"),
        None => words,
    }
}

/// Returns the security configuration for a fabric between hosts, from a key file and the protection.
pub fn host_security(
    fabric: HostFabric,
    key: Option<&Path>,
    protect: Option<Protection>,
) -> Result<Security, Failure> {
    let fabric = Some(match fabric {
        HostFabric::Tcp => FabricKind::Tcp,
        HostFabric::Verbs => FabricKind::Verbs,
    });
    let (key, rdma) = (key.map(Path::to_owned), Rdma::default());
    security(&FabricSettings { fabric, key, protect, rdma, congestion: None })
}

/// Returns the security configuration. A key without `--protect` protects everything that the fabric can protect.
fn security(arguments: &FabricSettings) -> Result<Security, Failure> {
    let failed = |e| Failure::system(format!("{e}"));
    let over_verbs = arguments.fabric == Some(FabricKind::Verbs);
    let protect = match (arguments.key.is_some(), arguments.protect) {
        (_, Some(Protection::Handshake)) => Protect::Handshake,
        (true, None) if over_verbs => Protect::Handshake,
        (_, Some(Protection::Everything)) | (true, None) => Protect::Everything,
        (_, Some(Protection::Nothing)) | (false, None) => Protect::Nothing,
    };
    match &arguments.key {
        None if protect == Protect::Nothing => Ok(Security::open()),
        None => Err(Failure::usage("--protect needs --key FILE (see farside key new)")),
        Some(_) if protect == Protect::Nothing => {
            Err(Failure::usage("--key with --protect nothing: leave out one of them"))
        }
        Some(file) => {
            let key = ClusterKey::load(file).map_err(failed)?;
            let identity = Identity::cluster_key(&key).map_err(failed)?;
            Security::new(identity, protect).map_err(failed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RdmaOption;

    fn arguments(fabric: Option<FabricKind>) -> FabricSettings {
        let (key, protect, rdma) = (None, None, Rdma::default());
        FabricSettings { fabric, key, protect, rdma, congestion: None }
    }

    #[test]
    fn address_is_parsed_by_fabric() {
        let parse = |fabric, text| ServerAddress::parse(&arguments(fabric), text, "bench");
        assert_eq!(parse(None, "lab"), Ok(ServerAddress::Machine("lab".to_owned())));
        for text in ["10.0.0.1:7000", "10.0.0.1:7000/bench"] {
            let expected = ServerAddress::Host("10.0.0.1:7000/bench".parse().unwrap());
            assert_eq!(parse(None, text), Ok(expected.clone()));
            assert_eq!(parse(Some(FabricKind::Tcp), text), Ok(expected.clone()));
            assert_eq!(parse(Some(FabricKind::Verbs), text), Ok(expected));
            assert!(parse(Some(FabricKind::Shm), text).is_err());
        }
        assert!(parse(Some(FabricKind::Tcp), "lab").is_err());
        assert!(parse(Some(FabricKind::Verbs), "lab").is_err());
        assert!(parse(None, "10.0.0.1:many").is_err());
    }

    #[test]
    fn protection_without_key_is_refused() {
        let with = |protect| FabricSettings { protect, ..arguments(None) };
        assert!(
            security(&with(None)).is_ok() && security(&with(Some(Protection::Nothing))).is_ok()
        );
        let refused = security(&with(Some(Protection::Everything)));
        assert!(matches!(refused, Err(Failure::Usage { .. })));
        let machine = ServerAddress::Machine("lab".to_owned());
        assert!(machine.open_fabric(&with(Some(Protection::Nothing)), |_| None).is_err());
    }

    #[test]
    fn rdma_options_without_verbs_are_refused() {
        for fabric in [None, Some(FabricKind::Tcp)] {
            let device = Some("mlx5_0".parse().unwrap());
            for rdma in [
                Rdma { device, ..Rdma::default() },
                Rdma { rdma: vec![RdmaOption::OnDemandPaging], ..Rdma::default() },
            ] {
                let arguments = FabricSettings { rdma, ..arguments(fabric) };
                let server = ServerAddress::parse(&arguments, "127.0.0.1:0", "bench").unwrap();
                let refused = server.open_fabric(&arguments, |_| None);
                assert!(matches!(refused, Err(Failure::Usage { .. })));
            }
        }
    }

    #[test]
    fn congestion_option_without_tcp_is_refused() {
        let asked = Some(CongestionName::System);
        for (fabric, address, accepted) in [
            (None, "127.0.0.1:0", true),
            (Some(FabricKind::Tcp), "127.0.0.1:0", true),
            (Some(FabricKind::Verbs), "127.0.0.1:0", false),
            (None, "lab", false),
        ] {
            let arguments = FabricSettings { congestion: asked, ..arguments(fabric) };
            let server = ServerAddress::parse(&arguments, address, "bench").unwrap();
            let opened = server.open_fabric(&arguments, |_| None);
            assert_eq!(opened.is_ok(), accepted, "{fabric:?} {address}");
            assert!(accepted || matches!(opened, Err(Failure::Usage { .. })));
        }
    }

    #[test]
    fn verbs_key_protects_handshakes() {
        let file = std::env::temp_dir().join(format!("farside-choice-{}", std::process::id()));
        std::fs::write(&file, format!("{}\n", "5e".repeat(32))).unwrap();
        let mut permissions = std::fs::metadata(&file).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
        std::fs::set_permissions(&file, permissions).unwrap();
        let with = |fabric| FabricSettings { key: Some(file.clone()), ..arguments(Some(fabric)) };
        let protect = |fabric| security(&with(fabric)).map(|security| security.protect());
        assert_eq!(protect(FabricKind::Tcp), Ok(Protect::Everything));
        assert_eq!(protect(FabricKind::Verbs), Ok(Protect::Handshake));
        std::fs::remove_file(&file).unwrap();
    }
}

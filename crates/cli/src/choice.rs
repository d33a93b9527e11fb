//! The fabric that a command goes over, as it was asked for: the one place to add another.

use crate::arguments::{CongestionName, FabricArguments, FabricKind, HostFabric, Protection};
use crate::fabrics;
use crate::failure::Failure;
use crate::rdma::Rdma;
use farside::fabrics::{FabricOptions, OpenFabric, Scheme};
use farside_bootstrap::{Address, Admission, ClusterKey, Endpoint, Identity, Protect, Security};
use farside_fabric::Fabric;
use std::path::Path;
use std::sync::Arc;

/// A fabric, and what to listen at or to call.
pub(crate) struct Chosen {
    pub(crate) fabric: Arc<dyn Fabric>,
    /// The name to listen at, or the full address to call.
    pub(crate) address: String,
    /// What is protected, in words.
    pub(crate) security: String,
}

/// A fabric that listens at `at`: a name on this machine, or `HOST:PORT`, perhaps with `/NAME`, where
/// `name` is the usual one.
pub(crate) fn listener(
    arguments: &FabricArguments,
    at: &str,
    name: &str,
) -> Result<Chosen, Failure> {
    let place = Place::read(arguments, at, name)?;
    let address = match &place {
        Place::Machine(name) => name.clone(),
        Place::Host(address) => address.name.clone(),
    };
    let listen = |address: Address| Some(address.endpoint);
    let (fabric, security) = place.fabric(arguments, listen)?;
    Ok(Chosen { fabric, address, security })
}

/// A fabric to call `to` over, which is read as above.
pub(crate) fn caller(arguments: &FabricArguments, to: &str, name: &str) -> Result<Chosen, Failure> {
    let place = Place::read(arguments, to, name)?;
    let address = match &place {
        Place::Machine(name) => name.clone(),
        Place::Host(address) => address.to_string(),
    };
    let (fabric, security) = place.fabric(arguments, |_| None)?;
    Ok(Chosen { fabric, address, security })
}

/// The full address of another end, to be called over the fabric of the end at `at`.
pub(crate) fn address_to_call(
    arguments: &FabricArguments,
    to: &str,
    name: &str,
    at: &str,
) -> Result<String, Failure> {
    let (there, here) = (Place::read(arguments, to, name)?, Place::read(arguments, at, name)?);
    match (there, here) {
        (Place::Machine(name), Place::Machine(_)) => Ok(name),
        (Place::Host(address), Place::Host(_)) => Ok(address.to_string()),
        _ => Err(Failure::usage(format!(
            "`{to}` and `{at}` are of different fabrics: an end has one, so both are names of this \
             machine or both HOST:PORT"
        ))),
    }
}

/// Where the serving end is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// On this machine, by name.
    Machine(String),
    /// At a host.
    Host(Address),
}

impl Place {
    fn read(arguments: &FabricArguments, text: &str, name: &str) -> Result<Self, Failure> {
        let kind = arguments.fabric.unwrap_or(match text.contains(':') {
            true => FabricKind::Tcp,
            false => FabricKind::Shm,
        });
        match kind {
            FabricKind::Shm if text.contains(['/', ':']) => {
                Err(Failure::usage(format!("`{text}`: over shm an end has a name without host")))
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

    fn fabric(
        self,
        arguments: &FabricArguments,
        listen: impl FnOnce(Address) -> Option<Endpoint>,
    ) -> Result<(Arc<dyn Fabric>, String), Failure> {
        arguments.rdma.check(arguments.fabric == Some(FabricKind::Verbs))?;
        let over_tcp = matches!(self, Self::Host(_)) && arguments.fabric != Some(FabricKind::Verbs);
        let congestion = CongestionName::of(arguments.congestion, over_tcp)?;
        match self {
            Self::Machine(_) if arguments.key.is_some() || arguments.protect.is_some() => {
                let text = "--key and --protect are for fabrics between machines: shm reaches \
                            processes of one machine and user alone";
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

/// What is protected and who may connect, in words.
pub(crate) fn security_words(security: &Security, admission: Option<&Admission>) -> String {
    let words = security.describe();
    match admission.and_then(Admission::describe) {
        Some(who) => format!("{words}, {who}"),
        None => words,
    }
}

/// The same by a key file and what is to be protected.
pub(crate) fn host_security(
    fabric: HostFabric,
    key: Option<&Path>,
    protect: Option<Protection>,
) -> Result<Security, Failure> {
    let fabric = Some(match fabric {
        HostFabric::Tcp => FabricKind::Tcp,
        HostFabric::Verbs => FabricKind::Verbs,
    });
    let (key, rdma) = (key.map(Path::to_owned), Rdma::default());
    security(&FabricArguments { fabric, key, protect, rdma, congestion: None })
}

/// Who is trusted and what is protected. A key without another word protects all that the fabric can.
fn security(arguments: &FabricArguments) -> Result<Security, Failure> {
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
            Err(Failure::usage("a key that protects nothing: leave out --key or --protect"))
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
    use crate::rdma::RdmaOption;

    fn arguments(fabric: Option<FabricKind>) -> FabricArguments {
        let (key, protect, rdma) = (None, None, Rdma::default());
        FabricArguments { fabric, key, protect, rdma, congestion: None }
    }

    #[test]
    fn places_are_read_by_fabric() {
        let read = |fabric, text| Place::read(&arguments(fabric), text, "bench");
        assert_eq!(read(None, "lab"), Ok(Place::Machine("lab".to_owned())));
        for text in ["10.0.0.1:7000", "10.0.0.1:7000/bench"] {
            let expected = Place::Host("10.0.0.1:7000/bench".parse().unwrap());
            assert_eq!(read(None, text), Ok(expected.clone()));
            assert_eq!(read(Some(FabricKind::Tcp), text), Ok(expected.clone()));
            assert_eq!(read(Some(FabricKind::Verbs), text), Ok(expected));
            assert!(read(Some(FabricKind::Shm), text).is_err());
        }
        assert!(read(Some(FabricKind::Tcp), "lab").is_err());
        assert!(read(Some(FabricKind::Verbs), "lab").is_err());
        assert!(read(None, "10.0.0.1:many").is_err());
    }

    #[test]
    fn a_key_and_what_it_protects_go_together() {
        let with = |protect| FabricArguments { protect, ..arguments(None) };
        assert!(
            security(&with(None)).is_ok() && security(&with(Some(Protection::Nothing))).is_ok()
        );
        let refused = security(&with(Some(Protection::Everything)));
        assert!(matches!(refused, Err(Failure::Usage { .. })));
        let machine = Place::Machine("lab".to_owned());
        assert!(machine.fabric(&with(Some(Protection::Nothing)), |_| None).is_err());
    }

    #[test]
    fn a_device_and_its_options_are_for_verbs_alone() {
        for fabric in [None, Some(FabricKind::Tcp)] {
            let device = Some("mlx5_0".parse().unwrap());
            for rdma in [
                Rdma { device, ..Rdma::default() },
                Rdma { rdma: vec![RdmaOption::OnDemandPaging], ..Rdma::default() },
            ] {
                let arguments = FabricArguments { rdma, ..arguments(fabric) };
                let place = Place::read(&arguments, "127.0.0.1:0", "bench").unwrap();
                let refused = place.fabric(&arguments, |_| None);
                assert!(matches!(refused, Err(Failure::Usage { .. })));
            }
        }
    }

    #[test]
    fn congestion_is_controlled_over_tcp_alone() {
        let asked = Some(CongestionName::System);
        for (fabric, place, taken) in [
            (None, "127.0.0.1:0", true),
            (Some(FabricKind::Tcp), "127.0.0.1:0", true),
            (Some(FabricKind::Verbs), "127.0.0.1:0", false),
            (None, "lab", false),
        ] {
            let arguments = FabricArguments { congestion: asked, ..arguments(fabric) };
            let opened = Place::read(&arguments, place, "bench").unwrap();
            let opened = opened.fabric(&arguments, |_| None);
            assert_eq!(opened.is_ok(), taken, "{fabric:?} {place}");
            assert!(taken || matches!(opened, Err(Failure::Usage { .. })));
        }
    }

    #[test]
    fn over_verbs_a_key_protects_handshakes() {
        let file = std::env::temp_dir().join(format!("farside-choice-{}", std::process::id()));
        std::fs::write(&file, format!("{}\n", "5e".repeat(32))).unwrap();
        let mut permissions = std::fs::metadata(&file).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
        std::fs::set_permissions(&file, permissions).unwrap();
        let with = |fabric| FabricArguments { key: Some(file.clone()), ..arguments(Some(fabric)) };
        let protect = |fabric| security(&with(fabric)).map(|security| security.protect());
        assert_eq!(protect(FabricKind::Tcp), Ok(Protect::Everything));
        assert_eq!(protect(FabricKind::Verbs), Ok(Protect::Handshake));
        std::fs::remove_file(&file).unwrap();
    }
}

//! The settings of a node: merged from flags and a file, and checked.

use crate::agent::is_loopback;
use crate::choice;
use crate::failure::Failure;
use crate::input_file;
use crate::settings::{CongestionName, HostFabric, Node, NodeSettings, Protection, Rdma};
use farside::fabrics::FabricOptions;
use farside::{Config, ErrorCode, LineSize};
use farside_bootstrap::{Endpoint, HostAddress};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The checked settings of a node.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) options: FabricOptions,
    /// Whether it founds the cluster at its start if there is none.
    pub(super) founds: bool,
    /// Whether it founds without the answers of other hosts.
    pub(super) founds_alone: bool,
    pub(super) rejoins: bool,
    /// The lease in the settings, if any.
    pub(super) lease: Option<Duration>,
}

impl Plan {
    /// Reads the settings of the command line and its file.
    pub(super) fn of(arguments: &Node) -> Result<Self, Failure> {
        let file = arguments.config.as_deref().map(load).transpose()?.unwrap_or_default();
        Self::with(arguments.settings.clone().or(file))
    }

    /// Returns whether a host of `--join` is this node, which others reach at `address`.
    pub(super) fn is_own(&self, host: &Endpoint, address: SocketAddr) -> bool {
        let own = [&self.options.listen, &self.options.advertise].into_iter().flatten();
        own.chain([&Endpoint::from(address)]).any(|own| own == host)
    }

    fn with(settings: NodeSettings) -> Result<Self, Failure> {
        let Some(listen) = settings.listen.clone() else {
            return Err(Failure::usage(
                "the address of this node is missing: give --listen HOST:PORT, or listen = \"HOST:PORT\" in the \
                 file of --config",
            ));
        };
        let insecure = settings.insecure.unwrap_or(false);
        check_security(&settings, &listen, insecure)?;
        if is_everywhere(&listen) && settings.advertise.is_none() {
            return Err(Failure::usage(format!(
                "{listen} means every address of this host: give the one that others connect to by --advertise \
                 HOST:PORT"
            )));
        }
        let fabric = settings.fabric.unwrap_or(HostFabric::Tcp);
        let rdma = Rdma { device: settings.device.clone(), rdma: settings.rdma.clone() };
        rdma.check(fabric == HostFabric::Verbs)?;
        let over_tcp = fabric == HostFabric::Tcp;
        let congestion = CongestionName::of(settings.congestion, over_tcp)?;
        let usual = FabricOptions::new(fabric.scheme());
        // One half to detect the silence, one half to reconnect.
        let lease =
            settings.lease.map_or(usual.lease, |lease| Duration::from_secs_f64(lease / 2.0));
        let security = choice::host_security(fabric, settings.key.as_deref(), settings.protect)?;
        let options = usual
            .listen(Some(listen))
            .advertise(settings.advertise.clone())
            .hosts(settings.join.clone())
            .security(security)
            .lease(lease)
            .congestion(congestion);
        let options = rdma.apply(options);
        let founds_alone = settings.found_alone.unwrap_or(false);
        let founds = founds_alone || settings.found.unwrap_or(settings.join.is_empty());
        if !founds && settings.join.is_empty() {
            return Err(Failure::usage(
                "this node can neither found nor join a cluster: give --found or --join HOST:PORT",
            ));
        }
        let rejoins = settings.rejoin.unwrap_or(true);
        let asked = settings.lease.map(|_| lease * 2);
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let config = config(&settings)?.lease_ns(lease_ns);
        config.check()?;
        Ok(Self { config, options, founds, founds_alone, rejoins, lease: asked })
    }
}

/// Refuses settings without authentication unless `--insecure` is given.
fn check_security(
    settings: &NodeSettings,
    listen: &Endpoint,
    insecure: bool,
) -> Result<(), Failure> {
    let open = settings.key.is_none() || settings.protect == Some(Protection::Nothing);
    if open && !insecure && !is_loopback(listen) {
        return Err(Failure::usage(format!(
            "without a key every process that reaches {listen} could read and write all memory: create one with \
             `farside key new cluster.key`, copy it to every host and give --key cluster.key. On a private \
             network, --insecure runs without a key"
        )));
    }
    Ok(())
}

/// Returns whether an endpoint means all addresses of a host.
fn is_everywhere(listen: &Endpoint) -> bool {
    matches!(&listen.host, HostAddress::Ip(number) if number.is_unspecified())
}

fn config(settings: &NodeSettings) -> Result<Config, Failure> {
    let mut config = Config::new(settings.cluster.as_deref().unwrap_or("farside"));
    config.memory_bytes = settings.memory_bytes.unwrap_or(config.memory_bytes);
    config.cache_bytes = settings.cache_bytes.unwrap_or(config.cache_bytes);
    config.limits.nodes_max = settings.nodes_max.unwrap_or(config.limits.nodes_max);
    if let Some(bytes) = settings.line_bytes {
        let line = usize::try_from(bytes).ok().and_then(LineSize::from_bytes);
        config.line_size =
            line.ok_or_else(|| Failure::from(farside::Error::new(ErrorCode::BadLineSize)))?;
    }
    Ok(config)
}

/// Reads a settings file.
fn load(path: &Path) -> Result<NodeSettings, Failure> {
    let text = input_file::read_text(path)?;
    let mut settings =
        parse(&text).map_err(|reason| Failure::usage(format!("{}: {reason}", path.display())))?;
    // Relative to the file, which can so be moved together with the key.
    if let (Some(key), Some(folder)) = (settings.key.as_mut(), path.parent()) {
        *key = folder.join(&*key);
    }
    Ok(settings)
}

/// Parses settings; an error has the line and the name.
fn parse(text: &str) -> Result<NodeSettings, String> {
    toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    const ALL: &str = "\
listen = \"10.0.0.2:7400\"
advertise = \"node2.example:7400\"
join = [\"10.0.0.1:7400\", \"[fd00::3]:7400\"]
cluster = \"lab\"
memory_bytes = \"4G\"
cache_bytes = 1048576
line_bytes = 1024
nodes_max = 16
key = \"cluster.key\"
protect = \"handshake\"
fabric = \"verbs\"
device = \"mlx5_0:1\"
rdma = [\"connection-manager\", \"on-demand-paging\"]
congestion = \"system\"
lease = 2
rejoin = false
found = true
found_alone = false
insecure = false
";

    fn flags(line: &str) -> NodeSettings {
        let line = format!("farside node {line}");
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Node(arguments) => Node::from(arguments).settings,
            other => unreachable!("the command is node, not {other:?}"),
        }
    }

    #[test]
    fn file_and_flags_are_equivalent() {
        let flags = flags(
            "--listen 10.0.0.2:7400 --advertise node2.example:7400 --join \
             10.0.0.1:7400,[fd00::3]:7400 --cluster lab --memory-bytes 4G --cache-bytes 1M \
             --line-bytes 1024 --nodes-max 16 --key cluster.key --protect handshake \
             --fabric verbs --lease 2 \
             --device mlx5_0:1 --rdma connection-manager,on-demand-paging --congestion system \
             --rejoin=false --found --found-alone=false --insecure=false",
        );
        assert_eq!(parse(ALL), Ok(flags));
        assert_eq!(parse(""), Ok(NodeSettings::default()));
    }

    #[test]
    fn flags_override_the_file() {
        let both = flags("--join 10.0.0.9:1 --cluster other --rejoin").or(parse(ALL).unwrap());
        let file = parse(ALL).unwrap();
        assert_eq!(both.join, ["10.0.0.9:1".parse().unwrap()]);
        assert_eq!((both.cluster.as_deref(), both.rejoin), (Some("other"), Some(true)));
        assert_eq!((both.listen, both.lease), (file.listen, Some(2.0)));
    }

    #[test]
    fn errors_of_the_file_name_their_line() {
        for (line, says) in [
            ("colour = 1", &["line 20", "unknown field `colour`", "`memory_bytes`"][..]),
            ("lease = 0", &["line 20", "0.01 to 3600"]),
            ("join = \"10.0.0.1:7400\"", &["line 20", "join"]),
            ("listen = ", &["line 20"]),
        ] {
            let text = if line.starts_with("colour") || line.ends_with(' ') {
                format!("{ALL}{line}\n")
            } else {
                let name = line.split(' ').next().unwrap();
                let rest = ALL.lines().filter(|one| !one.starts_with(name));
                let rest: Vec<_> = rest.chain(["", line]).collect();
                rest.join("\n")
            };
            let refused = parse(&text).unwrap_err();
            assert!(says.iter().all(|part| refused.contains(part)), "{line}: {refused}");
        }
        for line in ["memory_bytes = -1", "memory_bytes = \"much\"", "listen = \"10.0.0.1\""] {
            let refused = parse(line).unwrap_err();
            assert!(refused.contains("line 1"), "{line}: {refused}");
        }
    }

    #[test]
    fn insecure_settings_need_a_flag() {
        let plan = |line: &str| Plan::with(flags(line));
        let everywhere = "--listen 0.0.0.0:7 --advertise alpha:7";
        assert!(
            plan("--listen [::]:7 --insecure").unwrap_err().to_string().contains("--advertise")
        );
        for line in [everywhere, "--listen 10.0.0.1:7", "--listen alpha:7"] {
            let refused = plan(line).unwrap_err().to_string();
            assert!(refused.contains("farside key new"), "{refused}");
            assert!(plan(&format!("{line} --insecure")).is_ok());
        }
        assert!(plan("--listen 127.0.0.1:0").is_ok());
        assert!(plan("--cluster a").unwrap_err().to_string().contains("--listen"));
        assert!(plan("--listen 127.0.0.1:0 --found=false").is_err());
        let refused = plan("--listen 127.0.0.1:0 --nodes-max 257").unwrap_err().to_string();
        assert!(refused.contains("limits.nodes_max: 1 to 256"), "{refused}");
    }

    #[test]
    fn joining_node_founds_only_with_found() {
        let founds = |line: &str| Plan::with(flags(line)).unwrap().founds;
        assert!(founds("--listen 127.0.0.1:0"));
        assert!(!founds("--listen 127.0.0.1:0 --join 127.0.0.1:1"));
        assert!(founds("--listen 127.0.0.1:0 --join 127.0.0.1:1 --found"));
        let lease = Plan::with(flags("--listen 127.0.0.1:0 --lease 20")).unwrap().options;
        assert_eq!(lease.lease, Duration::from_secs(10));
        assert!(lease.open().is_ok());
    }
}

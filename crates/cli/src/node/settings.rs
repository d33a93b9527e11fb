//! What a node is told, checked and put together from flags and a file.

use crate::agent::is_loopback;
use crate::arguments::{CongestionName, HostFabric, Node, NodeSettings, Protection};
use crate::choice;
use crate::failure::Failure;
use crate::input_file;
use crate::rdma::Rdma;
use farside::{Config, ErrorCode, LineSize};
use farside_bootstrap::{Endpoint, HostAddress};
use farside_fabric_tcp::TcpOptions;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// How a node is to be.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) fabric: HostFabric,
    pub(super) rdma: Rdma,
    /// Of either fabric what it has.
    pub(super) options: TcpOptions,
    /// Whether it founds the cluster at its start, should there be none.
    pub(super) founds: bool,
    /// Whether it does so although other hosts have not answered.
    pub(super) founds_alone: bool,
    pub(super) rejoins: bool,
    /// The lease that the settings name.
    pub(super) lease: Option<Duration>,
}

impl Plan {
    /// From the command line, and its file.
    pub(super) fn of(arguments: &Node) -> Result<Self, Failure> {
        let file = arguments.config.as_deref().map(load).transpose()?.unwrap_or_default();
        Self::with(arguments.settings.clone().or(file))
    }

    /// Whether a host of `--join` is this node, which is reached at `address`.
    pub(super) fn is_own(&self, host: &Endpoint, address: SocketAddr) -> bool {
        let own = [&self.options.listen, &self.options.advertise].into_iter().flatten();
        own.chain([&Endpoint::from(address)]).any(|own| own == host)
    }

    fn with(settings: NodeSettings) -> Result<Self, Failure> {
        let Some(listen) = settings.listen.clone() else {
            return Err(Failure::usage(
                "where is this node reached? Name it: --listen HOST:PORT, or listen = \"HOST:PORT\" in \
                 the file of --config",
            ));
        };
        let insecure = settings.insecure.unwrap_or(false);
        check_security(&settings, &listen, insecure)?;
        if is_everywhere(&listen) && settings.advertise.is_none() {
            return Err(Failure::usage(format!(
                "{listen} is every address of this host: say by --advertise HOST:PORT which one others call"
            )));
        }
        let fabric = settings.fabric.unwrap_or(HostFabric::Tcp);
        let rdma = Rdma { device: settings.device.clone(), rdma: settings.rdma.clone() };
        rdma.check(fabric == HostFabric::Verbs)?;
        let over_tcp = fabric == HostFabric::Tcp;
        let congestion = CongestionName::of(settings.congestion, over_tcp)?;
        let usual = TcpOptions::default();
        // Half of it to notice the silence, half to try for a new link.
        let lease =
            settings.lease.map_or(usual.lease, |lease| Duration::from_secs_f64(lease / 2.0));
        let options = TcpOptions {
            listen: Some(listen),
            advertise: settings.advertise.clone(),
            hosts: settings.join.clone(),
            security: choice::host_security(fabric, settings.key.as_deref(), settings.protect)?,
            lease,
            request_timeout: usual.request_timeout.max(lease),
            congestion,
            ..usual
        };
        let founds_alone = settings.found_alone.unwrap_or(false);
        let founds = founds_alone || settings.found.unwrap_or(settings.join.is_empty());
        if !founds && settings.join.is_empty() {
            return Err(Failure::usage("neither to found the cluster nor where to join it"));
        }
        let rejoins = settings.rejoin.unwrap_or(true);
        let asked = settings.lease.map(|_| lease * 2);
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let config = Config { lease_ns, ..config(&settings)? };
        config.check()?;
        Ok(Self { config, fabric, rdma, options, founds, founds_alone, rejoins, lease: asked })
    }
}

/// Refuses what would let anybody in without that being said.
fn check_security(
    settings: &NodeSettings,
    listen: &Endpoint,
    insecure: bool,
) -> Result<(), Failure> {
    let open = settings.key.is_none() || settings.protect == Some(Protection::Nothing);
    if open && !insecure && !is_loopback(listen) {
        return Err(Failure::usage(format!(
            "without a key anybody who reaches {listen} could read and write all memory: make one by \
             `farside key new cluster.key`, copy it to every host and say --key cluster.key. On a network \
             that nobody else is on, --insecure does without"
        )));
    }
    Ok(())
}

/// Whether it stands for all addresses of a host.
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

/// Reads a file of settings.
fn load(path: &Path) -> Result<NodeSettings, Failure> {
    let text = input_file::read_text(path)?;
    let mut settings =
        parse(&text).map_err(|reason| Failure::usage(format!("{}: {reason}", path.display())))?;
    // A file is moved together with what it names.
    if let (Some(key), Some(folder)) = (settings.key.as_mut(), path.parent()) {
        *key = folder.join(&*key);
    }
    Ok(settings)
}

/// Reads settings; an error tells line and name.
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
            Command::Node(arguments) => arguments.settings,
            other => unreachable!("the line says node, not {other:?}"),
        }
    }

    #[test]
    fn a_file_says_what_flags_say() {
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
    fn flags_win() {
        let both = flags("--join 10.0.0.9:1 --cluster other --rejoin").or(parse(ALL).unwrap());
        let file = parse(ALL).unwrap();
        assert_eq!(both.join, ["10.0.0.9:1".parse().unwrap()]);
        assert_eq!((both.cluster.as_deref(), both.rejoin), (Some("other"), Some(true)));
        assert_eq!((both.listen, both.lease), (file.listen, Some(2.0)));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
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
    fn nobody_is_let_in_by_mistake() {
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
    fn who_joins_does_not_found_unless_told() {
        let founds = |line: &str| Plan::with(flags(line)).unwrap().founds;
        assert!(founds("--listen 127.0.0.1:0"));
        assert!(!founds("--listen 127.0.0.1:0 --join 127.0.0.1:1"));
        assert!(founds("--listen 127.0.0.1:0 --join 127.0.0.1:1 --found"));
        let lease = Plan::with(flags("--listen 127.0.0.1:0 --lease 20")).unwrap().options;
        assert!(lease.request_timeout >= lease.lease);
    }
}

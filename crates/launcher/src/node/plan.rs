//! The settings of a node: merged from flags and a file, and checked.

use crate::agent::is_loopback;
use crate::node::settings::{Node, NodeSettings};
use farside::fabrics::FabricOptions;
use farside::{Config, DrainTarget, ErrorCode, LineSize};
use farside_bootstrap::{Endpoint, HostAddress};
use farside_command::choice;
use farside_command::failure::Failure;
use farside_command::input_file;
use farside_command::settings::{CongestionName, HostFabric, Protection, Rdma};
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
    /// Whether it waits while another process uses its state.
    pub(super) standby: bool,
    /// Where it saves its memory when it is asked to leave.
    pub(super) drain: Option<DrainTarget>,
    /// The lease in the settings, if any.
    pub(super) lease: Option<Duration>,
}

impl Plan {
    /// Reads the settings of the command line and its file.
    pub(super) fn of(arguments: &Node) -> Result<Self, Failure> {
        let file = arguments.config.as_deref().map(load).transpose()?.unwrap_or_default();
        let settings = arguments.settings.clone().or(file);
        if arguments.witness {
            return Self::of_witness(settings);
        }
        Self::with(settings)
    }

    /// Returns whether a host of `--join` is this node, which others reach at `address`.
    pub(super) fn is_own(&self, host: &Endpoint, address: SocketAddr) -> bool {
        let own = [&self.options.listen, &self.options.advertise].into_iter().flatten();
        own.chain([&Endpoint::from(address)]).any(|own| own == host)
    }

    /// A witness lends no memory and never founds a cluster: it votes in that of its hosts.
    fn of_witness(settings: NodeSettings) -> Result<Self, Failure> {
        let lends = settings.memory_bytes.is_some_and(|bytes| bytes > 0);
        if lends || settings.state.is_some() || !settings.state_copies.is_empty() {
            return Err(Failure::usage(
                "a witness holds no data: leave out memory_bytes, state and state_copies, or start farside node",
            ));
        }
        let without_meaning = [
            ("cache_bytes", settings.cache_bytes.is_some()),
            ("line_bytes", settings.line_bytes.is_some()),
            ("nodes_max", settings.nodes_max.is_some()),
            ("state_copies_min", settings.state_copies_min.is_some()),
            ("persistent_memory", settings.persistent_memory == Some(true)),
            ("standby", settings.standby == Some(true)),
            ("drain_to", settings.drain_to.is_some()),
            ("drain_to_copies", !settings.drain_to_copies.is_empty()),
        ];
        if let Some((name, _)) = without_meaning.iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!(
                "{name} has no meaning for a witness: leave it out"
            )));
        }
        let founds = [settings.found, settings.found_alone].contains(&Some(true));
        if founds || settings.join.is_empty() {
            return Err(Failure::usage(
                "a witness joins a cluster and founds none: give --join with the hosts of the nodes, and neither found \
                 nor found_alone",
            ));
        }
        let plan = Self::with(NodeSettings { memory_bytes: Some(0), ..settings })?;
        let config = plan.config.witness(true);
        config.check()?;
        Ok(Self { config, ..plan })
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
        let standby = settings.standby.unwrap_or(false);
        let has_state = settings.state.is_some() || !settings.state_copies.is_empty();
        if standby && (founds || !has_state) {
            return Err(Failure::usage(
                "a standby takes over the state of a member: give --join HOST:PORT and --state or --state-copies, and not \
                 --found or --found-alone",
            ));
        }
        let drain = drain(&settings, has_state)?;
        let rejoins = settings.rejoin.unwrap_or(true);
        let asked = settings.lease.map(|_| lease * 2);
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let config = config(&settings)?.lease_ns(lease_ns);
        config.check()?;
        Ok(Self { config, options, founds, founds_alone, rejoins, standby, drain, lease: asked })
    }
}

/// Returns where the node saves its memory when it leaves.
fn drain(settings: &NodeSettings, has_state: bool) -> Result<Option<DrainTarget>, Failure> {
    let target = match (&settings.drain_to, &settings.drain_to_copies[..]) {
        (None, []) => return Ok(None),
        (Some(folder), []) => {
            let is_used = std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
            if is_used {
                return Err(Failure::usage(format!(
                    "the folder {} of drain_to is not empty: if a node has saved its memory there, start it with \
                     --state; else name another folder",
                    folder.display()
                )));
            }
            DrainTarget::Folder(folder.clone())
        }
        (None, copies) => DrainTarget::Copies(copies.to_vec()),
        (Some(_), _) => {
            return Err(Failure::usage("drain_to and drain_to_copies are given: leave one out"));
        }
    };
    if has_state {
        return Err(Failure::usage(
            "a node with state keeps its memory there when it leaves: leave out drain_to and drain_to_copies",
        ));
    }
    if settings.memory_bytes == Some(0) {
        return Err(Failure::usage(
            "drain_to and drain_to_copies save memory, and this node lends none: leave them out",
        ));
    }
    Ok(Some(target))
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
    config.state.clone_from(&settings.state);
    config.persistent_memory = settings.persistent_memory.unwrap_or_default();
    config.state_copies.clone_from(&settings.state_copies);
    config.state_copies_min = settings.state_copies_min.map(usize::from);
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
    let mut settings = NodeSettings::parse(&text)
        .map_err(|reason| Failure::usage(format!("{}: {reason}", path.display())))?;
    // Relative to the file, which can so be moved together with them.
    if let Some(folder) = path.parent() {
        let names = [&mut settings.key, &mut settings.state, &mut settings.drain_to];
        for name in names.into_iter().flatten() {
            *name = folder.join(&*name);
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Returns the settings of lines of a file, separated by semicolons.
    fn settings(lines: &str) -> NodeSettings {
        NodeSettings::parse(&lines.replace("; ", "\n")).unwrap()
    }

    #[test]
    fn insecure_settings_need_a_flag() {
        let plan = |lines: &str| Plan::with(settings(lines));
        let everywhere = "listen = '0.0.0.0:7'; advertise = 'alpha:7'";
        let refused = plan("listen = '[::]:7'; insecure = true").unwrap_err();
        assert!(refused.to_string().contains("--advertise"));
        for lines in [everywhere, "listen = '10.0.0.1:7'", "listen = 'alpha:7'"] {
            let refused = plan(lines).unwrap_err().to_string();
            assert!(refused.contains("farside key new"), "{refused}");
            assert!(plan(&format!("{lines}; insecure = true")).is_ok());
        }
        assert!(plan("listen = '127.0.0.1:0'").is_ok());
        assert!(plan("cluster = 'a'").unwrap_err().to_string().contains("--listen"));
        assert!(plan("listen = '127.0.0.1:0'; found = false").is_err());
        let refused = plan("listen = '127.0.0.1:0'; nodes_max = 257").unwrap_err().to_string();
        assert!(refused.contains("limits.nodes_max: 1 to 256"), "{refused}");
    }

    #[test]
    fn witness_joins_and_holds_no_data() {
        let plan = |lines: &str| {
            let joins = format!("listen = '127.0.0.1:0'; join = ['127.0.0.1:1']; {lines}");
            Plan::of_witness(settings(&joins))
        };
        let witness = plan("cluster = 'lab'; lease = 3").unwrap();
        assert!(witness.config.witness && witness.rejoins && !witness.founds);
        assert_eq!((witness.config.memory_bytes, witness.lease), (0, Some(Duration::from_secs(3))));
        for data in ["memory_bytes = '1M'", "state = 'folder'", "state_copies = ['127.0.0.1:1/a']"]
        {
            let refused = plan(data).unwrap_err().to_string();
            assert!(refused.contains("holds no data"), "{refused}");
        }
        for without_meaning in ["cache_bytes = '1M'", "nodes_max = 4", "standby = true"] {
            let refused = plan(without_meaning).unwrap_err().to_string();
            assert!(refused.contains("no meaning for a witness"), "{refused}");
        }
        let alone = Plan::of_witness(settings("listen = '127.0.0.1:0'")).unwrap_err();
        for refused in
            [alone, plan("found = true").unwrap_err(), plan("found_alone = true").unwrap_err()]
        {
            assert!(refused.to_string().contains("--join"), "{refused}");
        }
    }

    #[test]
    fn joining_node_founds_only_with_found() {
        let plan = |lines: &str| {
            Plan::with(settings(&format!("listen = '127.0.0.1:0'; {lines}"))).unwrap()
        };
        assert!(plan("").founds);
        assert!(!plan("join = ['127.0.0.1:1']").founds);
        assert!(plan("join = ['127.0.0.1:1']; found = true").founds);
        let lease = plan("lease = 20").options;
        assert_eq!(lease.lease, Duration::from_secs(10));
        assert!(lease.open().is_ok());
    }
}

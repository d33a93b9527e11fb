//! Arguments of commands that use several hosts.

use super::values::named;
use clap::Args;
use farside_bootstrap::Endpoint;
use farside_command::settings::{CongestionName, DeviceName, HostFabric, Protection, RdmaOption};
use farside_command::units::{bytes, seconds};
use farside_launcher::agent::Agent;
use farside_launcher::node::settings::{Node, NodeSettings};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside key new cluster.key                                        once; copy it to every host
  farside node --listen 10.0.0.1:7400 --key cluster.key              the first host
  farside node --listen 10.0.0.2:7400 --join 10.0.0.1:7400 --key cluster.key
  farside node --listen 10.0.0.3:7400 --join 10.0.0.1:7400 --key cluster.key --state /var/lib/farside
  farside node --config node.toml                                    the same from a file:
      listen = \"10.0.0.2:7400\"
      join = [\"10.0.0.1:7400\", \"10.0.0.3:7400\"]
      key = \"cluster.key\"                       relative to the folder of node.toml
      memory_bytes = \"4G\"

Without --join the node founds a new cluster at every start. For a founder that joins an existing cluster after a
restart, give --found and --join with the other hosts. A node can join at any member; name several, since one may
be down. A node that finds no cluster waits for one. A founder with --join founds the cluster after each of these
hosts has answered that it has none, as a waiting node does; with --found-alone it does not wait for answers. With
--json there is one object per line for each event: waiting, started, member_joined, member_lost, isolated,
not_joined, other_cluster, ended, each with its `time` (RFC 3339, UTC). Events that are not read in time are
dropped and counted by the next one (`dropped`). If two clusters of one name meet, their nodes report it
(other_cluster); the clusters never merge.

Without a key, every process that can reach the address of a node can read and write all memory. With a key, TCP
connections use TLS 1.3: `--protect everything`, the default, covers the data too; `--protect handshake` covers
only authentication and memory keys. Data packets of RDMA fabrics are always plain text: use a separate network.

Over verbs, --rdma takes several options, separated by commas; in a file: rdma = [\"connection-manager\"].
All nodes must use the same way to connect.")]
pub(crate) struct NodeArguments {
    #[command(flatten)]
    settings: NodeSettingsArguments,
    /// Read settings from a TOML file: the names of the flags, with underscores; flags take precedence
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
}

/// How a member reaches the others, from flags: those of a node and of a witness.
#[derive(Args, Debug)]
struct LinkArguments {
    /// Address to listen at; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<Endpoint>,
    /// Address that other members connect to, if it differs: with address translation, or with --listen 0.0.0.0
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<Endpoint>,
    /// Members to join at, tried in this order
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<Endpoint>,
    /// The cluster's name [default: farside]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// What TLS 1.3 protects; by default everything if there is a key, otherwise nothing
    #[arg(long, value_parser = named::<Protection>())]
    protect: Option<Protection>,
    /// Fabric, the same for all members [default: tcp]
    #[arg(long, value_parser = named::<HostFabric>())]
    fabric: Option<HostFabric>,
    /// Device for verbs, with its port and GID index; omitted parts are chosen automatically
    #[arg(long, value_name = "DEVICE[:PORT[:GID]]")]
    device: Option<DeviceName>,
    /// Options for verbs
    #[arg(long, value_name = "OPTION", value_delimiter = ',', value_parser = named::<RdmaOption>())]
    rdma: Vec<RdmaOption>,
    /// Congestion control of the kernel for tcp [default: unpaced]
    #[arg(long, value_name = "CONTROL", value_parser = named::<CongestionName>())]
    congestion: Option<CongestionName>,
    /// A member that is unreachable for longer is removed; the founder's setting applies to all [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    lease: Option<f64>,
    /// Whether to join again, as a new member, after this one was isolated from its cluster [default: true]
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    rejoin: Option<bool>,
    /// Run without a key: every process that can reach the address can connect. Only use it on a private network
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    insecure: Option<bool>,
}

/// The settings of a node, from flags.
#[derive(Args, Debug)]
pub(crate) struct NodeSettingsArguments {
    #[command(flatten)]
    links: LinkArguments,
    /// Global memory of this node [default: 256M]
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    memory_bytes: Option<u64>,
    /// Keep this node's memory in this folder: it survives the process, and its addresses stay valid when a node is
    /// started with the folder again
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The folder of --state is on persistent memory, in a file system mounted with -o dax: commits are stores
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    persistent_memory: Option<bool>,
    /// Keep this node's memory in memory that other processes lend with `farside lend --exclusive`, and in files of this
    /// machine (file:PATH), a copy in each
    #[arg(long, value_name = "HOST:PORT/NAME", value_delimiter = ',', conflicts_with = "state")]
    state_copies: Vec<String>,
    /// Least number of these copies to start with, and if more than half, to continue with when others are lost [default: all that the state had]
    #[arg(long, value_name = "COUNT", requires = "state_copies")]
    state_copies_min: Option<u8>,
    /// Wait while another process uses the state, and take its place when that has ended
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    standby: Option<bool>,
    /// When it is asked to leave (Ctrl-C), save this node's memory to this folder first: a node that is started with
    /// --state DIR takes its place, with its number and memory. If that fails, it stays until it is asked again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["state", "state_copies"])]
    drain_to: Option<PathBuf>,
    /// The same, to memory that other processes lend, and to files (file:PATH): a node with --state-copies takes its place
    #[arg(long, value_name = "HOST:PORT/NAME", value_delimiter = ',', conflicts_with_all = ["state", "state_copies", "drain_to"])]
    drain_to_copies: Vec<String>,
    /// Cache of this node [default: 64M]
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    cache_bytes: Option<u64>,
    /// Line size of allocations that specify none, 64 to 65536 [default: 512]
    #[arg(long, value_name = "BYTES")]
    line_bytes: Option<u32>,
    /// Maximum number of members, 1 to 256; the founder's setting applies [default: 128]
    #[arg(long, value_name = "COUNT")]
    nodes_max: Option<u16>,
    /// Found the cluster after each host of --join has answered that it has none. The same settings then serve
    /// for every start
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    found: Option<bool>,
    /// Found the cluster even if hosts of --join do not answer. Only use it if none of them can be in this
    /// cluster: otherwise there will be two of one name
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    found_alone: Option<bool>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside agent --listen 0.0.0.0:7401 --key cluster.key              on each host
  farside demo --on 10.0.0.1:7401,10.0.0.2:7401,10.0.0.3:7401 --key cluster.key
  farside agent --listen 127.0.0.1:7401 --insecure                   to try it out on one machine

An agent starts `farside worker` processes of its own program for commands on other hosts, and nothing else.
Workers access no files, and end with their command. Every holder of the key can use this host's memory and
processors through the agent. With a key, connections between commands and agents use TLS 1.3; --protect of the
command applies to the traffic between nodes.")]
pub(crate) struct AgentArguments {
    /// Address of the agent; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: Endpoint,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Maximum number of workers
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers_max: u16,
    /// Run without a key on a loopback address, for commands of this user only
    #[arg(long)]
    insecure: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside node --listen 10.0.0.1:7400 --join 10.0.0.2:7400,10.0.0.3:7400 --found --key cluster.key
  farside node --listen 10.0.0.2:7400 --join 10.0.0.1:7400,10.0.0.3:7400 --key cluster.key
  farside witness --listen 10.0.0.3:7400 --join 10.0.0.1:7400,10.0.0.2:7400 --key cluster.key
  farside witness --config witness.toml              the same from a file, with the names of the flags

Of two nodes only the one that joined first survives when the other cannot be reached: the later one cannot know
which of the two was cut off. A witness on a third host has a vote too: either node with the witness continues
without the other, and both nodes continue without the witness. It lends no memory, has no cache, runs no programs
and sleeps. Put it on a host that fails independently of the nodes, with its own links to both; a switch that all
three share takes all with it.

A witness founds no cluster: it waits until one of the hosts of --join is a member, and joins again after it was
removed or isolated (--rejoin=false ends it instead). Alone it never removes a node that may be alive. Start it after
the nodes, and again after they have been restarted one by one: the member that joined first decides when its own link
to another breaks. With --json there is one object per line for each event, as for farside node; `started` has
`witness`: true. Exit code 0 after Ctrl-C or SIGTERM, which make it leave.")]
pub(crate) struct WitnessArguments {
    #[command(flatten)]
    links: LinkArguments,
    /// Read settings from a TOML file: the names of the flags, with underscores; flags take precedence
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
}

impl From<NodeArguments> for Node {
    fn from(NodeArguments { settings, config }: NodeArguments) -> Self {
        Self { settings: settings.into(), config, witness: false }
    }
}

impl From<WitnessArguments> for Node {
    fn from(WitnessArguments { links, config }: WitnessArguments) -> Self {
        Self { settings: links.into(), config, witness: true }
    }
}

impl From<LinkArguments> for NodeSettings {
    fn from(links: LinkArguments) -> Self {
        Self {
            listen: links.listen,
            advertise: links.advertise,
            join: links.join,
            cluster: links.cluster,
            key: links.key,
            protect: links.protect,
            fabric: links.fabric,
            device: links.device,
            rdma: links.rdma,
            congestion: links.congestion,
            lease: links.lease,
            rejoin: links.rejoin,
            insecure: links.insecure,
            ..Self::default()
        }
    }
}

impl From<NodeSettingsArguments> for NodeSettings {
    fn from(arguments: NodeSettingsArguments) -> Self {
        Self {
            memory_bytes: arguments.memory_bytes,
            state: arguments.state,
            persistent_memory: arguments.persistent_memory,
            state_copies: arguments.state_copies,
            state_copies_min: arguments.state_copies_min,
            standby: arguments.standby,
            drain_to: arguments.drain_to,
            drain_to_copies: arguments.drain_to_copies,
            cache_bytes: arguments.cache_bytes,
            line_bytes: arguments.line_bytes,
            nodes_max: arguments.nodes_max,
            found: arguments.found,
            found_alone: arguments.found_alone,
            ..arguments.links.into()
        }
    }
}

convert! {
    AgentArguments => Agent { listen, key, workers_max, insecure }
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
persistent_memory = false
standby = false
drain_to = \"saved\"
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
             --persistent-memory=false --standby=false --drain-to saved --rejoin=false --found --found-alone=false --insecure=false",
        );
        assert_eq!(NodeSettings::parse(ALL), Ok(flags));
        assert_eq!(NodeSettings::parse(""), Ok(NodeSettings::default()));
    }

    #[test]
    fn witness_has_the_settings_of_its_links_alone() {
        let parsed = |line: &str| {
            let line = format!("farside witness {line}");
            Arguments::try_parse_from(line.split(' ')).map(|arguments| match arguments.command {
                Command::Witness(arguments) => Node::from(arguments),
                other => unreachable!("the command is witness, not {other:?}"),
            })
        };
        let own = "--listen 10.0.0.3:7400 --join 10.0.0.1:7400,10.0.0.2:7400 --cluster lab --key cluster.key";
        let witness = parsed(own).unwrap();
        assert!(witness.witness);
        assert_eq!(witness.settings, flags(own));
        for line in
            ["--memory-bytes 1M", "--state folder", "--found", "--found-alone", "--cache-bytes 4M"]
        {
            assert!(parsed(&format!("{own} {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_override_the_file() {
        let file = NodeSettings::parse(ALL).unwrap();
        let both = flags("--join 10.0.0.9:1 --cluster other --rejoin").or(file.clone());
        assert_eq!(both.join, ["10.0.0.9:1".parse().unwrap()]);
        assert_eq!((both.cluster.as_deref(), both.rejoin), (Some("other"), Some(true)));
        assert_eq!((both.listen, both.lease), (file.listen, Some(2.0)));
    }

    #[test]
    fn errors_of_the_file_name_their_line() {
        for (line, says) in [
            ("colour = 1", &["line 23", "unknown field `colour`", "`memory_bytes`"][..]),
            ("lease = 0", &["line 23", "0.01 to 3600"]),
            ("join = \"10.0.0.1:7400\"", &["line 23", "join"]),
            ("listen = ", &["line 23"]),
        ] {
            let text = if line.starts_with("colour") || line.ends_with(' ') {
                format!("{ALL}{line}\n")
            } else {
                let name = line.split(' ').next().unwrap();
                let rest = ALL.lines().filter(|one| !one.starts_with(name));
                let rest: Vec<_> = rest.chain(["", line]).collect();
                rest.join("\n")
            };
            let refused = NodeSettings::parse(&text).unwrap_err();
            assert!(says.iter().all(|part| refused.contains(part)), "{line}: {refused}");
        }
        for line in ["memory_bytes = -1", "memory_bytes = \"much\"", "listen = \"10.0.0.1\""] {
            let refused = NodeSettings::parse(line).unwrap_err();
            assert!(refused.contains("line 1"), "{line}: {refused}");
        }
    }
}

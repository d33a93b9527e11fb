//! Arguments of all commands that use a fabric.

use super::values::named;
use clap::Args;
use farside_bootstrap::Endpoint;
use farside_command::settings::{
    CongestionName, DeviceName, FabricKind, FabricSettings, Places, Protection, Rdma, RdmaOption,
    WorkerFabric,
};
use std::path::PathBuf;

/// The fabric and its protection.
#[derive(Args, Debug)]
pub(crate) struct FabricArguments {
    /// Fabric; by default tcp if an address has a port, otherwise shm
    #[arg(long, value_parser = named::<FabricKind>())]
    fabric: Option<FabricKind>,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// What TLS 1.3 protects; by default everything if there is a key (over verbs the handshake, since
    /// adapters send data in plain text), otherwise nothing
    #[arg(long, value_parser = named::<Protection>())]
    protect: Option<Protection>,
    #[command(flatten)]
    rdma: RdmaArguments,
    /// Congestion control of the kernel for tcp [default: unpaced]
    #[arg(long, value_name = "CONTROL", value_parser = named::<CongestionName>())]
    congestion: Option<CongestionName>,
}

/// The hosts of a command's node processes, and the fabric between them.
#[derive(Args, Debug)]
pub(crate) struct PlacesArguments {
    /// Fabric between nodes; by default tcp with --on, otherwise shm
    #[arg(long, value_parser = named::<WorkerFabric>())]
    fabric: Option<WorkerFabric>,
    /// Distribute the processes round-robin over these agents (see farside agent)
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    on: Vec<Endpoint>,
    /// Applied on each host.
    #[command(flatten)]
    rdma: RdmaArguments,
    /// The file with the cluster's key, for several hosts (see farside key new)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// What TLS 1.3 protects of the traffic between nodes; by default everything if there is a key
    #[arg(long, value_parser = named::<Protection>())]
    protect: Option<Protection>,
}

/// The device of the verbs fabric and its use.
#[derive(Args, Debug)]
pub(crate) struct RdmaArguments {
    /// Over verbs, the device, its port and GID index; omitted parts are chosen automatically
    #[arg(long, value_name = "DEVICE[:PORT[:GID]]")]
    device: Option<DeviceName>,
    /// Over verbs, further options
    #[arg(long, value_name = "OPTION", value_delimiter = ',', value_parser = named::<RdmaOption>())]
    rdma: Vec<RdmaOption>,
}

convert! {
    FabricArguments => FabricSettings { fabric, key, protect, rdma, congestion }
    PlacesArguments => Places { fabric, on, rdma, key, protect }
    RdmaArguments => Rdma { device, rdma }
}

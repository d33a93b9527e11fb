//! Validated settings of commands, as plain types.
//!
//! The command line converts into them, and every command takes only them, so that nothing below the command line
//! knows how options are written.

mod bench;
mod cluster;
mod fabric;
mod node;
mod rmc;
pub(crate) mod units;

pub(crate) use bench::{
    BenchChannels, BenchFabric, BenchRmc, BenchYcsb, DeviceWordsName, Effort, Measure, Pattern,
    ProfileName, TRANSFER_BYTES_MAX, Test,
};
pub(crate) use cluster::{
    Agent, ChannelAdvice, Demo, Doctor, FabricName, RunProgram, Up, Wordcount,
};
pub(crate) use fabric::{
    CongestionName, DeviceName, FabricKind, FabricSettings, HostFabric, LaunchFabric, Places,
    Protection, Rdma, RdmaOption, WorkerFabric,
};
pub(crate) use node::{Node, NodeSettings};
pub(crate) use rmc::{
    CallerSettings, EngineName, Lend, LendFrom, MemberSettings, Memory, OnlyFor, Parameters,
    PlaceName, PlaceSettings, ProgramCall, RmcBuild, RmcCall, RmcCheck, RmcListen, RmcRegister,
    RmcRun, RmcServe, Tenant, word,
};

//! Validated settings of the commands of this crate, as plain types.
//!
//! The command line converts into them and those of the other crates, and every command takes only them, so that
//! nothing below the command line knows how options are written.

mod commands;
mod rmc;

pub(crate) use commands::{
    ChannelAdvice, FabricName, LendMemory, LogAppend, LogMode, LogPlace, LogTail, Wordcount,
};
pub(crate) use rmc::{
    CallerSettings, EngineName, Lend, LendFrom, MemberSettings, Memory, OnlyFor, Parameters,
    PlaceName, PlaceSettings, ProgramCall, RmcBuild, RmcCall, RmcCheck, RmcListen, RmcRegister,
    RmcRun, RmcServe, Tenant, word,
};

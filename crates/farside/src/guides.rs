//! The programs of the README and of the guides: `cargo test --doc` compiles them, and runs the README's.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/guides/channels.md")]
struct Channels;

#[doc = include_str!("../../../docs/guides/clusters-that-restart.md")]
struct ClustersThatRestart;

#[doc = include_str!("../../../docs/guides/durable-log.md")]
struct DurableLog;

#[doc = include_str!("../../../docs/guides/failures.md")]
struct Failures;

#[doc = include_str!("../../../docs/guides/memory-of-other-machines.md")]
struct MemoryOfOtherMachines;

#[doc = include_str!("../../../docs/guides/one-machine.md")]
struct OneMachine;

#[doc = include_str!("../../../docs/guides/remote-memory-calls.md")]
struct RemoteMemoryCalls;

#[doc = include_str!("../../../docs/guides/several-hosts.md")]
struct SeveralHosts;

#[doc = include_str!("../../../docs/guides/working-together.md")]
struct WorkingTogether;

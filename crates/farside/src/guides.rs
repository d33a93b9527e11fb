//! The programs of the guides, compiled with the tests of the documents.

#[doc = include_str!("../../../docs/guides/channels.md")]
struct Channels;

#[doc = include_str!("../../../docs/guides/failures.md")]
struct Failures;

#[doc = include_str!("../../../docs/guides/one-machine.md")]
struct OneMachine;

#[doc = include_str!("../../../docs/guides/remote-memory-calls.md")]
struct RemoteMemoryCalls;

#[doc = include_str!("../../../docs/guides/several-hosts.md")]
struct SeveralHosts;

//! The only module that calls C: libibverbs, loaded at run time, behind types that own the objects that
//! they name.
//!
//! `types` are C's structures, `library` its functions; `device`, `completion`, `queue_pair`,
//! `adapter_memory` and `window` own objects, each of which keeps what it was created from, so that
//! objects are destroyed in the order that C requires. `rdma_cm` is librdmacm, which not every device
//! needs. `pages` is memory for large regions.
//!
//! Not used: a C compiler, headers or generated code in the build. Functions that are not needed are
//! not declared.

mod adapter_memory;
mod completion;
mod device;
#[cfg(test)]
mod layout_tests;
mod library;
mod memory_region;
mod pages;
mod queue_pair;
mod rdma_cm;
pub(crate) mod types;
mod window;

pub(crate) use adapter_memory::AdapterMemory;
pub(crate) use completion::{Channel, CompletionQueue, SharedReceiveQueue, Slice, WorkCompletion};
pub(crate) use device::{AsyncEvent, Context, ListedDevice, ProtectionDomain, list};
pub use library::LIBRARY;
pub(crate) use library::{Library, NoLibrary};
pub(crate) use memory_region::{Backing, MemoryRegion};
pub use pages::map_device;
pub(crate) use pages::{HUGE_PAGE_BYTES, anonymous};
pub(crate) use queue_pair::{
    LocalBytes, OwnEnd, QueuePair, QueuePairHandle, QueuePairShape, Route, Verb, WorkRequest,
};
pub use rdma_cm::CONNECTION_MANAGER;
pub(crate) use rdma_cm::{EventChannel, Id, ManagerEvent, ManagerLibrary, Terms, own_addresses};
pub(crate) use window::MemoryWindow;

//! Persistent memory (NVM) behind the memory controller of a socket: a pure model in virtual time, after Wei et al.,
//! *Characterizing and Optimizing Remote Persistent Memory with RDMA and NVM*, USENIX ATC 2021 (paper 002), §2.1.
//!
//! | part | behaviour |
//! | --- | --- |
//! | socket | interleaves its DIMMs by 4 KiB (002 §4.1, H2) |
//! | write queue | each DIMM takes a bounded number of 64-byte writes; a full queue stalls the writer, whatever DIMM its next line is on |
//! | controller | serves requests of 64 bytes in order; changing between reads and writes takes time, so reads compete with writes (002 §4.2) |
//! | combining buffer | holds the last used media lines, of reads and of writes; a line of which all 64-byte parts are written goes to the media at once, others when they are replaced |
//! | media | lines of 256 bytes; a line that was written in part and not read is read first (read-modify-write) |
//! | adapter, DDIO on | WRITEs go to the last-level cache, which later evicts lines of 64 bytes in random order (002 Figure 12a) |
//! | adapter, DDIO off | WRITEs go to the DIMMs in order |
//! | part of a 64-byte line | is read before it is written, by adapters (002 Figure 12b) and processors |
//! | plain store | reads the line from the NVM first, then as with DDIO on, in the whole cache (002 §4.2, H7) |
//! | non-temporal store | goes to the DIMMs in order |
//! | other socket | each request occupies the interconnect (002 §4.1, H1) |
//! | persistent domain | DIMMs and their queues; with [`NvmProfile::caches_persist`] the caches too (002 §5) |
//!
//! Not modelled: wear levelling, thermal limits, directory updates of reads from the other socket.

mod cache;
mod dimm;
mod profile;
mod socket;

#[cfg(test)]
mod tests;

pub use profile::{NVM_LINE_BYTES, NvmCounters, NvmProfile};
pub use socket::{NvmAccess, NvmSocket, NvmWriteTimes, NvmWriter};

//! A region that calls may access.

use farside_base::{Access, LinkId, RemoteRegionId};
use farside_fabric::Arena;

/// Where the bytes of a region are.
#[derive(Clone, Debug)]
pub(crate) enum RegionSite {
    /// Local: this processor loads and stores them.
    Local(Arena),
    /// Remote: accessed by READ and WRITE work requests.
    Remote(LinkId, RemoteRegionId),
    /// They were remote, over a link that was lost.
    Lost,
}

/// A region and its access rights for calls, as for one-sided requests.
#[derive(Clone, Debug)]
pub(crate) struct LentRegion {
    pub(crate) site: RegionSite,
    pub(crate) bytes: u64,
    pub(crate) access: Access,
}

//! Lending of memory regions to calls.

use super::CallServer;
use crate::call::memory::lent_region::{LentRegion, RegionSite};
use crate::registered::control;
use crate::{Error, ErrorCode};
use farside_base::RegionKind;
use farside_fabric::{Arena, FabricError, Region};
use std::collections::BTreeSet;

impl CallServer {
    /// Lends a region of this fabric to calls of all tenants under a number, with the access that it grants to
    /// peers.
    pub fn lend(&mut self, number: u8, region: &Region) {
        self.lend_among(number, region, None);
    }

    /// Lends a region to calls of these tenants only. Other tenants see no region of this number and receive no key
    /// of it.
    ///
    /// # Errors
    /// `BadConfiguration` for a tenant missing in [`ServerOptions::tenants`](crate::call::ServerOptions::tenants).
    pub fn lend_to(&mut self, number: u8, region: &Region, tenants: &[&str]) -> Result<(), Error> {
        let unknown = tenants.iter().find(|name| !self.options.tenants.contains_key(**name));
        if let Some(name) = unknown {
            let text =
                format!("tenant `{name}` has no quota: name it in ServerOptions::tenants first");
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let tenants = tenants.iter().map(|name| self.tenant(name)).collect();
        self.lend_among(number, region, Some(tenants));
        Ok(())
    }

    fn lend_among(&mut self, number: u8, region: &Region, tenants: Option<BTreeSet<usize>>) {
        let site = RegionSite::Local(region.arena.clone());
        let lent = LentRegion { site, bytes: region.token.bytes, access: region.token.access };
        self.executor.resources.memory.lend(number, lent, tenants);
        self.lent.insert(number, region.clone());
    }

    /// Revokes a region: no call accesses it once this returns. Peers that access it by one-sided requests may do
    /// so until the region is deregistered.
    pub fn take_back(&mut self, number: u8) -> Option<Region> {
        self.executor.resources.memory.take_back(number);
        self.lent.remove(number)
    }

    /// Registers memory of this fabric and lends it. The region has exactly the bytes asked for, even if the fabric
    /// rounds up.
    ///
    /// # Errors
    /// As `Fabric::register`.
    pub fn make_region(
        &mut self,
        number: u8,
        bytes: u64,
        access: farside_base::Access,
    ) -> Result<Arena, Error> {
        let spec = farside_fabric::RegionSpec { bytes, access, kind: RegionKind::Memory };
        let registered = self.links.messages.fabric().register(&spec);
        let mut region = registered.map_err(|error| self.no_region(number, bytes, &error))?;
        // A fabric may round up; calls must not reach the bytes that were not asked for.
        if let Ok(asked) = region.arena.part(0, bytes as usize) {
            (region.arena, region.token.bytes) = (asked, bytes);
        }
        self.lend(number, &region);
        Ok(region.arena)
    }

    /// Returns the error for a region that could not be registered: what was asked, and the fabric's limit if that
    /// was exceeded.
    fn no_region(&self, number: u8, bytes: u64, error: &FabricError) -> Error {
        let most = self.links.messages.fabric().capabilities().region_bytes_max;
        let limit = if bytes > most { format!(" of {most} B") } else { String::new() };
        let error = control(error);
        Error { detail: format!("region {number} of {bytes} B: {}{limit}", error.detail), ..error }
    }
}

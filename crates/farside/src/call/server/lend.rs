//! Memory that calls may reach.

use super::CallServer;
use crate::call::memory::{Lent, Place};
use crate::registered::control;
use crate::{Error, ErrorCode};
use farside_base::RegionKind;
use farside_fabric::{Arena, FabricError, Region};
use std::collections::BTreeSet;

impl CallServer {
    /// Lets calls of all tenants reach a region of this fabric under a number, as its access allows peers to.
    pub fn lend(&mut self, number: u8, region: &Region) {
        self.lend_among(number, region, None);
    }

    /// The same for calls of these tenants alone: for everybody else there is no region of this number, and no
    /// key of it is told.
    ///
    /// # Errors
    /// `BadConfiguration` for a tenant that [`ServerOptions::tenants`](crate::call::ServerOptions::tenants) does not name.
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
        let place = Place::Here(region.arena.clone());
        let lent = Lent { place, bytes: region.token.bytes, access: region.token.access };
        self.executor.memory.lend(number, lent, tenants);
        self.lent.insert(number, region.clone());
    }

    /// Takes a region back: calls reach it no more when this returns. Those that reach it by one-sided
    /// requests do so until the region is deregistered.
    pub fn take_back(&mut self, number: u8) -> Option<Region> {
        self.executor.memory.take_back(number);
        self.lent.remove(&number)
    }

    /// Registers memory of this fabric and lends it: a region made for calls, of as many bytes as asked
    /// also where the fabric rounds up.
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
        let registered = self.fabric.register(&spec);
        let mut region = registered.map_err(|error| self.no_region(number, bytes, &error))?;
        // A fabric may round up; what nobody asked for, no call shall find.
        if let Ok(asked) = region.arena.part(0, bytes as usize) {
            (region.arena, region.token.bytes) = (asked, bytes);
        }
        self.lend(number, &region);
        Ok(region.arena)
    }

    /// Why there is no such region: what was asked, and what there may be where that was more.
    fn no_region(&self, number: u8, bytes: u64, error: &FabricError) -> Error {
        let most = self.fabric.capabilities().region_bytes_max;
        let limit = if bytes > most { format!(" of {most} B") } else { String::new() };
        let error = control(error);
        Error { detail: format!("region {number} of {bytes} B: {}{limit}", error.detail), ..error }
    }
}

//! Imported regions: the tokens of peers' regions, by link and number.

use farside_base::{LinkId, RegionToken, RemoteRegionId};
use farside_fabric::FabricError;
use std::collections::HashMap;

/// Imported regions of all links of a port.
#[derive(Default)]
pub(crate) struct Imports {
    entries: Vec<Option<(LinkId, RegionToken)>>,
    free: Vec<u32>,
    known: HashMap<(LinkId, RegionToken), RemoteRegionId>,
    counts: HashMap<LinkId, usize>,
}

impl Imports {
    /// Returns the token that a request names. Numbers of closed links are reused for other links.
    #[inline]
    pub(crate) fn find(&self, link: LinkId, region: RemoteRegionId) -> Option<RegionToken> {
        let (of, token) = (*self.entries.get(region.0 as usize)?)?;
        (of == link).then_some(token)
    }

    /// Returns the number of a token on a link, a new one if it has none.
    pub(crate) fn import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
        most: usize,
    ) -> Result<RemoteRegionId, FabricError> {
        if let Some(known) = self.known.get(&(link, *token)) {
            return Ok(*known);
        }
        let count = self.counts.entry(link).or_default();
        if *count >= most {
            return Err(FabricError::Limit("imports_max"));
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.entries.push(None);
                u32::try_from(self.entries.len() - 1).map_err(|_| FabricError::Limit("imports"))?
            }
        };
        *count += 1;
        self.entries[number as usize] = Some((link, *token));
        self.known.insert((link, *token), RemoteRegionId(number));
        Ok(RemoteRegionId(number))
    }

    /// Forgets the imports of a closed link.
    pub(crate) fn forget(&mut self, link: LinkId) {
        if self.counts.remove(&link).is_none() {
            return;
        }
        self.known.retain(|(of, _), _| *of != link);
        for (number, entry) in (0..).zip(&mut self.entries) {
            if entry.is_some_and(|(of, _)| of == link) {
                *entry = None;
                self.free.push(number);
            }
        }
    }
}

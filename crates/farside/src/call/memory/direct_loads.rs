//! Regions whose words the machine code of calls loads directly, singly or a few per read, without calling a
//! helper.
//!
//! | data | accessed by | when |
//! | --- | --- | --- |
//! | bytes of a region | machine code of calls (loads only), the host, peers, other calls | any time; aligned words are not torn |
//! | the table | [`DirectLoads::set`] | while no code runs, since code borrows it |
//!
//! The table holds the arenas whose bytes it refers to, so that these stay allocated.

use super::lent_region::{LentRegion, RegionSite};
use farside_base::Access;
use farside_fabric::Arena;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::NativeRegion;

/// By region number: the words of each region that calls may load locally.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectLoads {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    regions: Vec<NativeRegion<'static>>,
    arenas: Vec<Option<Arena>>,
}

impl DirectLoads {
    /// A table without regions.
    pub(crate) const NOTHING: Self = Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        regions: Vec::new(),
        arenas: Vec::new(),
    };

    /// Sets or removes the region of a number.
    pub(crate) fn set(&mut self, at: usize, lent: Option<&LentRegion>) {
        let arena = match lent {
            Some(LentRegion { site: RegionSite::Local(arena), bytes, access })
                if access.allows(Access::READ) =>
            {
                // Shorter than the arena if the fabric has rounded up, so that nothing past the end is loaded.
                usize::try_from(*bytes).ok().and_then(|bytes| arena.part(0, bytes).ok())
            }
            _ => None,
        };
        if self.arenas.len() <= at {
            self.arenas.resize(at + 1, None);
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        {
            if self.regions.len() <= at {
                self.regions.resize(at + 1, NativeRegion::of(&[]));
            }
            self.regions[at] = arena.as_ref().map_or(NativeRegion::of(&[]), region);
        }
        self.arenas[at] = arena;
    }

    /// Returns the regions; they are borrowed, so that no region is set meanwhile.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[inline]
    pub(crate) fn regions(&self) -> &[NativeRegion<'_>] {
        &self.regions
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reason below")]
fn region(arena: &Arena) -> NativeRegion<'static> {
    let bytes = arena.len();
    match arena.at(0, bytes) {
        // SAFETY: `set` is the only caller and stores the arena in the same table as the returned value, for as
        // long; `regions` lends it for no longer.
        Ok(base) => unsafe { NativeRegion::new(base, bytes) },
        Err(_) => NativeRegion::of(&[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{LinkId, RemoteRegionId};

    /// Returns the numbers of the regions with words.
    fn with_words(words: &DirectLoads) -> Vec<usize> {
        let arenas = words.arenas.iter().enumerate();
        arenas.filter_map(|(at, arena)| arena.is_some().then_some(at)).collect()
    }

    #[test]
    fn only_readable_local_regions_have_words() {
        let mut words = DirectLoads::default();
        let here =
            |access, bytes| LentRegion { site: RegionSite::Local(Arena::heap(64)), bytes, access };
        words.set(2, Some(&here(Access::ALL, 64)));
        words.set(4, Some(&here(Access::READ, 13)));
        assert_eq!(with_words(&words), [2, 4]);
        assert_eq!(words.arenas[4].as_ref().map(|arena| arena.len()), Some(13));
        words.set(4, Some(&here(Access::WRITE, 64)));
        let site = RegionSite::Remote(LinkId(1), RemoteRegionId(0));
        words.set(5, Some(&LentRegion { site, bytes: 64, access: Access::ALL }));
        words.set(6, Some(&LentRegion { site: RegionSite::Lost, bytes: 64, access: Access::ALL }));
        assert_eq!(with_words(&words), [2]);
        words.set(2, None);
        assert!(with_words(&words).is_empty());
    }
}

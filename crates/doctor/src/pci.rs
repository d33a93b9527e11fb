//! Parses the parts of PCI configuration space that the checks read (PCI Express base specification, 7.5 and 7.7).
//!
//! The bytes come from a device and are untrusted: every offset is checked, and walks of both capability lists are
//! bounded by the number of capabilities that fit.

/// The configuration of one PCI function.
pub(crate) struct Config {
    bytes: Vec<u8>,
}

/// Fields of the Device Control register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceControl {
    pub(crate) relaxed_ordering: bool,
    pub(crate) payload_bytes: u64,
    pub(crate) read_request_bytes: u64,
}

/// Size of the header, which any user may read.
const HEADER_BYTES: usize = 64;
const CAPABILITY_POINTER: usize = 0x34;
const PCI_EXPRESS: u8 = 0x10;
const EXTENDED_START: usize = 0x100;
const ACCESS_CONTROL: u16 = 0x000d;
/// Maximum list lengths: a capability has at least four bytes.
const CAPABILITIES_MAX: usize = 256 / 4;
const EXTENDED_MAX: usize = 4_096 / 4;
/// Vendor number.
const INTEL: u16 = 0x8086;
/// Root ports A to D of Skylake and Cascade Lake server processors.
const PROCESSOR_ROOT_PORTS: std::ops::RangeInclusive<u16> = 0x2030..=0x2033;
/// `perfctrlsts_0` of a root port, and its bit `Use_Allocating_Flow_Wr`.
const PERFCTRLSTS_0: usize = 0x180;
const ALLOCATING_FLOW: u8 = 1 << 7;
/// P2P Request Redirect and P2P Completion Redirect.
const ACS_REDIRECTS: u16 = 1 << 2 | 1 << 3;

impl Config {
    pub(crate) const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Whether only the header was read: the kernel shows the rest to root only.
    pub(crate) fn is_truncated(&self) -> bool {
        self.bytes.len() <= HEADER_BYTES
    }

    fn u8_at(&self, offset: usize) -> Option<u8> {
        self.bytes.get(offset).copied()
    }

    fn u16_at(&self, offset: usize) -> Option<u16> {
        Some(u16::from_le_bytes([self.u8_at(offset)?, self.u8_at(offset.checked_add(1)?)?]))
    }

    /// Returns the offset of a capability.
    fn capability(&self, wanted: u8) -> Option<usize> {
        let mut at = usize::from(self.u8_at(CAPABILITY_POINTER)? & !3);
        for _ in 0..CAPABILITIES_MAX {
            if at < HEADER_BYTES {
                return None;
            }
            if self.u8_at(at)? == wanted {
                return Some(at);
            }
            at = usize::from(self.u8_at(at.checked_add(1)?)? & !3);
        }
        None
    }

    /// Returns the offset of an extended capability.
    fn extended(&self, wanted: u16) -> Option<usize> {
        let mut at = EXTENDED_START;
        for _ in 0..EXTENDED_MAX {
            let (id, next) = (self.u16_at(at)?, self.u16_at(at.checked_add(2)?)?);
            if id == wanted {
                return Some(at);
            }
            at = usize::from(next >> 4 & !3);
            if at < EXTENDED_START {
                return None;
            }
        }
        None
    }

    pub(crate) fn device_control(&self) -> Option<DeviceControl> {
        let control = self.u16_at(self.capability(PCI_EXPRESS)?.checked_add(8)?)?;
        Some(DeviceControl {
            relaxed_ordering: control >> 4 & 1 == 1,
            payload_bytes: 128 << (control >> 5 & 7),
            read_request_bytes: 128 << (control >> 12 & 7),
        })
    }

    /// Whether a root port of a Skylake or Cascade Lake server lets writes allocate lines of the cache (DDIO):
    /// `Use_Allocating_Flow_Wr` of `perfctrlsts_0` (Farshin et al., which paper 002 cites as 13). `None` if it is
    /// another port, which may have something else there.
    pub(crate) fn allocating_writes(&self) -> Option<bool> {
        let is_one = self.u16_at(0)? == INTEL && PROCESSOR_ROOT_PORTS.contains(&self.u16_at(2)?);
        is_one.then_some(())?;
        Some(self.u8_at(PERFCTRLSTS_0)? & ALLOCATING_FLOW != 0)
    }

    /// Whether access control services redirect peer-to-peer traffic; `None` without that capability.
    pub(crate) fn acs_redirects(&self) -> Option<bool> {
        let control = self.u16_at(self.extended(ACCESS_CONTROL)?.checked_add(6)?)?;
        Some(control & ACS_REDIRECTS != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 4 KiB with a power-management capability at 0x40, then PCI Express at 0x60, and ACS at 0x148.
    fn sample() -> Vec<u8> {
        let mut bytes = vec![0; 4_096];
        bytes[0x34] = 0x40;
        bytes[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
        bytes[0x60..0x62].copy_from_slice(&[0x10, 0x00]);
        // Read requests of 4,096 bytes, payload of 256, relaxed ordering.
        bytes[0x68..0x6a].copy_from_slice(&0x5130_u16.to_le_bytes());
        bytes[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
        bytes[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        bytes[0x14e..0x150].copy_from_slice(&0x001d_u16.to_le_bytes());
        bytes
    }

    #[test]
    fn capability_registers_are_parsed() {
        let config = Config::new(sample());
        let expected =
            DeviceControl { relaxed_ordering: true, payload_bytes: 256, read_request_bytes: 4_096 };
        assert_eq!(config.device_control(), Some(expected));
        assert_eq!(config.acs_redirects(), Some(true));
        let mut bytes = sample();
        bytes[0x14e] = 0x01;
        assert_eq!(Config::new(bytes).acs_redirects(), Some(false));
    }

    #[test]
    fn capability_walk_terminates_on_broken_lists() {
        assert!(Config::new(sample()[..64].to_vec()).is_truncated());
        for length in 0..600 {
            let config = Config::new(sample()[..length].to_vec());
            let _ = (config.device_control(), config.acs_redirects());
        }
        let mut circular = sample();
        circular[0x61] = 0x40;
        circular[0x60] = 0x09;
        circular[0x148..0x14c].copy_from_slice(&0x1001_0002_u32.to_le_bytes());
        let config = Config::new(circular);
        assert_eq!((config.device_control(), config.acs_redirects()), (None, None));
        let config = Config::new(vec![0xff; 4_096]);
        let _ = (config.device_control(), config.acs_redirects());
    }
}

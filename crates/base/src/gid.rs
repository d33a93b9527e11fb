//! Selection of the entry of an RDMA port's GID table that a queue pair uses.
//!
//! A port has a table of addresses (GIDs). InfiniBand fills it by the subnet manager; a RoCE port gets two
//! entries for each IP address of its network devices, one that sends RoCE v1 (its own Ethernet type, never
//! routed) and one that sends RoCE v2 (UDP). A wrong index is the most common reason for connections that
//! time out, so this module has the one rule, and explains each choice.
//!
//! The rule, in order of weight:
//!
//! 1. An entry must be usable: set, an address of one host, within the 8 bits of an address handle's index
//!    and, on RoCE, of a network device that is not known to be down.
//! 2. RoCE v2 over RoCE v1, since v1 crosses no router and has no congestion notification.
//! 3. A routable address over a link-local one: link-local addresses reach one segment, and do not tell the
//!    peer which of its ports leads there.
//! 4. A network device known to be up over one with unknown state.
//! 5. IPv4 over IPv6. Both are equally good, but both ends must choose the same family, and each end sees
//!    only its own table.
//! 6. The lowest index.
//!
//! InfiniBand and iWARP entries are judged by 1 and 6 only: the former's link-local prefix is the subnet's
//! usual one, the latter's GID is a hardware address that is not used for routing.

use core::fmt;
use core::net::Ipv6Addr;

/// The encapsulation of an entry's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GidKind {
    /// Ethernet frames with an InfiniBand header.
    RoceV1,
    /// UDP over IPv4 or IPv6.
    RoceV2,
    /// InfiniBand, and other fabrics with native addresses, such as EFA.
    InfiniBand,
    /// TCP; connections are made by addresses, not by this entry.
    Iwarp,
}

impl GidKind {
    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::InfiniBand => "InfiniBand",
            Self::Iwarp => "iWARP",
        }
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry<'a> {
    /// Its index in the table.
    pub index: u32,
    /// The address, in network byte order.
    pub gid: [u8; 16],
    /// The encapsulation of its packets.
    pub kind: GidKind,
    /// Its network device, if known.
    pub netdev: Option<&'a str>,
    /// Whether that device is up, if known.
    pub netdev_up: Option<bool>,
}

/// The reach of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GidReach {
    /// No address: all zero.
    Unset,
    /// Not the address of one other host: loopback, multicast, or of a network as a whole.
    Unusable,
    /// One segment: `fe80::/10` or `169.254.0.0/16`.
    LinkLocal,
    /// All other addresses.
    Routable,
}

/// The maximum index that an address handle can name: `ibv_global_route::sgid_index` has 8 bits.
pub const GID_INDEX_MAX: u32 = 255;

impl GidEntry<'_> {
    /// How far the address reaches.
    pub fn reach(&self) -> GidReach {
        if self.gid == [0; 16] {
            return GidReach::Unset;
        }
        if !self.is_roce() {
            return GidReach::Routable;
        }
        let address = Ipv6Addr::from(self.gid);
        let (unusable, link_local) = match address.to_ipv4_mapped() {
            Some(four) => {
                let of_no_host = four.octets()[0] == 0 || four.octets()[0] >= 224;
                (of_no_host || four.is_loopback(), four.is_link_local())
            }
            None => {
                (address.is_loopback() || address.is_multicast(), address.is_unicast_link_local())
            }
        };
        match (unusable, link_local) {
            (true, _) => GidReach::Unusable,
            (false, true) => GidReach::LinkLocal,
            (false, false) => GidReach::Routable,
        }
    }

    /// Whether the address is an IPv4-mapped one.
    pub fn is_ipv4(&self) -> bool {
        Ipv6Addr::from(self.gid).to_ipv4_mapped().is_some()
    }

    const fn is_roce(&self) -> bool {
        matches!(self.kind, GidKind::RoceV1 | GidKind::RoceV2)
    }

    /// Why no queue pair can use this entry, whatever else is in the table.
    pub fn unusable(&self) -> Option<GidRejection> {
        match self.reach() {
            GidReach::Unset => return Some(GidRejection::Unset),
            GidReach::Unusable => return Some(GidRejection::NotOfAHost),
            GidReach::LinkLocal | GidReach::Routable => {}
        }
        if self.index > GID_INDEX_MAX {
            return Some(GidRejection::IndexTooHigh);
        }
        (self.is_roce() && self.netdev_up == Some(false)).then_some(GidRejection::NetdevDown)
    }

    /// Steps 2 to 6 of the rule, each greater for the better entry.
    fn merits(&self) -> [(u32, GidRejection); 5] {
        let roce = self.is_roce();
        [
            (u32::from(self.kind != GidKind::RoceV1), GidRejection::OlderRoce),
            (u32::from(self.reach() == GidReach::Routable), GidRejection::LinkLocal),
            (u32::from(!roce || self.netdev_up == Some(true)), GidRejection::NetdevUnknown),
            (u32::from(!roce || self.is_ipv4()), GidRejection::OtherFamily),
            (u32::MAX - self.index, GidRejection::HigherIndex),
        ]
    }

    /// The first merit in which `other` is better; `None` if there is none.
    fn worse_than(&self, other: &Self) -> Option<GidRejection> {
        let pairs = self.merits().into_iter().zip(other.merits());
        let mut differing = pairs.filter(|((own, _), (others, _))| own != others);
        let ((own, rejection), (others, _)) = differing.next()?;
        (own < others).then_some(rejection)
    }
}

/// The entry to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidChoice {
    /// Its index in the table.
    pub index: u32,
    /// The reason for it.
    pub reason: GidReason,
}

/// Why an entry was chosen. Its text continues "index 3: ".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidReason {
    /// The user named it.
    Asked,
    /// The best entry of the table by the rule: its encapsulation and reach.
    Best(GidKind, GidReach),
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("asked for by its index"),
            Self::Best(GidKind::InfiniBand, _) => f.write_str("the port's first address"),
            Self::Best(GidKind::Iwarp, _) => {
                f.write_str("the adapter's hardware address; iWARP connects by IP addresses")
            }
            Self::Best(kind, GidReach::Routable) => write!(f, "{}, routable", kind.name()),
            Self::Best(kind, _) => {
                write!(f, "{}, link-local: reaches this segment alone", kind.name())
            }
        }
    }
}

/// Why an entry was not chosen. Its text continues "index 3: ".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GidRejection {
    /// It has no address.
    Unset,
    /// A loopback, multicast or network address.
    NotOfAHost,
    /// An address handle cannot name its index.
    IndexTooHigh,
    /// Its network device is down.
    NetdevDown,
    /// RoCE v1, while there is RoCE v2.
    OlderRoce,
    /// Link-local, while there is a routable address.
    LinkLocal,
    /// The state of its network device is unknown, while another's is up.
    NetdevUnknown,
    /// IPv6, while there is IPv4.
    OtherFamily,
    /// Equal to the chosen one, which has the lower index.
    HigherIndex,
    /// Another one was requested by its index.
    NotAsked,
}

impl fmt::Display for GidRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unset => "unset",
            Self::NotOfAHost => "a loopback, multicast or network address",
            Self::IndexTooHigh => "beyond 255, the highest index that a queue pair can name",
            Self::NetdevDown => "its network device is down",
            Self::OlderRoce => "RoCE v1 crosses no router and knows no congestion notification",
            Self::LinkLocal => "link-local addresses reach one segment alone",
            Self::NetdevUnknown => "nothing is known of its network device",
            Self::OtherFamily => "both ends must take the same family, and IPv4 comes first",
            Self::HigherIndex => "as good as the chosen one, which has the lower index",
            Self::NotAsked => "another one was asked for",
        })
    }
}

/// Why no entry can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoGid {
    /// The table has no entry that is set. On RoCE the network device has no address.
    Empty,
    /// Entries are set, but none is usable; why the first of them is not.
    NoneUsable(GidRejection),
    /// The requested index is not in the table.
    NotThere(u32),
    /// The requested index can never work.
    AskedInVain(u32, GidRejection),
}

impl fmt::Display for NoGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the table is empty"),
            Self::NoneUsable(why) => write!(f, "no entry is usable: {why}"),
            Self::NotThere(index) => write!(f, "the table has no index {index}"),
            Self::AskedInVain(index, why) => write!(f, "index {index} cannot be used: {why}"),
        }
    }
}

/// Chooses the entry to use by the rule above, or takes the requested one.
///
/// `asked` overrides the rule: only an entry that can never work is refused (absent, unset, not of a host,
/// beyond [`GID_INDEX_MAX`]). One with a device that is down is accepted, as the device may come up.
///
/// # Errors
/// [`NoGid`] says why nothing can be used.
///
/// ```
/// use farside_base::{GidEntry, GidKind, choose_gid};
///
/// let entry = |index, kind| GidEntry {
///     index,
///     gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 5],
///     kind,
///     netdev: Some("eth0"),
///     netdev_up: Some(true),
/// };
/// let table = [entry(2, GidKind::RoceV1), entry(3, GidKind::RoceV2)];
/// let choice = choose_gid(&table, None).unwrap();
/// assert_eq!((choice.index, choice.reason.to_string().as_str()), (3, "RoCE v2, routable"));
/// assert_eq!(choose_gid(&table, Some(2)).unwrap().index, 2);
/// ```
pub fn choose_gid(entries: &[GidEntry<'_>], asked: Option<u32>) -> Result<GidChoice, NoGid> {
    if let Some(index) = asked {
        let entry = entries.iter().find(|entry| entry.index == index);
        return match entry.ok_or(NoGid::NotThere(index))?.unusable() {
            None | Some(GidRejection::NetdevDown) => {
                Ok(GidChoice { index, reason: GidReason::Asked })
            }
            Some(why) => Err(NoGid::AskedInVain(index, why)),
        };
    }
    let usable = entries.iter().filter(|entry| entry.unusable().is_none());
    let best =
        usable.reduce(|best, entry| if best.worse_than(entry).is_some() { entry } else { best });
    if let Some(best) = best {
        let reason = GidReason::Best(best.kind, best.reach());
        return Ok(GidChoice { index: best.index, reason });
    }
    let mut set = entries.iter().filter_map(GidEntry::unusable);
    match set.find(|why| *why != GidRejection::Unset) {
        Some(why) => Err(NoGid::NoneUsable(why)),
        None => Err(NoGid::Empty),
    }
}

/// Why `entry` was not chosen from its table; `None` for the chosen one.
///
/// `chosen` is the entry at [`choose_gid`]'s index, if there was one, and `choice` its result.
pub fn why_not_gid(
    entry: &GidEntry<'_>,
    chosen: Option<(&GidEntry<'_>, GidReason)>,
) -> Option<GidRejection> {
    let Some((chosen, reason)) = chosen else {
        return entry.unusable();
    };
    if chosen.index == entry.index {
        return None;
    }
    let unusable = entry.unusable();
    unusable.or_else(|| match reason {
        GidReason::Asked => Some(GidRejection::NotAsked),
        GidReason::Best(..) => Some(entry.worse_than(chosen).unwrap_or(GidRejection::HigherIndex)),
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    /// An entry of a device that is up: `v1`, `v2`, `ib` or `iw`, then the address.
    fn entry(index: u32, kind: &str, address: &str) -> GidEntry<'static> {
        let kind = match kind {
            "v1" => GidKind::RoceV1,
            "v2" => GidKind::RoceV2,
            "ib" => GidKind::InfiniBand,
            _ => GidKind::Iwarp,
        };
        let gid = match address.parse::<core::net::IpAddr>().unwrap() {
            core::net::IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
            core::net::IpAddr::V6(six) => six.octets(),
        };
        GidEntry { index, gid, kind, netdev: Some("eth0"), netdev_up: Some(true) }
    }

    fn down(entry: GidEntry<'static>) -> GidEntry<'static> {
        GidEntry { netdev_up: Some(false), ..entry }
    }

    fn unknown(entry: GidEntry<'static>) -> GidEntry<'static> {
        GidEntry { netdev: None, netdev_up: None, ..entry }
    }

    fn best(entries: &[GidEntry<'_>]) -> Result<u32, NoGid> {
        choose_gid(entries, None).map(|choice| choice.index)
    }

    /// The rejection of each entry.
    fn said(entries: &[GidEntry<'_>], asked: Option<u32>) -> Vec<Option<GidRejection>> {
        let choice = choose_gid(entries, asked).ok();
        let chosen = choice.and_then(|choice| {
            Some((entries.iter().find(|entry| entry.index == choice.index)?, choice.reason))
        });
        entries.iter().map(|entry| why_not_gid(entry, chosen)).collect()
    }

    #[test]
    fn the_usual_table_of_a_roce_port_gives_its_routable_v2_entry() {
        let table = [
            entry(0, "v1", "fe80::e42:a1ff:fe12:3456"),
            entry(1, "v2", "fe80::e42:a1ff:fe12:3456"),
            entry(2, "v1", "192.168.10.5"),
            entry(3, "v2", "192.168.10.5"),
            entry(4, "v1", "2001:db8::5"),
            entry(5, "v2", "2001:db8::5"),
            entry(6, "v2", "192.168.11.5"),
            entry(7, "v2", "::"),
        ];
        let choice = choose_gid(&table, None).unwrap();
        assert_eq!((choice.index, choice.reason.to_string().as_str()), (3, "RoCE v2, routable"));
        use GidRejection::{HigherIndex, LinkLocal, OlderRoce, OtherFamily, Unset};
        let expected = [
            Some(OlderRoce),
            Some(LinkLocal),
            Some(OlderRoce),
            None,
            Some(OlderRoce),
            Some(OtherFamily),
            Some(HigherIndex),
            Some(Unset),
        ];
        assert_eq!(said(&table, None), expected);
    }

    #[test]
    fn each_step_outweighs_all_later_ones() {
        let cases = [
            // v2 over routable, up, IPv4 and index
            [entry(9, "v2", "fe80::1"), entry(0, "v1", "10.0.0.1")],
            // routable over known to be up
            [unknown(entry(9, "v2", "2001:db8::1")), entry(0, "v2", "fe80::1")],
            // known to be up over IPv4
            [entry(9, "v2", "2001:db8::1"), unknown(entry(0, "v2", "10.0.0.1"))],
            // IPv4 over index
            [entry(9, "v2", "10.0.0.1"), entry(0, "v2", "2001:db8::1")],
            // the lower index
            [entry(3, "v2", "10.0.0.1"), entry(9, "v2", "10.0.0.2")],
        ];
        for [better, worse] in cases {
            assert_eq!(best(&[better, worse]), Ok(better.index));
            assert_eq!(best(&[worse, better]), Ok(better.index));
        }
    }

    #[test]
    fn addresses_reach_as_far_as_their_kind_does() {
        let cases = [
            ("::", GidReach::Unset),
            ("fe80::1", GidReach::LinkLocal),
            ("febf::1", GidReach::LinkLocal),
            ("169.254.3.4", GidReach::LinkLocal),
            ("10.1.2.3", GidReach::Routable),
            ("fd00::1", GidReach::Routable),
            ("2001:db8::1", GidReach::Routable),
            ("127.0.0.1", GidReach::Unusable),
            ("0.1.2.3", GidReach::Unusable),
            ("239.1.1.1", GidReach::Unusable),
            ("255.255.255.255", GidReach::Unusable),
            ("::1", GidReach::Unusable),
            ("ff02::1", GidReach::Unusable),
        ];
        for (address, reach) in cases {
            assert_eq!(entry(0, "v2", address).reach(), reach, "{address}");
        }
        assert_eq!(entry(0, "ib", "fe80::2c9:300:1").reach(), GidReach::Routable);
        assert_eq!(entry(0, "iw", "00c0:ffee:1234::").reach(), GidReach::Routable);
    }

    #[test]
    fn down_devices_high_indexes_and_empty_tables_are_refused() {
        assert_eq!(best(&[]), Err(NoGid::Empty));
        assert_eq!(best(&[entry(0, "v2", "::")]), Err(NoGid::Empty));
        let all_down = [down(entry(0, "v1", "10.0.0.1")), down(entry(1, "v2", "10.0.0.1"))];
        assert_eq!(best(&all_down), Err(NoGid::NoneUsable(GidRejection::NetdevDown)));
        assert_eq!(said(&all_down, None), [Some(GidRejection::NetdevDown); 2]);
        let high = [entry(256, "v2", "10.0.0.1"), entry(255, "v1", "10.0.0.1")];
        assert_eq!(best(&high), Ok(255));
        assert_eq!(said(&high, None), [Some(GidRejection::IndexTooHigh), None]);
        assert_eq!(best(&[down(entry(0, "ib", "fe80::1"))]), Ok(0), "InfiniBand needs no netdev");
    }

    #[test]
    fn an_index_overrides_the_rule_but_not_what_can_never_work() {
        let table = [
            entry(0, "v1", "fe80::1"),
            entry(1, "v2", "10.0.0.1"),
            down(entry(2, "v2", "10.0.1.1")),
            entry(3, "v2", "::"),
            entry(300, "v2", "10.0.2.1"),
        ];
        for index in [0, 1, 2] {
            let expected = GidChoice { index, reason: GidReason::Asked };
            assert_eq!(choose_gid(&table, Some(index)), Ok(expected));
        }
        assert_eq!(choose_gid(&table, Some(9)), Err(NoGid::NotThere(9)));
        assert_eq!(choose_gid(&table, Some(3)), Err(NoGid::AskedInVain(3, GidRejection::Unset)));
        assert_eq!(
            choose_gid(&table, Some(300)),
            Err(NoGid::AskedInVain(300, GidRejection::IndexTooHigh))
        );
        assert_eq!(said(&table, Some(0))[..2], [None, Some(GidRejection::NotAsked)]);
    }

    #[test]
    fn infiniband_and_iwarp_take_their_first_entry() {
        let ib = [entry(0, "ib", "fe80::2c9:300:1"), entry(1, "ib", "2001:db8::1")];
        let choice = choose_gid(&ib, None).unwrap();
        assert_eq!(choice.index, 0);
        assert!(choice.reason.to_string().contains("first"));
        let iwarp = [entry(0, "iw", "00c0:ffee:1234::")];
        assert!(choose_gid(&iwarp, None).unwrap().reason.to_string().contains("iWARP"));
    }

    #[test]
    fn the_choice_does_not_depend_on_the_order_and_is_never_rejected() {
        // All subsets of a table in two orders: the choice is the same, and exactly one entry has no
        // rejection if there is a choice.
        let all = [
            entry(0, "v1", "fe80::1"),
            entry(1, "v2", "fe80::1"),
            down(entry(2, "v2", "10.0.0.1")),
            unknown(entry(3, "v2", "10.0.0.2")),
            entry(4, "v2", "2001:db8::1"),
            entry(5, "v1", "10.0.0.3"),
            entry(6, "v2", "::"),
        ];
        for subset in 0_u32..1 << all.len() {
            let chosen = all.iter().enumerate().filter(|(at, _)| subset & (1 << at) != 0);
            let some: Vec<_> = chosen.map(|(_, entry)| *entry).collect();
            let turned: Vec<_> = some.iter().rev().copied().collect();
            assert_eq!(choose_gid(&some, None), choose_gid(&turned, None), "{subset:b}");
            let kept = said(&some, None).iter().filter(|why| why.is_none()).count();
            assert_eq!(kept, usize::from(best(&some).is_ok()), "{subset:b}");
        }
    }
}

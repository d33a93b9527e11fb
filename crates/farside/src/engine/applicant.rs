//! What a process says to a cluster before it is a member, and how it reads the answers.

use crate::{Config, Error, ErrorCode};
use farside_base::{Generation, Incarnation, Limits, NodeId};
pub(crate) use farside_protocol::member::Keeps;
use farside_protocol::member::{
    AskOccupancy, Elsewhere, FounderSettings, HelloAnswer, Identity, Join, JoinRefusal, Leases,
    MemberRole, PROTOCOL_VERSION, Welcome,
};
use std::net::SocketAddr;

/// A node that is no member yet.
#[derive(Debug)]
pub(crate) struct Applicant {
    identity: Identity,
    home_bytes: u64,
}

/// The answer of a cluster to an applicant.
pub(crate) enum Admission {
    Admitted(Welcome),
    /// The coordinator is on this host.
    Elsewhere(SocketAddr),
}

fn refused(refusal: JoinRefusal) -> Error {
    Error::with(refusal.code, refusal.text)
}

/// A fingerprint of all limits that must be equal on all nodes. Joiners learn `nodes_max` from the cluster.
fn limits_fingerprint(limits: &Limits) -> u64 {
    let limits = &Limits { nodes_max: 0, ..*limits };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in format!("{limits:?}").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash
}

impl Applicant {
    pub(crate) fn new(
        config: &Config,
        incarnation: Incarnation,
        host: Option<SocketAddr>,
        fabric_lease_ns: u64,
        keeps: Keeps,
    ) -> Self {
        let role = match (config.witness, config.memory_bytes) {
            (true, _) => MemberRole::Witness,
            (false, 0) => MemberRole::Program,
            (false, _) => MemberRole::Lender,
        };
        let leases = Leases { fabric_ns: fabric_lease_ns, member_ns: config.lease_ns };
        let identity = Identity {
            cluster: config.cluster.clone(),
            incarnation,
            limits: limits_fingerprint(&config.limits),
            host,
            role,
            keeps,
            quorum: host.is_some(),
            settings: FounderSettings { nodes_max: config.limits.nodes_max, leases },
        };
        Self { identity, home_bytes: config.memory_bytes }
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn leases(&self) -> Leases {
        self.identity.settings.leases
    }

    /// The number and the memory generation with which it founds a cluster.
    ///
    /// # Errors
    /// `BadConfiguration`: what this process keeps does not fit the settings.
    pub(crate) fn founding(&self) -> Result<(NodeId, Option<Generation>), Error> {
        let Identity { keeps, role, settings, .. } = &self.identity;
        let misfit = |text| Error::with(ErrorCode::BadConfiguration, text);
        keeps.founding(role.lends(), settings.nodes_max).map_err(misfit)
    }

    /// The request to be admitted.
    pub(crate) fn request(&self) -> Vec<u8> {
        Join {
            version: PROTOCOL_VERSION,
            cluster: self.identity.cluster.clone(),
            limits: self.identity.limits,
            incarnation: self.identity.incarnation,
            home_bytes: self.home_bytes,
            witness: self.identity.role.is_witness(),
            keeps: self.identity.keeps,
            host: self.identity.host,
        }
        .encode()
    }

    /// Reads the answer to the request. If it is admitted, the settings of the cluster apply to it.
    ///
    /// # Errors
    /// Why the cluster refuses it; `ProtocolViolation`.
    pub(crate) fn answered(&mut self, answer: &[u8]) -> Result<Admission, Error> {
        match HelloAnswer::decode(answer) {
            Ok(HelloAnswer::Welcome(welcome)) => {
                self.identity.settings = welcome.settings;
                Ok(Admission::Admitted(welcome))
            }
            Ok(HelloAnswer::Refusal(refusal)) => Err(refused(refusal)),
            Ok(HelloAnswer::Elsewhere(Elsewhere { host })) => Ok(Admission::Elsewhere(host)),
            Ok(HelloAnswer::PeerReply(_) | HelloAnswer::Resumed(_) | HelloAnswer::Occupancy(_)) => {
                Err(Error::new(ErrorCode::ProtocolViolation))
            }
            Err(error) => Err(refused(error.refusal())),
        }
    }
}

/// The question for the number of members.
pub(crate) fn occupancy_request() -> Vec<u8> {
    AskOccupancy.encode()
}

/// Reads the answer to [`occupancy_request`]: the number of members, and the maximum.
///
/// # Errors
/// Why the coordinator refuses it; `ProtocolViolation`.
pub(crate) fn read_occupancy(answer: &[u8]) -> Result<(usize, usize), Error> {
    match HelloAnswer::decode(answer) {
        Ok(HelloAnswer::Occupancy(told)) => Ok((told.members.into(), told.members_max.into())),
        Ok(HelloAnswer::Refusal(refusal)) => Err(refused(refusal)),
        _ => Err(ErrorCode::ProtocolViolation.into()),
    }
}

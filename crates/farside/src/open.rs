//! Opens a node by the URL of its fabric: founds the cluster, or joins it if it exists.
//!
//! *Over `shm`* the cluster's name decides: to bind it is to found the cluster, and only one process can. A
//! process first checks that no member of the cluster listens, since the name is free for a moment when the
//! coordinator changes.
//!
//! *Between hosts* the first address of the URL decides: the process that binds it founds the cluster if no
//! member answers at the other addresses. Every other process joins; one that finds no cluster tries again to
//! bind, since the process that listened there may have ended.

use crate::fabrics::{Endpoint, Fabric, FabricOptions, HostAddress, OpenFailure, Scheme};
use crate::node::Node;
use crate::registered::control;
use crate::security::Security;
use crate::wait::pause;
use crate::{Config, Error, ErrorCode};
use farside_base::waiting::Backoff;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Node {
    /// Founds the cluster of this name on the fabric of a URL ([`fabrics`](crate::fabrics)), or joins it if
    /// it exists: several processes of one program call this alike.
    ///
    /// *Over `shm`* the first process founds. *Between hosts* the process that can listen at the first
    /// address of the URL founds, unless a member answers at another one; all others listen at another
    /// address of the URL that is their own, or at a port that the system chooses, and join. `listen=`
    /// overrides this choice. The fabric's lease is [`Config::lease_ns`], like that of members.
    ///
    /// *Guarantees*: two processes of one machine and URL do not found two clusters. Between hosts a founder
    /// that restarts while no member answers at the other addresses founds a new cluster, even if members
    /// live elsewhere: name several addresses, or run `farside node --found`, whose founder waits for the
    /// answer of every other host.
    ///
    /// *Blocks* until this node is linked to all members; as a joiner it waits for the founder for up to
    /// [`Config::join_timeout_ns`].
    ///
    /// ```no_run
    /// use farside::prelude::*;
    ///
    /// # fn main() -> Result<(), Error> {
    /// let url = "tcp://127.0.0.1:7471"; // or "shm"
    /// let node = Node::open(&Config::new("example"), url, Security::open())?;
    /// node.wait_for_members(2, std::time::Duration::from_secs(10))?; // start the program twice
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadConfiguration` for a malformed URL; `NoSuchCluster` if no founder came in time; and those of
    /// [`fabrics::open`](crate::fabrics::open), [`Node::create`] and [`Node::join`].
    pub fn open(config: &Config, url: &str, security: Security) -> Result<Self, Error> {
        config.check()?;
        let options = FabricOptions::parse(url, security)?;
        let options = options.lease(Duration::from_nanos(config.lease_ns));
        match options.scheme {
            Scheme::Shm => open_shm(config, &options.open()?.fabric),
            Scheme::Tcp | Scheme::Verbs => open_between(config, &options),
        }
    }
}

fn open_shm(config: &Config, fabric: &Arc<dyn Fabric>) -> Result<Node, Error> {
    retry(config, || {
        if !has_members(&config.cluster)? {
            match Node::create_on(config, Arc::clone(fabric)) {
                Err(error) if error.code == ErrorCode::NameTaken => {}
                done => return done,
            }
        }
        Node::join_on(config, Arc::clone(fabric))
    })
}

fn open_between(config: &Config, options: &FabricOptions) -> Result<Node, Error> {
    check_addresses(options)?;
    let mut bound = bind(options)?;
    let joined = retry(config, || {
        let joined = match bound.founds && bound.others.is_empty() {
            true => Err(ErrorCode::NoSuchCluster.into()),
            false => Node::join_on(config, Arc::clone(&bound.fabric)),
        };
        match joined {
            Err(error) if error.code == ErrorCode::NoSuchCluster => {
                if !bound.founds
                    && options.listen.is_none()
                    && let Some(listed) = bind_listed(options)?
                {
                    // The process that listened there has ended.
                    bound = listed;
                }
                match bound.founds {
                    true => Node::create_on(config, Arc::clone(&bound.fabric)),
                    false => Err(error),
                }
            }
            done => done,
        }
    });
    joined.map_err(|mut error| {
        if error.code == ErrorCode::NoSuchCluster
            && let Some(founder) = options.hosts.first()
        {
            let detail = &error.detail;
            error.detail = format!("no member answered; {founder} is the founder's: {detail}");
        }
        error
    })
}

/// Refuses addresses that no other process can dial.
fn check_addresses(options: &FabricOptions) -> Result<(), Error> {
    let everywhere = |at: &Endpoint| matches!(at.host, HostAddress::Ip(ip) if ip.is_unspecified());
    if let Some(host) = options.hosts.iter().find(|host| host.port == 0 || everywhere(host)) {
        return Err(bad(format!("{host}: a cluster needs an address and port that others dial")));
    }
    match &options.listen {
        Some(listen) if options.advertise.is_none() && everywhere(listen) => Err(bad(format!(
            "{listen} is every address of this host: add advertise=HOST:PORT, which others dial"
        ))),
        _ => Ok(()),
    }
}

fn bad(detail: String) -> Error {
    Error::with(ErrorCode::BadConfiguration, detail)
}

/// Repeats an attempt that finds no cluster or is not linked in time, until the join timeout of the
/// configuration.
fn retry(config: &Config, mut attempt: impl FnMut() -> Result<Node, Error>) -> Result<Node, Error> {
    let deadline = Instant::now() + Duration::from_nanos(config.join_timeout_ns);
    let mut delays = Backoff::JOINS;
    loop {
        match attempt() {
            Err(error) if may_pass(error.code) && Instant::now() < deadline => {
                pause(Duration::from_nanos(delays.next_ns()));
            }
            done => return done,
        }
    }
}

const fn may_pass(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NoSuchCluster | ErrorCode::TimedOut)
}

/// Returns whether a member of this cluster listens on this machine.
fn has_members(cluster: &str) -> Result<bool, Error> {
    let names = farside_fabric_shm::listening().map_err(|error| control(&error))?;
    Ok(names.iter().any(|name| is_member(name, cluster)))
}

/// Returns whether this is the name of a member's port (`farside.CLUSTER.NODE-AGE`).
fn is_member(name: &str, cluster: &str) -> bool {
    let member = name.strip_prefix("farside.").and_then(|rest| rest.rsplit_once('.'));
    member.is_some_and(|(own, node)| {
        let number = node.split_once('-').map(|(number, _age)| number.parse::<u16>());
        own == cluster && matches!(number, Some(Ok(_)))
    })
}

/// A fabric between hosts that listens.
struct Bound {
    fabric: Arc<dyn Fabric>,
    /// It listens at the founder's address.
    founds: bool,
    /// The addresses of the URL that are not its own.
    others: Vec<Endpoint>,
}

/// Opens a fabric that listens at the first address of the URL that this process can bind, or else at a
/// port that the system chooses.
fn bind(options: &FabricOptions) -> Result<Bound, Error> {
    if let Some(listen) = &options.listen {
        return bind_at(options, listen, options.advertise.as_ref().unwrap_or(listen))
            .map_err(|failure| failure.error);
    }
    if let Some(bound) = bind_listed(options)? {
        return Ok(bound);
    }
    let Some(founder) = options.hosts.first() else {
        return Err(bad("no host".to_owned()));
    };
    let listen = SocketAddr::new(local_towards(founder)?, 0).into();
    bind_at(options, &listen, &listen).map_err(|failure| failure.error)
}

/// Opens a fabric at the first address of the URL that this process can bind, if any.
fn bind_listed(options: &FabricOptions) -> Result<Option<Bound>, Error> {
    for host in &options.hosts {
        match bind_at(options, host, host) {
            Ok(bound) => return Ok(Some(bound)),
            Err(failure) if failure.not_bound => {}
            Err(failure) => return Err(failure.error),
        }
    }
    Ok(None)
}

fn bind_at(
    options: &FabricOptions,
    listen: &Endpoint,
    own: &Endpoint,
) -> Result<Bound, OpenFailure> {
    let founds = options.hosts.first() == Some(own);
    let mut options = options.clone().listen(Some(listen.clone()));
    options.hosts.retain(|host| host != own);
    Ok(Bound { fabric: options.start()?.fabric, founds, others: options.hosts })
}

/// Returns the address of this host on the route to another one, without sending anything.
fn local_towards(host: &Endpoint) -> Result<IpAddr, Error> {
    let route = || -> io::Result<IpAddr> {
        let addresses = host.resolve()?;
        let any: IpAddr = match addresses.first() {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(&addresses[..])?;
        Ok(socket.local_addr()?.ip())
    };
    route()
        .map_err(|reason| Error::with(ErrorCode::System, format!("no route to {host}: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_names_belong_to_their_cluster_alone() {
        assert!(is_member("farside.lab.0-001", "lab") && is_member("farside.a.b.12-0zz", "a.b"));
        for other in ["farside.lab", "farside.lab.x", "farside.lab.x-1", "foreign.lab.0-001"] {
            assert!(!is_member(other, "lab"), "{other}");
        }
        assert!(!is_member("farside.a.b.0-001", "a") && !is_member("farside.lab.0-001", "la"));
    }

    #[test]
    fn address_towards_a_host_of_the_loopback_is_the_loopback() {
        let at = |text: &str| local_towards(&text.parse().unwrap()).unwrap();
        assert_eq!(at("127.0.0.1:7471"), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn addresses_that_no_process_can_dial_are_refused() {
        let config = Config::new("undialled");
        let (port, all, listen) =
            ("tcp://127.0.0.1:0", "tcp://0.0.0.0:1", "tcp://127.0.0.1:1?listen=0.0.0.0:0");
        for url in [port, all, listen] {
            let error = Node::open(&config, url, Security::open()).unwrap_err();
            assert_eq!(error.code, ErrorCode::BadConfiguration, "{url}: {error}");
        }
    }
}

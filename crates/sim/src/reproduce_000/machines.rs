//! Applications: threads of several machines that post one list of requests after the other. Each machine has two
//! sockets, and a port of its adapter at each (000 §III-D, Figure 9).

use super::scene::{Endpoint, Link, RESULT_BYTES, Request, SERVER, Study, Tally, ThreadProgram};
use crate::fabric::{
    CONNECTX3_IB, E5_2640_V2, SimNet, SimOptions, SocketPlacement, VERBS_CONNECTX3,
};
use crate::stage::{Spent, Then};
use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, FabricError, Region, RegionSpec};

/// Time to load a line that the other socket has: a request or an answer in a queue of a proxy socket (000 Table II).
pub(super) const HANDOFF_NS: u64 = E5_2640_V2.miss_ns + CONNECTX3_IB.sockets.crossing_ns;
/// Bytes of the memory of a client thread.
const LOCAL_BYTES: u64 = 256 << 10;

/// How threads choose ports and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SocketPolicy {
    /// Either port at both ends, whatever the socket of thread and memory.
    Any,
    /// The port of the socket at both ends, by a proxy socket where it is another than the thread's.
    Matched,
}

/// Returns a net of [`CONNECTX3_IB`].
pub(super) fn net() -> SimNet {
    SimNet::new(1, SimOptions::on_hardware(VERBS_CONNECTX3, CONNECTX3_IB))
}

/// Opens a port of a node, with memory at one of its sockets or a region of before.
pub(super) fn open(
    net: &SimNet,
    (node, name): (&str, &str),
    placement: SocketPlacement,
    region: Option<Region>,
) -> Result<Endpoint, FabricError> {
    let region = match region {
        Some(region) => region,
        None => register(net, node, placement.memory_socket, LOCAL_BYTES)?,
    };
    net.place(node, placement).map_err(|e| FabricError::System("placement", e))?;
    let results = region.arena.len() as u64 - RESULT_BYTES;
    let mut end = Endpoint::new(net, node, name, region)?;
    end.results = results;
    Ok(end)
}

fn register(net: &SimNet, node: &str, socket: u8, bytes: u64) -> Result<Region, FabricError> {
    let placement = SocketPlacement { memory_socket: socket, ..SocketPlacement::default() };
    net.place(node, placement).map_err(|e| FabricError::System("placement", e))?;
    let spec =
        RegionSpec { bytes: bytes + RESULT_BYTES, access: Access::ALL, kind: RegionKind::Memory };
    net.fabric(node).register(&spec)
}

/// The links of a thread: by its own port, the server's port, and the socket of the server's memory.
pub(super) type ServerLinks = [[[Link; 2]; 2]; 2];

/// A thread of a client machine, with an end at each of its ports.
pub(super) struct ClientThread {
    pub(super) ends: Vec<Endpoint>,
    pub(super) links: ServerLinks,
    pub(super) socket: u8,
}

/// Client machines of two threads each, one a socket, and a server with memory at both sockets.
pub(super) struct ClientMachines {
    pub(super) net: SimNet,
    pub(super) threads: Vec<(String, ClientThread)>,
    /// The server's ports stay open although its program does nothing.
    server: Vec<Endpoint>,
}

impl ClientMachines {
    /// Connects `count` threads to a server with `bytes` bytes at each socket.
    pub(super) fn connect(
        count: usize,
        policy: SocketPolicy,
        bytes: u64,
    ) -> Result<Self, FabricError> {
        let net = net();
        let memory = [register(&net, SERVER, 0, bytes)?, register(&net, SERVER, 1, bytes)?];
        let mut server = Vec::new();
        for port in [0, 1] {
            let region = memory[usize::from(port)].clone();
            let at = matched(port);
            server.push(open(&net, (SERVER, &port_name(SERVER, port)), at, Some(region))?);
        }
        let mut threads = Vec::new();
        for number in 0..count {
            let (node, socket) = (format!("client {}", number / 2), (number % 2) as u8);
            let mut ends = Vec::new();
            for port in [0, 1] {
                let at = match policy {
                    SocketPolicy::Matched => matched(port),
                    SocketPolicy::Any => SocketPlacement {
                        thread_socket: socket,
                        memory_socket: socket,
                        ..matched(port)
                    },
                };
                let name = port_name(&format!("thread {number}"), port);
                ends.push(open(&net, (&node, &name), at, None)?);
            }
            let mut links = Vec::new();
            for end in &mut ends {
                for (port, peer) in (0..).zip(&mut server) {
                    let [link, _] = end.connect(&port_name(SERVER, port), peer)?;
                    for region in &memory {
                        links.push(end.import(link, region)?);
                    }
                }
            }
            let link = |own: usize, port: usize, socket: usize| links[4 * own + 2 * port + socket];
            let links = [0, 1].map(|own| [0, 1].map(|port| [0, 1].map(|at| link(own, port, at))));
            threads.push((node, ClientThread { ends, links, socket }));
        }
        Ok(Self { net, threads, server })
    }

    /// Runs a program on each thread. Returns the units of all per microsecond.
    pub(super) fn rate<P: PostSequence + 'static>(
        self,
        warm_up_ns: u64,
        mut program: impl FnMut(usize, ServerLinks, u8) -> P,
    ) -> Result<f64, FabricError> {
        let Self { net, threads, server } = self;
        let mut study = Study::new(&net);
        for (number, (node, thread)) in threads.into_iter().enumerate() {
            let program = program(number, thread.links, thread.socket);
            let tally = study.tally.clone();
            study.add(&node, SequenceThread { ends: thread.ends, program, tally, waiting: None });
        }
        study.rate(warm_up_ns).inspect(|_| drop(server))
    }
}

const fn matched(port: u8) -> SocketPlacement {
    SocketPlacement { port, port_socket: port, thread_socket: port, memory_socket: port }
}

fn port_name(name: &str, port: u8) -> String {
    format!("{name}, port {port}")
}

/// A list of requests that a thread posts and waits for.
pub(super) struct SequencePost {
    /// The number of the thread's end, and the link.
    pub(super) end: usize,
    pub(super) link: Link,
    /// Nothing: the thread only takes its time.
    pub(super) list: Vec<Request>,
    /// Time before the post.
    pub(super) prepare_ns: u64,
    /// Time after the last completion.
    pub(super) finish_ns: u64,
    /// Units that are done then.
    pub(super) units: u64,
}

/// The requests of one thread.
pub(super) trait PostSequence {
    /// Returns the next list, after the one before has completed; `result` is the value of its last atomic.
    fn next(&mut self, result: u64) -> SequencePost;
}

/// Runs a [`PostSequence`].
pub(super) struct SequenceThread<P> {
    pub(super) ends: Vec<Endpoint>,
    pub(super) program: P,
    pub(super) tally: Tally,
    /// The end of the posted list, the time after it and its units.
    pub(super) waiting: Option<(usize, u64, u64)>,
}

impl<P: PostSequence> ThreadProgram for SequenceThread<P> {
    fn run(&mut self) -> Result<Spent, FabricError> {
        let mut result = 0;
        if let Some((end, finish_ns, units)) = self.waiting {
            let end = &mut self.ends[end];
            if end.poll()?.is_none() {
                return Ok(Spent { then: Then::Poll, ..Spent::NOTHING });
            }
            end.net.spend_ns(finish_ns);
            self.tally.add(units);
            result = end.result();
            self.waiting = None;
        }
        let post = self.program.next(result);
        let end = &mut self.ends[post.end];
        end.net.spend_ns(post.prepare_ns);
        if post.list.is_empty() {
            self.tally.add(post.units);
        } else {
            end.post(post.link, &post.list, true)?;
            self.waiting = Some((post.end, post.finish_ns, post.units));
        }
        Ok(Spent::NOTHING)
    }
}

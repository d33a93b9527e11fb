//! Nodes, ports, regions and links, for tests.

use super::{SimNet, SimOptions, SocketPlacement};
use farside_base::{
    Access, Capabilities, Completion, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};

pub(super) const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

pub(super) struct LinkedNode {
    pub(super) port: Box<dyn Port>,
    pub(super) region: Region,
    pub(super) queue: ReceiveQueueId,
    /// Link and imported region per node number.
    pub(super) links: Vec<Option<(LinkId, RemoteRegionId)>>,
}

/// Fully connected nodes.
pub(super) struct LinkedNodes {
    pub(super) net: SimNet,
    pub(super) sides: Vec<LinkedNode>,
}

impl LinkedNodes {
    pub(super) fn new(seed: u64, capabilities: Capabilities, nodes: usize) -> Self {
        Self::with(seed, SimOptions::draw(seed, capabilities), nodes)
    }

    pub(super) fn with(seed: u64, options: SimOptions, nodes: usize) -> Self {
        Self::with_access(seed, options, nodes, Access::ALL)
    }

    /// Creates nodes with regions of that access.
    pub(super) fn with_access(
        seed: u64,
        options: SimOptions,
        nodes: usize,
        access: Access,
    ) -> Self {
        let places: Vec<_> =
            NAMES[..nodes].iter().map(|name| (*name, SocketPlacement::default())).collect();
        Self::placed(&SimNet::new(seed, options), &places, access)
    }

    /// Creates one end on each of these nodes, with that placement.
    pub(super) fn placed(net: &SimNet, places: &[(&str, SocketPlacement)], access: Access) -> Self {
        let side = |(number, (node, placement)): (usize, &(&str, SocketPlacement))| {
            net.place(node, *placement).unwrap();
            side(net, node, NAMES[number], places.len(), access)
        };
        let sides = places.iter().enumerate().map(side).collect();
        let mut scene = Self { net: net.clone(), sides };
        for from in 0..places.len() {
            for to in from + 1..places.len() {
                scene.connect(from, to);
            }
        }
        scene
    }

    pub(super) fn connect(&mut self, from: usize, to: usize) {
        let queue = self.sides[from].queue;
        let here = self.sides[from].port.connect(NAMES[to], b"", queue).unwrap();
        self.net.run_until_idle();
        let Some(LinkEvent::Requested { link: there, .. }) = self.events(to).pop() else {
            panic!("no request");
        };
        let queue = self.sides[to].queue;
        self.sides[to].port.accept(there, b"", queue).unwrap();
        self.net.run_until_idle();
        assert_eq!(self.events(from).len(), 1);
        for (one, link, other) in [(from, here, to), (to, there, from)] {
            let token = self.sides[other].region.token;
            let region = self.sides[one].port.import(link, &token).unwrap();
            self.sides[one].links[other] = Some((link, region));
        }
    }

    pub(super) fn events(&mut self, node: usize) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        self.sides[node].port.link_events(&mut events);
        events
    }

    pub(super) fn poll(&mut self, node: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut out = [Completion::BLANK; 16];
        loop {
            let count = self.sides[node].port.poll(&mut out);
            if count == 0 {
                return all;
            }
            all.extend_from_slice(&out[..count]);
        }
    }

    pub(super) fn slice(&self, node: usize, offset: u64, bytes: u32) -> LocalSlice {
        let region = self.sides[node].region.id;
        LocalSlice { region, offset, bytes }
    }

    pub(super) fn fill(&self, node: usize, offset: u64, bytes: usize, value: u8) {
        self.sides[node].region.arena.write(offset, &vec![value; bytes]).unwrap();
    }

    pub(super) fn bytes(&self, node: usize, offset: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.sides[node].region.arena.read(offset, &mut out).unwrap();
        out
    }

    pub(super) fn at(&self, from: usize, to: usize, offset: u64) -> RemoteSlice {
        let (_, region) = self.sides[from].links[to].unwrap();
        RemoteSlice { region, offset }
    }

    pub(super) fn post(&mut self, from: usize, to: usize, id: u64, operation: Operation<'_>) {
        let (link, _) = self.sides[from].links[to].unwrap();
        let work = Work {
            id: WorkId(id),
            link,
            flags: WorkFlags { signalled: true, fence: false, awaited: false },
            operation,
        };
        let posted = self.sides[from].port.post(&[work]);
        assert_eq!((posted.accepted, posted.stop), (1, None));
    }

    /// Posts a WRITE of the same range of both regions.
    pub(super) fn write(&mut self, from: usize, to: usize, id: u64, offset: u64, bytes: u32) {
        let slices = [self.slice(from, offset, bytes)];
        let to_place = self.at(from, to, offset);
        let source = Source::Gather(&slices);
        self.post(from, to, id, Operation::Write { source, to: to_place, immediate: None });
    }

    pub(super) fn send(&mut self, from: usize, to: usize, id: u64) {
        let source = Source::Inline(&[7; 8]);
        self.post(from, to, id, Operation::Send { source, immediate: None });
    }

    pub(super) fn receive(&mut self, node: usize, id: u64) {
        let into = self.slice(node, 60_000, 8);
        let queue = self.sides[node].queue;
        let receive = Receive { id: WorkId(id), queue, into };
        assert_eq!(self.sides[node].port.post_receives(&[receive]).accepted, 1);
    }
}

pub(super) fn side(
    net: &SimNet,
    node: &str,
    name: &str,
    nodes: usize,
    access: Access,
) -> LinkedNode {
    let fabric = net.fabric(node);
    let listen = Some(name.to_owned());
    let mut port = fabric.open(&PortSpec { listen }).unwrap();
    let queue = port.create_receive_queue(64).unwrap();
    let spec = RegionSpec { bytes: 65_536, access, kind: RegionKind::Memory };
    LinkedNode { port, region: fabric.register(&spec).unwrap(), queue, links: vec![None; nodes] }
}

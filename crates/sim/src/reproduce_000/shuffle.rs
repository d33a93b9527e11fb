//! The distributed shuffle: Figure 15 of 000 §IV-C, rows pushed by executors to each other.
//!
//! An executor finds the destination of each row by a hash, and waits for a batch before it continues, as the
//! threads of Figures 3 to 5 do. Rows to itself are copied.

use super::machines::{PostSequence, SequencePost, SequenceThread, SocketPolicy, net, open};
use super::scene::{Endpoint, Link, Request, Study, Tally, ThreadProgram, Verb, copy_ns};
use crate::fabric::{E5_2640_V2, SimNet, SocketPlacement};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use crate::stage::{Spent, Then};
use farside_base::Random;
use farside_fabric::FabricError;

/// Machines of the cluster (000 §III).
const MACHINES: usize = 8;
/// Bytes of a row: the paper's values of §IV-B; it does not give those of a row.
const ROW_BYTES: u32 = 64;
/// Bytes of a key, which is hashed.
const KEY_BYTES: u64 = 8;
/// Distance of rows in the memory of an executor, of which batches are gathered.
const SPREAD_BYTES: u64 = 128 << 10;
/// Where batches are staged.
const STAGED: u64 = SPREAD_BYTES;
/// Bytes of an executor's memory into which others write, and of the word behind a batch of `farside_apps::shuffle`.
const INBOX_BYTES: u64 = 240 << 10;
const WORD_BYTES: u32 = 8;
/// Time before the measurement.
const WARM_UP_NS: u64 = 100_000;
const EXECUTORS: [usize; 4] = [2, 4, 8, 16];

/// How rows become requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowWay {
    /// Each row by a WRITE.
    Single,
    /// SP: a batch is copied together.
    Copy,
    /// SGL: a batch is a WRITE of slices.
    Slices,
}

/// A shuffle.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShuffleLoad {
    pub(super) way: RowWay,
    pub(super) policy: SocketPolicy,
    pub(super) executors: usize,
    pub(super) batch: u64,
    pub(super) row_bytes: u32,
}

/// What a shuffle has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShuffleRate {
    /// Rows of all executors, M/s.
    pub(super) rows: f64,
    /// Processor time of a row, without polls that find nothing.
    pub(super) busy_ns: f64,
}

/// Executors that are connected with each other.
struct ExecutorMesh {
    net: SimNet,
    /// Node, port and links to the others, none to itself.
    executors: Vec<(String, Endpoint, Vec<Option<Link>>)>,
}

impl ExecutorMesh {
    fn connect(count: usize, policy: SocketPolicy) -> Result<Self, FabricError> {
        let net = net();
        let name = |number: usize| format!("executor {number}");
        let mut executors: Vec<(String, Endpoint, Vec<Option<Link>>)> = Vec::new();
        for number in 0..count {
            let node = format!("worker {}", number % MACHINES);
            let socket = (number / MACHINES) as u8;
            let port = match policy {
                SocketPolicy::Matched => socket,
                SocketPolicy::Any => socket ^ (number % 2) as u8,
            };
            let at = SocketPlacement {
                port,
                port_socket: port,
                thread_socket: socket,
                memory_socket: socket,
            };
            let mut end = open(&net, (&node, &name(number)), at, None)?;
            let mut links = Vec::new();
            for (peer, (_, other, back)) in executors.iter_mut().enumerate() {
                let [link, answer] = end.connect(&name(peer), other)?;
                links.push(Some(end.import(link, &other.region)?));
                back.push(Some(other.import(answer, &end.region)?));
            }
            links.push(None);
            executors.push((node, end, links));
        }
        Ok(Self { net, executors })
    }
}

/// Fills batches for all destinations.
struct RowSource {
    load: ShuffleLoad,
    links: Vec<Option<Link>>,
    random: Random,
    /// Rows of the batch of each destination.
    filled: Vec<u64>,
    batches: u64,
}

impl RowSource {
    fn new(load: ShuffleLoad, number: usize, links: Vec<Option<Link>>) -> Self {
        let mut random = Random::new(number as u64 + 1);
        // Batches are somewhere between empty and full when the study begins.
        let filled = links.iter().map(|_| random.below(load.batch)).collect();
        Self { load, links, random, filled, batches: 0 }
    }

    /// Takes rows until a batch is full. Returns its destination with the link, the time, and the rows that stay at
    /// this executor.
    fn fill(&mut self) -> ((usize, Link), u64, u64) {
        let row = u64::from(self.load.row_bytes);
        let hashed_ns = E5_2640_V2.load_ns + KEY_BYTES.div_ceil(E5_2640_V2.compare_bytes_per_ns);
        let (mut spent_ns, mut local) = (0, 0);
        loop {
            let to = self.random.index(self.links.len());
            spent_ns += hashed_ns;
            let Some(link) = self.links[to] else {
                spent_ns += copy_ns(1, row);
                local += 1;
                continue;
            };
            spent_ns += match self.load.way {
                RowWay::Single => 0,
                RowWay::Copy => copy_ns(1, row),
                RowWay::Slices => E5_2640_V2.load_ns,
            };
            self.filled[to] += 1;
            if self.filled[to] >= self.load.batch {
                self.filled[to] = 0;
                return ((to, link), spent_ns, local);
            }
        }
    }

    /// Returns the WRITE of a batch.
    fn write(&mut self) -> Request {
        let (row, count) = (self.load.row_bytes, self.load.batch);
        let bytes = row * count as u32;
        self.batches += 1;
        let at = self.batches * u64::from(bytes) % (INBOX_BYTES - u64::from(bytes)) / 8 * 8;
        match self.load.way {
            RowWay::Single if row <= 64 => Request::new(Verb::Inline, 0, row, at),
            RowWay::Single | RowWay::Copy => Request::new(Verb::Write, STAGED, bytes, at),
            RowWay::Slices => {
                let stride = SPREAD_BYTES / count;
                let local = (0..count).map(|number| (number * stride, row));
                Request { verb: Verb::Write, local: local.collect(), at }
            }
        }
    }
}

impl PostSequence for RowSource {
    fn next(&mut self, _: u64) -> SequencePost {
        let ((_, link), prepare_ns, local) = self.fill();
        let list = vec![self.write()];
        let units = self.load.batch + local;
        SequencePost { end: 0, link, list, prepare_ns, finish_ns: 0, units }
    }
}

/// Runs a shuffle in which each executor waits for a batch before it fills the next one.
pub(super) fn rate(load: ShuffleLoad) -> Result<ShuffleRate, FabricError> {
    let ExecutorMesh { net, executors } = ExecutorMesh::connect(load.executors, load.policy)?;
    let mut study = Study::new(&net);
    for (number, (node, end, links)) in executors.into_iter().enumerate() {
        let program = RowSource::new(load, number, links);
        let tally = study.tally.clone();
        study.add(&node, SequenceThread { ends: vec![end], program, tally, waiting: None });
    }
    let measured = study.measure(WARM_UP_NS)?;
    Ok(ShuffleRate { rows: measured.rate, busy_ns: measured.busy_ns })
}

/// Where the batch of a destination is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OutgoingStep {
    None,
    Reserving,
    Writing,
}

/// A sender of `farside_apps::shuffle`: a batch for each inbox is filled while another is reserved by FETCH_ADD and
/// written, with its word behind it, by one doorbell.
struct FarsideSender {
    end: Endpoint,
    source: RowSource,
    outgoing: Vec<OutgoingStep>,
    /// The destination whose full batch waits for the one before it.
    blocked: Option<usize>,
    tally: Tally,
}

impl FarsideSender {
    fn reserve(&mut self, (to, link): (usize, Link)) -> Result<(), FabricError> {
        self.outgoing[to] = OutgoingStep::Reserving;
        let tail = Request { verb: Verb::FetchAdd, local: Vec::new(), at: INBOX_BYTES };
        self.end.post(link, &[tail], true)
    }

    fn completed(&mut self, (to, link): (usize, Link)) -> Result<(), FabricError> {
        if self.outgoing[to] == OutgoingStep::Reserving {
            self.outgoing[to] = OutgoingStep::Writing;
            let rows = self.source.write();
            let word = Request::new(Verb::Inline, 0, WORD_BYTES, INBOX_BYTES + 8);
            return self.end.post(link, &[rows, word], true);
        }
        self.outgoing[to] = OutgoingStep::None;
        self.tally.add(self.source.load.batch);
        if self.blocked == Some(to) {
            self.blocked = None;
            return self.reserve((to, link));
        }
        Ok(())
    }
}

impl ThreadProgram for FarsideSender {
    fn run(&mut self) -> Result<Spent, FabricError> {
        if let Some(completion) = self.end.poll()? {
            let links = self.source.links.iter().enumerate();
            let mut links = links.filter_map(|(to, link)| Some((to, (*link)?)));
            let to = links.find(|(_, link)| link.link == completion.link);
            self.completed(to.ok_or(FabricError::Unknown("link"))?)?;
            return Ok(Spent::NOTHING);
        }
        if self.blocked.is_some() {
            return Ok(Spent { then: Then::Poll, ..Spent::NOTHING });
        }
        let ((to, link), spent_ns, local) = self.source.fill();
        self.tally.add(local);
        self.end.net.spend_ns(spent_ns);
        if self.outgoing[to] == OutgoingStep::None {
            self.reserve((to, link))?;
        } else {
            self.blocked = Some(to);
        }
        Ok(Spent::NOTHING)
    }
}

/// Returns the rows a second, in millions, of all senders of `farside_apps::shuffle`.
fn farside(load: ShuffleLoad) -> Result<f64, FabricError> {
    let ExecutorMesh { net, executors } = ExecutorMesh::connect(load.executors, load.policy)?;
    let mut study = Study::new(&net);
    for (number, (node, end, links)) in executors.into_iter().enumerate() {
        let outgoing = vec![OutgoingStep::None; links.len()];
        let source = RowSource::new(load, number, links);
        let tally = study.tally.clone();
        study.add(&node, FarsideSender { end, source, outgoing, blocked: None, tally });
    }
    Ok(study.measure(WARM_UP_NS)?.rate)
}

/// Returns Figure 15: executors and batches.
pub(super) fn batches() -> Result<PaperFigure, FabricError> {
    const MATCHED: SocketPolicy = SocketPolicy::Matched;
    let ways = [
        ("basic", RowWay::Single, SocketPolicy::Any, 1),
        ("NUMA", RowWay::Single, MATCHED, 1),
        ("SGL 4", RowWay::Slices, MATCHED, 4),
        ("SP 4", RowWay::Copy, MATCHED, 4),
        ("SGL 16", RowWay::Slices, MATCHED, 16),
        ("SP 16", RowWay::Copy, MATCHED, 16),
    ];
    let load = |(_, way, policy, batch): (&str, RowWay, SocketPolicy, u64), executors| {
        ShuffleLoad { way, policy, executors, batch, row_bytes: ROW_BYTES }
    };
    let mut lines = Vec::new();
    for one in ways {
        let mut line = PaperLine::new(one.0);
        for executors in EXECUTORS {
            line.points.push((executors as f64, rate(load(one, executors))?.rows));
        }
        lines.push(line);
    }
    let mut line = PaperLine::new("Farside, SGL 16");
    for executors in EXECUTORS {
        line.points.push((executors as f64, farside(load(ways[4], executors))?));
    }
    lines.push(line);
    let [basic, _, _, _, sgl, sp, _] = &lines[..] else {
        return Err(FabricError::Unknown("line"));
    };
    let over_basic = |line: &PaperLine| line.at(16.0) / basic.at(16.0);
    let claims = vec![
        Claim::new("SGL over basic, batch 16, 16 executors", "", over_basic(sgl), 4.8),
        Claim::new("SP over basic, batch 16, 16 executors", "", over_basic(sp), 5.8),
    ];
    Ok(PaperFigure {
        id: "15",
        title: "Shuffle, rows of 64 B",
        across: "executors",
        up: "rows, M/s",
        lines,
        claims,
        remarks: vec![
            "The paper gives neither the bytes of a row nor how far requests overlap: here each batch is completed before the next.",
            "Farside: the requests of a batch of farside_apps::shuffle, a reservation, the rows and a word; a batch of each inbox is in flight while the next one is filled.",
        ],
    })
}

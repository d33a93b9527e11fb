//! A graph and its kernels on the global memory.

use super::csr::Csr;
use super::sequential::{DAMPING, Forest, UNREACHED, base_rank, find, join, share_of, sum_of};
use farside::zerocopy::IntoBytes;
use farside::{
    AllocationHint, AllocationSpec, Error, ErrorCode, GlobalAddress, GlobalSlice, Group, LineSize,
    Pod, Session,
};
use std::ops::Range;

/// Line size of all arrays: ranges take few tag checks.
const LINE_BYTES: usize = 4_096;
/// Entries of rows, and vertices of a forest, that are read at a time.
const CHUNK: usize = 16 << 10;
/// Bits of a word of a bitmap.
const WORD_BITS: usize = u64::BITS as usize;

/// How a kernel accesses the arrays of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessForm {
    /// Ranges, by long and vectored reads and writes; computes on private copies.
    Bulk,
    /// Each element by a read or write of 4 or 8 bytes.
    Words,
}

impl AccessForm {
    /// Reads elements from the one with index `first` on.
    fn read<T: Pod>(
        self,
        session: &mut Session,
        from: &GlobalSlice<T>,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Error> {
        match self {
            Self::Bulk => from.read(session, first, out),
            Self::Words => {
                for (index, value) in out.iter_mut().enumerate() {
                    *value = from.get(session, first + index)?;
                }
                Ok(())
            }
        }
    }

    /// Reads arrays, one after the other; the misses of a vectored read overlap.
    fn read_all<T: Pod + IntoBytes>(
        self,
        session: &mut Session,
        from: &[GlobalSlice<T>],
        mut out: &mut [T],
    ) -> Result<(), Error> {
        let mut parts = Vec::with_capacity(from.len());
        for array in from.iter().filter(|array| !array.is_empty()) {
            let (part, rest) = out.split_at_mut(array.len());
            out = rest;
            match self {
                Self::Bulk => parts.push((array.address(), part.as_mut_bytes())),
                Self::Words => self.read(session, array, 0, part)?,
            }
        }
        session.read_vectored(&mut parts)
    }

    /// Writes elements from the first one on.
    fn write<T: Pod>(
        self,
        session: &mut Session,
        to: &GlobalSlice<T>,
        values: &[T],
    ) -> Result<(), Error> {
        match self {
            Self::Bulk => to.write(session, 0, values),
            Self::Words => values
                .iter()
                .enumerate()
                .try_for_each(|(index, value)| to.set(session, index, *value)),
        }
    }
}

/// Writes an array in order.
struct Writer<T> {
    form: AccessForm,
    to: GlobalSlice<T>,
    /// Values to be written as one range.
    values: Vec<T>,
}

impl<T: Pod> Writer<T> {
    fn new(form: AccessForm, to: GlobalSlice<T>) -> Self {
        Self { form, to, values: Vec::new() }
    }

    /// Writes the next element, which has this index.
    #[inline]
    fn put(&mut self, session: &mut Session, index: usize, value: T) -> Result<(), Error> {
        match self.form {
            AccessForm::Bulk => {
                self.values.push(value);
                Ok(())
            }
            AccessForm::Words => self.to.set(session, index, value),
        }
    }

    /// Writes what is not written yet; the next element is the first one again.
    fn end(&mut self, session: &mut Session) -> Result<(), Error> {
        self.to.write(session, 0, &self.values)?;
        self.values.clear();
        Ok(())
    }
}

/// The rows of this member.
struct Rows {
    form: AccessForm,
    offsets: GlobalSlice<u64>,
    targets: GlobalSlice<u32>,
    /// A copy of the offsets for the bulk form.
    known: Vec<u64>,
    /// A copy of these entries, of whole rows.
    window: Range<usize>,
    entries: Vec<u32>,
    /// Entries that are read at a time; a longer row is read at once.
    window_max: usize,
}

impl Rows {
    /// Returns the number of rows.
    fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the range of a row's entries.
    #[inline]
    fn range(&self, session: &mut Session, row: usize) -> Result<Range<u64>, Error> {
        match self.form {
            AccessForm::Bulk => Ok(self.known[row]..self.known[row + 1]),
            AccessForm::Words => {
                Ok(self.offsets.get(session, row)?..self.offsets.get(session, row + 1)?)
            }
        }
    }

    /// Runs `body` with each of these rows, in ascending order, and its entries.
    fn each(
        &mut self,
        session: &mut Session,
        rows: impl Iterator<Item = usize>,
        mut body: impl FnMut(&mut Session, usize, &[u32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for row in rows {
            let range = self.range(session, row)?;
            let range = range.start as usize..range.end as usize;
            if range.start < self.window.start || range.end > self.window.end {
                let count = range.len().max(self.window_max).min(self.targets.len() - range.start);
                self.window = range.start..range.start + count;
                self.entries.resize(count, 0);
                self.form.read(session, &self.targets, range.start, &mut self.entries)?;
            }
            let first = self.window.start;
            body(session, row, &self.entries[range.start - first..range.end - first])?;
        }
        Ok(())
    }
}

/// The forest of a member: private, or in the global memory.
enum Parents {
    Private(Vec<u32>),
    Global(GlobalSlice<u32>),
}

impl Parents {
    /// Joins the sets of a vertex and of others.
    #[inline(never)]
    fn join(
        &mut self,
        session: &mut Session,
        vertex: u32,
        others: impl Iterator<Item = u32>,
    ) -> Result<(), Error> {
        match self {
            Self::Private(parents) => {
                let Ok(()) = join(&mut parents[..], vertex, others);
                Ok(())
            }
            Self::Global(parents) => join(&mut (session, *parents), vertex, others),
        }
    }

    /// Writes the forest to an array for the other members.
    fn publish(&mut self, session: &mut Session, to: &GlobalSlice<u32>) -> Result<(), Error> {
        match self {
            Self::Private(parents) => to.write(session, 0, parents),
            Self::Global(parents) => (0..to.len()).try_for_each(|vertex| {
                let parent = parents.get(session, vertex)?;
                to.set(session, vertex, parent)
            }),
        }
    }

    fn find(&mut self, session: &mut Session, vertex: u32) -> Result<u32, Error> {
        match self {
            Self::Private(parents) => {
                let Ok(root) = find(&mut parents[..], vertex);
                Ok(root)
            }
            Self::Global(parents) => find(&mut (session, *parents), vertex),
        }
    }
}

impl Forest for (&mut Session, GlobalSlice<u32>) {
    type Error = Error;

    #[inline]
    fn parent(&mut self, vertex: u32) -> Result<u32, Error> {
        self.1.get(self.0, vertex as usize)
    }

    #[inline]
    fn set_parent(&mut self, vertex: u32, parent: u32) -> Result<(), Error> {
        self.1.set(self.0, vertex as usize, parent)
    }
}

/// An undirected graph in the global memory, and the results of its kernels.
///
/// Each member of a group has a range of the rows with about as many entries as the others', and its part of each
/// result, in the memory of its own node.
///
/// *Guarantees*: every kernel is a collective call of all members, with the same arguments, and ends with a barrier:
/// the result is then visible to all. *Errors* of kernels: those of [`Session::read`], [`Session::write`] and
/// [`Group::barrier`]; after a failure the graph has no valid result.
///
/// # Examples
/// ```
/// use farside::{Config, Group, Node};
/// use farside_apps::graph::{AccessForm, Csr, SharedGraph};
/// # fn main() -> Result<(), farside::Error> {
/// # let config = Config::new(format!("graph-{}", std::process::id())).memory_bytes(4 << 20);
/// let node = Node::create(&config)?;
/// let mut session = node.session()?;
/// let mut group = Group::join(&mut session, "graph", 1)?; // one member: in general, one in each process
/// let path = Csr::new(4, &[(0, 1), (1, 2)]);
/// let graph = SharedGraph::build(&mut session, &mut group, &path)?;
/// graph.find_components(&mut session, &mut group, AccessForm::Bulk)?;
/// assert_eq!(graph.labels(&mut session)?, [0, 0, 0, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedGraph {
    rank: usize,
    /// The first vertex of each member, and the number of vertices.
    cuts: Vec<usize>,
    offsets: GlobalSlice<u64>,
    targets: GlobalSlice<u32>,
    /// Results, one part for each member.
    distances: Vec<GlobalSlice<u32>>,
    ranks: Vec<GlobalSlice<f64>>,
    labels: Vec<GlobalSlice<u32>>,
    /// What vertices give to each neighbour, in parts: of an iteration of PageRank, and of the next one.
    shares: [Vec<GlobalSlice<f64>>; 2],
    /// Each member's bitmap of all vertices: those that it has found in a step of a search.
    found: Vec<GlobalSlice<u64>>,
    /// Each member's forest over all vertices, once it has joined its edges.
    forests: Vec<GlobalSlice<u32>>,
    /// This member's forest while it grows.
    growing: GlobalSlice<u32>,
}

impl SharedGraph {
    /// Shares a graph: each member writes its rows. All members call it with the same graph.
    ///
    /// *Cost* in memory of each node: 4 B for an entry of its rows, 40 B for a row, and 8 B and a bit for each vertex
    /// of the graph. It is freed with the nodes.
    ///
    /// # Errors
    /// Those of [`Session::alloc_with`], [`Session::write`] and [`Group::all_gather`].
    pub fn build(session: &mut Session, group: &mut Group, graph: &Csr) -> Result<Self, Error> {
        let (rank, cuts) = (group.rank(), graph.cuts(group.size(), WORD_BITS));
        let (offsets, targets) = graph.part(cuts[rank]..cuts[rank + 1]);
        let rows = |rank: usize| cuts[rank + 1] - cuts[rank];
        let vertices = graph.vertices();
        let shared = Self {
            rank,
            offsets: own(session, offsets.len())?,
            targets: own(session, targets.len())?,
            distances: parts(session, group, rows)?,
            ranks: parts(session, group, rows)?,
            labels: parts(session, group, rows)?,
            shares: [parts(session, group, rows)?, parts(session, group, rows)?],
            found: parts(session, group, |_| vertices.div_ceil(WORD_BITS))?,
            forests: parts(session, group, |_| vertices)?,
            growing: own(session, vertices)?,
            cuts: cuts.clone(),
        };
        shared.offsets.write(session, 0, &offsets)?;
        shared.targets.write(session, 0, targets)?;
        group.barrier(session)?;
        Ok(shared)
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> usize {
        self.cuts[self.cuts.len() - 1]
    }

    /// Overwrites this member's part of all results, so that none is taken for that of a later kernel.
    ///
    /// # Errors
    /// Those of [`Session::write`].
    pub fn clear(&self, session: &mut Session) -> Result<(), Error> {
        self.distances[self.rank].fill(session, UNREACHED - 1)?;
        self.labels[self.rank].fill(session, u32::MAX)?;
        self.ranks[self.rank].fill(session, f64::NAN)
    }

    /// Returns the distances of all vertices from the root of the last search.
    ///
    /// # Errors
    /// Those of [`Session::read`], as for the next two.
    pub fn distances(&self, session: &mut Session) -> Result<Vec<u32>, Error> {
        self.all(session, &self.distances)
    }

    /// Returns the ranks of all vertices.
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    pub fn ranks(&self, session: &mut Session) -> Result<Vec<f64>, Error> {
        self.all(session, &self.ranks)
    }

    /// Returns the components of all vertices.
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    pub fn labels(&self, session: &mut Session) -> Result<Vec<u32>, Error> {
        self.all(session, &self.labels)
    }

    fn all<T: Pod>(&self, session: &mut Session, from: &[GlobalSlice<T>]) -> Result<Vec<T>, Error> {
        let mut values = vec![T::new_zeroed(); self.vertices()];
        AccessForm::Bulk.read_all(session, from, &mut values)?;
        Ok(values)
    }

    /// Returns this member's vertices.
    fn own_vertices(&self) -> Range<usize> {
        self.cuts[self.rank]..self.cuts[self.rank + 1]
    }

    /// Reads an element of an array in parts.
    #[inline]
    fn get<T: Pod>(
        &self,
        session: &mut Session,
        from: &[GlobalSlice<T>],
        vertex: u32,
    ) -> Result<T, Error> {
        let part = self.part_of(vertex);
        from[part].get(session, vertex as usize - self.cuts[part])
    }

    /// Returns the rank of the member that a vertex belongs to.
    #[inline]
    fn part_of(&self, vertex: u32) -> usize {
        let others = &self.cuts[1..self.cuts.len() - 1];
        others.iter().filter(|cut| **cut <= vertex as usize).count()
    }

    /// Returns this member's rows, which the bulk form reads by this number of entries.
    fn rows(&self, session: &mut Session, form: AccessForm, window: usize) -> Result<Rows, Error> {
        let (known, window_max) = match form {
            AccessForm::Bulk => (self.offsets.to_vec(session)?, window),
            AccessForm::Words => (Vec::new(), 0),
        };
        let &Self { offsets, targets, .. } = self;
        Ok(Rows { form, offsets, targets, known, window: 0..0, entries: Vec::new(), window_max })
    }

    /// Finds the distance of each vertex from `root`, level by level: each member marks the neighbours of its
    /// vertices in a bitmap, and reads the bitmaps of all for its own vertices. A `root` that is no vertex reaches
    /// none.
    ///
    /// *Cost*: for each level three barriers, and a bitmap of the vertices written by each member and read by all.
    ///
    /// # Errors
    /// As of all kernels.
    pub fn search(
        &self,
        session: &mut Session,
        group: &mut Group,
        form: AccessForm,
        root: usize,
    ) -> Result<(), Error> {
        let own = self.own_vertices();
        let words = own.start / WORD_BITS..own.end.div_ceil(WORD_BITS);
        let distances = self.distances[self.rank];
        let mut rows = self.rows(session, form, CHUNK)?;
        // Bits of all vertices that this member has found; the bulk form asks no distance.
        let mut seen = Bitmap::new(self.vertices());
        let mut known = vec![UNREACHED; own.len()];
        form.write(session, &distances, &known)?;
        let mut frontier = Vec::new();
        if own.contains(&root) {
            known[root - own.start] = 0;
            distances.set(session, root - own.start, 0)?;
            frontier.push(root - own.start);
        }
        group.barrier(session)?;
        for level in 1.. {
            let mut found = Bitmap::new(self.vertices());
            rows.each(session, frontier.iter().copied(), |session, _, targets| {
                for to in targets {
                    let new = match form {
                        AccessForm::Bulk => seen.insert(*to),
                        AccessForm::Words => self.get(session, &self.distances, *to)? == UNREACHED,
                    };
                    if new {
                        found.insert(*to);
                    }
                }
                Ok(())
            })?;
            form.write(session, &self.found[self.rank], &found.words)?;
            group.barrier(session)?;
            let parts: Result<Vec<_>, _> =
                self.found.iter().map(|found| found.slice(words.clone())).collect();
            let mut reached = vec![0; words.len() * parts.as_ref().map_or(0, Vec::len)];
            form.read_all(session, &parts?, &mut reached)?;
            frontier.clear();
            for word in 0..words.len() {
                let mut bits = reached.iter().skip(word).step_by(words.len()).fold(0, |a, b| a | b);
                while bits != 0 {
                    let row = word * WORD_BITS + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if known[row] == UNREACHED {
                        known[row] = level;
                        frontier.push(row);
                        if form == AccessForm::Words {
                            distances.set(session, row, level)?;
                        }
                    }
                }
            }
            let mut reached = [frontier.len() as u64];
            group.all_reduce(session, &mut reached, |one, two| one + two)?;
            if reached == [0] {
                break;
            }
        }
        if form == AccessForm::Bulk {
            distances.write(session, 0, &known)?;
        }
        group.barrier(session)
    }

    /// Ranks the vertices as [`page_rank`](super::sequential::page_rank): each member sums over its rows, and gives
    /// its part of what vertices give to their neighbours.
    ///
    /// *Guarantees*: the ranks depend on the number of members only by the order in which the rank of vertices without
    /// edges is summed. *Cost*: for each iteration two barriers, and 8 B of each vertex read by each other member.
    ///
    /// # Errors
    /// As of all kernels.
    pub fn rank_pages(
        &self,
        session: &mut Session,
        group: &mut Group,
        form: AccessForm,
        iterations: u32,
    ) -> Result<(), Error> {
        let mut rows = self.rows(session, form, usize::MAX)?;
        let mut ranks = Writer::new(form, self.ranks[self.rank]);
        let mut given = Writer::new(form, self.shares[0][self.rank]);
        let mut dangling = [0.0];
        let first = 1.0 / self.vertices() as f64;
        for row in 0..rows.count() {
            let range = rows.range(session, row)?;
            let neighbours = (range.end - range.start) as usize;
            given.put(session, row, share_of(first, neighbours, &mut dangling[0]))?;
            ranks.put(session, row, first)?;
        }
        ranks.end(session)?;
        let mut known = match form {
            AccessForm::Bulk => vec![0.0; self.vertices()],
            AccessForm::Words => Vec::new(),
        };
        for iteration in 0..iterations {
            given.end(session)?;
            // All have written their parts of these shares, and have read those of the iteration before.
            group.all_reduce(session, &mut dangling, |one, two| one + two)?;
            let base = base_rank(self.vertices(), std::mem::take(&mut dangling[0]));
            let shares = &self.shares[iteration as usize % 2];
            given.to = self.shares[1 - iteration as usize % 2][self.rank];
            if form == AccessForm::Bulk {
                form.read_all(session, shares, &mut known)?;
            }
            let last = iteration + 1 == iterations;
            rows.each(session, 0..rows.count(), |session, row, targets| {
                let sum = match form {
                    AccessForm::Bulk => sum_of(&known, targets),
                    AccessForm::Words => targets.iter().try_fold(0.0, |sum, to| {
                        Ok::<_, Error>(sum + self.get(session, shares, *to)?)
                    })?,
                };
                let rank = base + DAMPING * sum;
                if last {
                    ranks.put(session, row, rank)?;
                }
                given.put(session, row, share_of(rank, targets.len(), &mut dangling[0]))
            })?;
        }
        if iterations > 0 {
            ranks.end(session)?;
        }
        group.barrier(session)
    }

    /// Finds the component of each vertex, named by its lowest vertex: each member joins the edges of its rows in a
    /// forest over all vertices, and then the forests of the others. An edge is joined at one of its two rows.
    ///
    /// *Cost*: two barriers, and 4 B of each vertex written by each member and read by each other.
    ///
    /// # Errors
    /// As of all kernels.
    pub fn find_components(
        &self,
        session: &mut Session,
        group: &mut Group,
        form: AccessForm,
    ) -> Result<(), Error> {
        let (vertices, own) = (self.vertices(), self.own_vertices());
        let alone: Vec<u32> = (0..vertices as u32).collect();
        let mut parents = match form {
            AccessForm::Bulk => Parents::Private(alone),
            AccessForm::Words => {
                form.write(session, &self.growing, &alone)?;
                Parents::Global(self.growing)
            }
        };
        let shift = (usize::BITS - vertices.leading_zeros()).saturating_sub(BLOCK_BITS);
        let mut rows = self.rows(session, form, CHUNK)?;
        rows.each(session, 0..rows.count(), |session, row, targets| {
            let from = (own.start + row) as u32;
            let others = targets.iter().copied().filter(|to| joins(from, *to, shift));
            parents.join(session, from, others)
        })?;
        parents.publish(session, &self.forests[self.rank])?;
        group.barrier(session)?;
        let mut chunk = Vec::new();
        for (rank, forest) in self.forests.iter().enumerate() {
            for first in (0..vertices).step_by(CHUNK) {
                if rank == self.rank {
                    continue;
                }
                chunk.resize((vertices - first).min(CHUNK), 0);
                form.read(session, forest, first, &mut chunk)?;
                for (vertex, parent) in (first as u32..).zip(chunk.iter().copied()) {
                    if vertex != parent {
                        parents.join(session, vertex, std::iter::once(parent))?;
                    }
                }
            }
        }
        let mut labels = Writer::new(form, self.labels[self.rank]);
        for (row, vertex) in own.enumerate() {
            let label = parents.find(session, vertex as u32)?;
            labels.put(session, row, label)?;
        }
        labels.end(session)?;
        group.barrier(session)
    }
}

/// Allocates an array at this node; an empty one has memory too.
fn own<T: Pod>(session: &mut Session, len: usize) -> Result<GlobalSlice<T>, Error> {
    let spec =
        AllocationSpec::new(AllocationHint::Local).line_size(LineSize::from_bytes(LINE_BYTES));
    let array: GlobalSlice<T> = session.alloc_array_with(len.max(1), spec)?;
    array.slice(0..len)
}

/// Allocates this member's part of an array, and returns the parts of all members.
fn parts<T: Pod>(
    session: &mut Session,
    group: &mut Group,
    len: impl Fn(usize) -> usize,
) -> Result<Vec<GlobalSlice<T>>, Error> {
    let part: GlobalSlice<T> = own(session, len(group.rank()))?;
    let all = group.all_gather(session, &[part.address().to_bits()])?;
    let part = |(rank, bits): (usize, &u64)| {
        let address = GlobalAddress::from_bits(*bits);
        let address = address.map_err(|_| Error::new(ErrorCode::ProtocolViolation))?;
        Ok(GlobalSlice::new(address, len(rank)))
    };
    all.iter().flatten().enumerate().map(part).collect()
}

/// Bits of the number of blocks of vertices by which edges are divided among their two rows.
const BLOCK_BITS: u32 = 3;

/// Returns whether an edge is joined at the row of `from`, and not at that of `to`. Within a block that is the higher
/// one; between two blocks it depends on both, so that rows of all blocks join as many, in runs of neighbours.
#[inline]
fn joins(from: u32, to: u32, shift: u32) -> bool {
    let (block, other) = (from >> shift, to >> shift);
    match block == other {
        true => to < from,
        false => ((block ^ other) & 1 == 1) == (block < other),
    }
}

/// A set of vertices.
struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    fn new(vertices: usize) -> Self {
        Self { words: vec![0; vertices.div_ceil(WORD_BITS)] }
    }

    /// Adds a vertex; returns whether it was absent.
    #[inline]
    fn insert(&mut self, vertex: u32) -> bool {
        let word = &mut self.words[vertex as usize / WORD_BITS];
        let bit = 1 << (vertex as usize % WORD_BITS);
        let before = std::mem::replace(word, *word | bit);
        before & bit == 0
    }
}

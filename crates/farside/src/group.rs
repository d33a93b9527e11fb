//! Groups of cooperating sessions: barriers, broadcasts and reductions, as of MPI, over global memory.
//!
//! A group is a named root with a control block: a count of arrivals, the number of the last barrier that
//! was completed, and a line for each member. A **barrier** is the central one with a monotone count
//! (Mellor-Crummey and Scott, *Algorithms for Scalable Synchronization*, TOCS 1991, §3.1): each member adds
//! one to the count; the last to arrive completes the barrier, for which the others wait with a cached copy
//! of its word. The other collective calls exchange values by buffers between two barriers: each member
//! writes its own, and reads those of others.
//!
//! Invariant: members make the same collective calls in the same order. A call that fails at one member
//! breaks the group: it stores [`BROKEN`] as the last barrier, and all further calls fail at all members.

use crate::engine::DIRECTORY_LINE_SIZE;
use crate::session::{Session, Timed};
use crate::typed::{GlobalSlice, Pod};
use crate::{AllocationSpec, Error, ErrorCode, GlobalAddress, NodeId, Root};
use farside_base::waiting::LIVENESS_INTERVAL;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The maximum number of members of a group.
const SIZE_MAX: usize = 4096;
/// Bytes between words that different members write.
const STRIDE: u64 = DIRECTORY_LINE_SIZE.bytes() as u64;
/// Offsets of the control block's words, each in its own line.
const SIZE: u64 = 0;
const ARRIVALS: u64 = STRIDE;
const COMPLETED: u64 = 2 * STRIDE;
const LEFT: u64 = 3 * STRIDE;
const MEMBERS: u64 = 4 * STRIDE;
/// The first word of a member's line once it has left the group.
const GONE: u64 = u64::MAX;
/// The number of the last barrier once the group is broken.
const BROKEN: u64 = u64::MAX;

/// The line of a member in the control block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct MemberLine {
    /// The number of its node, plus one; zero while the rank is free; [`GONE`] once it has left.
    node: u64,
    /// The admission of its node.
    admission: u64,
    /// The address and the size of what it gives in the current call.
    address: u64,
    bytes: u64,
}

const EXCHANGE: u64 = std::mem::offset_of!(MemberLine, address) as u64;

/// A member of a group of sessions, with a rank.
///
/// *Guarantees*: each collective call orders like a [`fence`](Session::fence) of the session that it is
/// given: what any member wrote before the call is visible to all after it. A call fails with `GroupBroken`
/// at all members if the node of one ends, or a call of one fails or times out. *Blocks*: every call waits
/// for all members, at most for the session's timeout.
///
/// # Examples
/// ```
/// # use farside::{Config, Error, Group, Node};
/// # fn main() -> Result<(), Error> {
/// # let mut config = Config::new(format!("group-{}", std::process::id()));
/// # config.memory_bytes = 1 << 20;
/// # config.cache_bytes = 1 << 20;
/// let node = Node::create(&config)?;
/// let sum = |mut session: farside::Session| -> Result<f64, Error> {
///     let mut group = Group::join(&mut session, "solver", 3)?; // in any process of the cluster
///     let mut value = [f64::from(group.rank() as u32 + 1)];
///     group.all_reduce(&mut session, &mut value, |left, right| left + right)?;
///     group.leave(&mut session)?;
///     Ok(value[0])
/// };
/// let sessions = [node.session()?, node.session()?, node.session()?];
/// let threads = sessions.map(|session| std::thread::spawn(move || sum(session)));
/// for thread in threads {
///     assert_eq!(thread.join().unwrap()?, 6.0);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Group {
    name: String,
    control: Root,
    rank: usize,
    size: usize,
    /// The number of barriers that this member has completed.
    completed: u64,
    /// Nodes and admissions of all members, by rank; empty until all have joined.
    nodes: Vec<(NodeId, u64)>,
    /// The buffer of what this member gives, and its size.
    buffer: Option<(GlobalAddress, u64)>,
}

impl Group {
    /// Joins the group of this name with the lowest free rank, and waits until it has `size` members.
    ///
    /// *Guarantees*: the members get the ranks 0 to `size` - 1. *Blocks* until all have joined; bound it by
    /// [`Session::with_timeout`]. *Cost*: some round trips, and for each member a line of 512 B at the home
    /// of the group.
    ///
    /// # Errors
    /// `BadConfiguration` if `size` is zero, above 4,096, or not that of the other members, or if the group
    /// is complete; `GroupBroken` if a member did not wait long enough; and as [`Session::root`].
    pub fn join(session: &mut Session, name: &str, size: usize) -> Result<Self, Error> {
        Self::enter(session, name, size, None)
    }

    /// As [`join`](Self::join), with a given rank.
    ///
    /// # Errors
    /// As `join`, and `BadConfiguration` if the rank is taken or not below `size`.
    pub fn join_as(
        session: &mut Session,
        name: &str,
        size: usize,
        rank: usize,
    ) -> Result<Self, Error> {
        Self::enter(session, name, size, Some(rank))
    }

    fn enter(
        session: &mut Session,
        name: &str,
        size: usize,
        rank: Option<usize>,
    ) -> Result<Self, Error> {
        let bad = |detail: String| Error::with(ErrorCode::BadConfiguration, detail);
        if !(1..=SIZE_MAX).contains(&size) {
            return Err(bad(format!("group size: 1 to {SIZE_MAX}, and it is {size}")));
        }
        let session = &mut session.timed();
        // That of the directory of roots: a small home has no segment of memory for other lines.
        let spec =
            AllocationSpec { line_size: Some(DIRECTORY_LINE_SIZE), ..AllocationSpec::default() };
        let bytes = MEMBERS + size as u64 * STRIDE;
        let root = format!("group/{name}");
        let control = session.root_or_create_with(&root, bytes, spec)?;
        let mut group = Self {
            name: root,
            control,
            rank: 0,
            size,
            completed: 0,
            nodes: Vec::new(),
            buffer: None,
        };
        let at = group.word(SIZE)?;
        let others = session.compare_swap(at, 0, size as u64)?;
        if others != 0 && others != size as u64 {
            return Err(bad(format!("group {name:?} has the size {others}, and not {size}")));
        }
        group.rank = group.take_rank(session, rank)?;
        group.barrier_until(session)?;
        for rank in 0..size {
            let member = group.member(session, rank)?;
            group.nodes.push((NodeId(member.node.wrapping_sub(1) as u16), member.admission));
        }
        Ok(group)
    }

    fn take_rank(&self, session: &mut Timed<'_>, rank: Option<usize>) -> Result<usize, Error> {
        let (node, admission) = session.own_member();
        let ranks = rank.map_or(0..self.size, |rank| rank..rank.saturating_add(1).min(self.size));
        for rank in ranks {
            let at = self.word(MEMBERS + rank as u64 * STRIDE)?;
            let line = MemberLine { node: u64::from(node.0) + 1, admission, address: 0, bytes: 0 };
            let taken = session.atomic(at, size_of::<MemberLine>(), |bytes| {
                let free = bytes.iter().all(|byte| *byte == 0);
                if free {
                    bytes.copy_from_slice(line.as_bytes());
                }
                free
            })?;
            if taken {
                return Ok(rank);
            }
        }
        let detail = match rank {
            Some(rank) => format!("rank {rank} of {} in {:?} is not free", self.size, self.name),
            None => format!("{:?} has all of its {} members", self.name, self.size),
        };
        Err(Error::with(ErrorCode::BadConfiguration, detail))
    }

    /// This member's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The nodes of the members, by rank.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().map(|(node, _)| *node)
    }

    /// Waits until all members have called it.
    ///
    /// *Cost*: one atomic on a shared word, and one read miss after the last member has arrived.
    ///
    /// # Errors
    /// `GroupBroken`, `TimedOut`, and the first failure of an earlier write of the session.
    pub fn barrier(&mut self, session: &mut Session) -> Result<(), Error> {
        let session = &mut session.timed();
        self.barrier_until(session)
    }

    fn barrier_until(&mut self, session: &mut Timed<'_>) -> Result<(), Error> {
        let result = self.try_barrier(session);
        result.map_err(|error| self.break_up(session, error))
    }

    fn try_barrier(&mut self, session: &mut Timed<'_>) -> Result<(), Error> {
        let (arrivals, completed) = (self.word(ARRIVALS)?, self.word(COMPLETED)?);
        let next = self.completed + 1;
        session.fence()?;
        let before = session.fetch_add(arrivals, 1)?;
        let last = if before + 1 == next * self.size as u64 {
            session.compare_swap(completed, self.completed, next)?
        } else {
            self.wait_for(session, completed)?
        };
        if last == BROKEN {
            return Err(Error::with(ErrorCode::GroupBroken, self.name.clone()));
        }
        self.completed = next;
        Ok(())
    }

    /// Waits until the current barrier is completed, while all members are alive.
    fn wait_for(&self, session: &mut Timed<'_>, completed: GlobalAddress) -> Result<u64, Error> {
        loop {
            let check = Some(Instant::now() + LIVENESS_INTERVAL);
            let until = check.min(session.deadline().or(check));
            let done = |value| value > self.completed;
            if let Some(value) = session.wait_word(completed, until, done)? {
                return Ok(value);
            }
            if let Some(node) = self.nodes.iter().find(|member| !session.is_member(**member)) {
                let detail = format!("{:?}: node {} has ended", self.name, node.0);
                return Err(Error::with(ErrorCode::GroupBroken, detail));
            }
            self.check_deadline(session.deadline())?;
        }
    }

    /// Makes all further calls of all members fail; returns the error of this one.
    fn break_up(&self, session: &mut Session, error: Error) -> Error {
        // If this fails, the control block is gone, and the others' calls fail too.
        _ = self.word(COMPLETED).and_then(|at| session.with_timeout(BREAK_UP).swap(at, BROKEN));
        // The home of the control block has ended.
        let lost = matches!(error.code, ErrorCode::NodeLost | ErrorCode::NodeLeft);
        let memory = self.control.address.memory();
        match error.address {
            Some(address) if lost && address.memory() == memory => {
                let detail =
                    format!("{:?}: its home, node {}, has ended", self.name, memory.node());
                Error::with(ErrorCode::GroupBroken, detail)
            }
            _ => error,
        }
    }

    /// Gives every member the values of the member with rank `from`.
    ///
    /// *Units*: slices of the same length at all members. *Cost*: two barriers, one write, and one read of
    /// the values at each other member.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); `BadConfiguration` if the lengths differ, or `from` is no rank.
    pub fn broadcast<T: Pod>(
        &mut self,
        session: &mut Session,
        from: usize,
        values: &mut [T],
    ) -> Result<(), Error> {
        let own = if from == self.rank { values.to_vec() } else { Vec::new() };
        self.exchange(session, &own, |group, session| {
            if from == group.rank {
                return Ok(());
            }
            let given = group.given(session, from)?;
            group.check_len(from, given.len(), values.len())?;
            given.read(session, 0, values)
        })
    }

    /// Returns the values of all members, by rank; the lengths may differ.
    ///
    /// *Cost*: two barriers, one write, and one read from each other member at each member.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_gather<T: Pod>(
        &mut self,
        session: &mut Session,
        values: &[T],
    ) -> Result<Vec<Vec<T>>, Error> {
        self.exchange(session, values, |group, session| {
            (0..group.size).map(|rank| group.read_from(session, rank)).collect()
        })
    }

    /// Combines the values of all members, element by element, in the order of the ranks: all members get
    /// the same result, bit by bit.
    ///
    /// *Units*: slices of the same length at all members. *Cost*: as [`all_gather`](Self::all_gather).
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); `BadConfiguration` if the lengths differ.
    pub fn all_reduce<T: Pod>(
        &mut self,
        session: &mut Session,
        values: &mut [T],
        mut combine: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        let own = values.to_vec();
        self.exchange(session, &own, |group, session| {
            for rank in 0..group.size {
                let given: Vec<T> = group.read_from(session, rank)?;
                group.check_len(rank, given.len(), values.len())?;
                for (value, given) in values.iter_mut().zip(given) {
                    *value = if rank == 0 { given } else { combine(*value, given) };
                }
            }
            Ok(())
        })
    }

    /// Leaves the group after all members have called this, and frees its memory.
    ///
    /// *Guarantees*: any member's node may leave the cluster afterwards without an error at another member.
    /// *Blocks* until all members have called it; one member at the home of the group until all have left.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier). The memory of a broken group stays allocated.
    pub fn leave(mut self, session: &mut Session) -> Result<(), Error> {
        let session = &mut session.timed();
        self.barrier_until(session)?;
        if let Some((address, _)) = self.buffer.take() {
            session.free(address)?;
        }
        let left = self.word(LEFT)?;
        let before = session.fetch_add(left, 1)?;
        let home = self.control.address.home();
        let first_at_home = self.nodes().position(|node| node == home);
        let cleans = first_at_home.map_or(before + 1 == self.size as u64, |at| at == self.rank);
        if first_at_home.is_some() && cleans {
            self.await_others(session)?;
        } else if first_at_home.is_some() {
            // The last access of this member: from here on the control block may be gone.
            let own = self.word(MEMBERS + self.rank as u64 * STRIDE)?;
            session.write_u64(own, GONE)?;
            session.fence()?;
        }
        if cleans {
            let removed = session.remove_root(&self.name);
            // The directory may have left with its home.
            let is_gone = |code| matches!(code, ErrorCode::NodeLost | ErrorCode::NodeLeft);
            if let Err(error) = removed
                && !is_gone(error.code)
            {
                return Err(error);
            }
            session.free(self.control.address)?;
        }
        Ok(())
    }

    /// Waits until all other members have left the group or ended, so that the home of its memory may leave.
    fn await_others(&self, session: &mut Timed<'_>) -> Result<(), Error> {
        let others = self.nodes.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        for (rank, member) in others {
            let line = self.word(MEMBERS + rank as u64 * STRIDE)?;
            while session.is_member(*member) {
                let check = Some(Instant::now() + LIVENESS_INTERVAL);
                let until = check.min(session.deadline().or(check));
                if session.wait_word(line, until, |word| word == GONE)?.is_some() {
                    break;
                }
                self.check_deadline(session.deadline())?;
            }
        }
        Ok(())
    }

    fn check_deadline(&self, deadline: Option<Instant>) -> Result<(), Error> {
        if deadline.is_none_or(|deadline| Instant::now() < deadline) {
            return Ok(());
        }
        let detail = format!("{:?}: not all members have made this call", self.name);
        Err(Error::with(ErrorCode::TimedOut, detail))
    }

    /// Publishes what this member gives, runs `read` when all have done so, and returns when all have read.
    fn exchange<T: Pod, R>(
        &mut self,
        session: &mut Session,
        own: &[T],
        read: impl FnOnce(&Self, &mut Timed<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let session = &mut session.timed();
        let result = self.give(session, own);
        let result = result.and_then(|()| self.try_barrier(session));
        let result = result.and_then(|()| read(self, session));
        let result = result.and_then(|result| {
            self.try_barrier(session)?;
            Ok(result)
        });
        result.map_err(|error| self.break_up(session, error))
    }

    fn give<T: Pod>(&mut self, session: &mut Timed<'_>, own: &[T]) -> Result<(), Error> {
        let bytes = own.as_bytes();
        let room = self.buffer.map_or(0, |(_, room)| room);
        if bytes.len() as u64 > room {
            if let Some((address, _)) = self.buffer.take() {
                session.free(address)?;
            }
            let room = (bytes.len() as u64).next_power_of_two();
            let address = session.alloc(room)?;
            self.buffer = Some((address, room));
        }
        let address = self.buffer.map_or(self.control.address, |(address, _)| address);
        GlobalSlice::new(address, own.len()).write(session, 0, own)?;
        let at = self.word(MEMBERS + self.rank as u64 * STRIDE + EXCHANGE)?;
        session.write_value(at, &[address.to_bits(), bytes.len() as u64])
    }

    /// What a member gives in the current call.
    fn given<T: Pod>(&self, session: &mut Timed<'_>, rank: usize) -> Result<GlobalSlice<T>, Error> {
        let member = self.member(session, rank)?;
        let address = GlobalAddress::from_bits(member.address);
        let address = address.map_err(|_| Error::new(ErrorCode::ProtocolViolation))?;
        let len = member.bytes / (size_of::<T>() as u64).max(1);
        Ok(GlobalSlice::new(address, usize::try_from(len).unwrap_or(usize::MAX)))
    }

    fn read_from<T: Pod>(&self, session: &mut Timed<'_>, rank: usize) -> Result<Vec<T>, Error> {
        let given: GlobalSlice<T> = self.given(session, rank)?;
        given.to_vec(session)
    }

    fn member(&self, session: &mut Timed<'_>, rank: usize) -> Result<MemberLine, Error> {
        if rank >= self.size {
            let detail = format!("rank {rank}: below {}", self.size);
            return Err(Error::with(ErrorCode::BadConfiguration, detail));
        }
        let at = self.word(MEMBERS + rank as u64 * STRIDE)?;
        session.read_value(at)
    }

    fn check_len(&self, rank: usize, given: usize, own: usize) -> Result<(), Error> {
        if given == own {
            return Ok(());
        }
        let detail = format!(
            "{:?}: rank {rank} gives {given} values, and rank {} {own}",
            self.name, self.rank
        );
        Err(Error::with(ErrorCode::BadConfiguration, detail))
    }

    fn word(&self, offset: u64) -> Result<GlobalAddress, Error> {
        let address = self.control.address;
        address.checked_add(offset).ok_or_else(|| Error::at(ErrorCode::OutOfBounds, address))
    }
}

/// The timeout of the store that breaks a group.
const BREAK_UP: Duration = Duration::from_secs(1);

impl Session {
    /// The number and the admission of this session's node.
    fn own_member(&self) -> (NodeId, u64) {
        let engine = self.core.engine();
        (engine.me(), engine.membership().born_of(engine.me()).0)
    }

    fn is_member(&self, (node, admission): (NodeId, u64)) -> bool {
        let engine = self.core.engine();
        engine.membership().is_alive(node) && engine.membership().born_of(node).0 == admission
    }
}

//! Changes of the membership, as a program observes them.

use crate::node::{Member, Node};
use crate::wait::Parker;
use crate::{Error, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// A change of the membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemberChange {
    /// A node has joined.
    Joined(Member),
    /// A node has left, ended, or was removed.
    Gone(Member),
}

/// The changes of the membership since it was created; see [`Node::member_changes`].
#[derive(Debug)]
pub struct MemberChanges {
    node: Node,
    known: BTreeMap<(NodeId, u64), Member>,
    changes: VecDeque<MemberChange>,
}

impl Node {
    /// Observes the membership from now on: further members, and the end of present ones.
    ///
    /// *Cost*: memory for each member.
    ///
    /// # Examples
    /// ```
    /// use farside::{Config, MemberChange, Node};
    /// use std::time::Duration;
    /// # fn main() -> Result<(), farside::Error> {
    /// # let mut config = Config::new(format!("changes-{}", std::process::id()));
    /// # config.memory_bytes = 1 << 20;
    /// # config.cache_bytes = 1 << 20;
    /// let first = Node::create(&config)?;
    /// let mut changes = first.member_changes();
    /// let second = Node::join(&config)?;
    /// let joined = changes.next(Some(Duration::from_secs(10)))?;
    /// assert!(matches!(joined, Some(MemberChange::Joined(member)) if member.node == second.id()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn member_changes(&self) -> MemberChanges {
        let mut changes =
            MemberChanges { node: self.clone(), known: BTreeMap::new(), changes: VecDeque::new() };
        changes.known = changes.alive();
        changes
    }
}

impl MemberChanges {
    /// Returns the next change; `None` if there is none before `timeout`.
    ///
    /// *Guarantees*: every member that this node is linked to is reported once when it joins, and once
    /// when it is gone; a node that comes and goes between two calls may be left out. *Blocks* until there
    /// is a change: this thread spins for the node's spin budget, then sleeps.
    ///
    /// # Errors
    /// `NodeClosed` or `Isolated` when this node is no longer a member.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<MemberChange>, Error> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let parker = Parker::new();
        loop {
            let seen = self.node.member_steps();
            self.update();
            if let Some(change) = self.changes.pop_front() {
                return Ok(Some(change));
            }
            if let Some(code) = self.node.closed_with() {
                return Err(code.into());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
            self.node.watch_members(seen, until, &parker);
        }
    }

    fn alive(&self) -> BTreeMap<(NodeId, u64), Member> {
        let alive = self.node.members().into_iter().filter(|member| member.alive);
        alive.map(|member| ((member.node, member.admission), member)).collect()
    }

    /// Compares the membership with what was known of it.
    fn update(&mut self) {
        let now = self.alive();
        let gone = self.known.iter().filter(|(id, _)| !now.contains_key(id));
        self.changes.extend(gone.map(|(_, member)| MemberChange::Gone(*member)));
        let joined = now.iter().filter(|(id, _)| !self.known.contains_key(id));
        self.changes.extend(joined.map(|(_, member)| MemberChange::Joined(*member)));
        self.known = now;
    }
}

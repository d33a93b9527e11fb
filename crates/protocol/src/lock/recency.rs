//! LRU list of the lines for which this node arbitrates, linked through their entries. It bounds the number of unused
//! entries: own lines are dropped, delegations returned.

use super::canary::mutant;
use super::line::Authority;
use super::own::Locks;
use super::{Effects, LockEffect, LockMessage};
use farside_base::LineAddress;

impl Locks {
    /// Inserts a line that is not in the list at the newest end.
    pub(super) fn link(&mut self, at: LineAddress) {
        let newest = self.newest.replace(at);
        let line = self.line(at);
        line.older = newest;
        line.newer = None;
        match newest {
            Some(other) => self.line(other).newer = Some(at),
            None => self.oldest = Some(at),
        }
        self.listed += 1;
    }

    /// Removes a line from the list.
    pub(super) fn unlink(&mut self, at: LineAddress) {
        let line = self.line(at);
        let (newer, older) = (line.newer.take(), line.older.take());
        match newer {
            Some(other) => self.line(other).older = older,
            None => self.newest = older,
        }
        match older {
            Some(other) => self.line(other).newer = newer,
            None => self.oldest = newer,
        }
        self.listed -= 1;
    }

    /// Notes the use of an idle line in the list; other lines may be dropped.
    pub(super) fn touch(&mut self, at: LineAddress, effects: &mut Effects) {
        if self.newest != Some(at) {
            self.unlink(at);
            self.link(at);
        }
        self.trim(effects);
    }

    /// Drops the oldest idle lines while there are too many.
    pub(super) fn trim(&mut self, effects: &mut Effects) {
        if mutant!(self.rules, EndlessDelegations) {
            return;
        }
        let mut looks = self.listed;
        while self.kept() > self.limits.delegations_max && looks > 0 {
            looks -= 1;
            let Some(at) = self.oldest else {
                return;
            };
            self.unlink(at);
            let line = self.line(at);
            if !line.is_idle() {
                self.link(at);
            } else if let Authority::Delegate { number, ref mut offered, .. } = line.authority {
                *offered = true;
                let message = LockMessage::Offer { line: at, number };
                effects.push(LockEffect::Send { to: at.home(), message });
            } else {
                self.lines.remove(at);
            }
        }
    }
}

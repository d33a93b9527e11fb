//! The list of lines that this node decides about, by last use, as links between their entries. It
//! bounds what is kept though nobody uses it: own lines are forgotten, delegations given back.

use super::canary::Mutant;
use super::line::Authority;
use super::own::Locks;
use super::{Effect, Effects, Message};
use farside_base::LineAddress;

impl Locks {
    /// Puts a line that is not in the list at its new end.
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

    /// Takes a line out of the list.
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

    /// An idle line of the list was used; others may have to go.
    pub(super) fn touch(&mut self, at: LineAddress, effects: &mut Effects) {
        if self.newest != Some(at) {
            self.unlink(at);
            self.link(at);
        }
        self.trim(effects);
    }

    /// Lets the oldest idle lines go while there are too many.
    pub(super) fn trim(&mut self, effects: &mut Effects) {
        if self.rules.has(Mutant::EndlessDelegations) {
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
                let message = Message::Offer { line: at, number };
                effects.push(Effect::Send { to: at.home(), message });
            } else {
                self.lines.remove(at);
            }
        }
    }
}

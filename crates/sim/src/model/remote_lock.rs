//! The model of ticket and queue locks in remote memory: clients that take a ticket, wait for it, renew, unlock, leave,
//! are stopped or die between any two of their requests, and lose answers.
//!
//! Times are not counted but ordered. A watching client may conclude at any time that a lease is over; then the leases
//! that began before it first saw the word are over too, because clocks run at rates within an eighth of each other.
//!
//! Checked: at most one client holds the lock and is within its lease; tokens rise; a client that has left does not
//! hold it; a state in which nothing more can happen has no living client that waits.

use crate::explorer::{Model, Violation};
use farside_protocol::remote_lock::{SlotWord, TicketStep, TicketWait, TicketWord};

/// Any lease: the model only says whether one has passed.
const LEASE_NS: u64 = 8;

/// What a client does next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum LockClientState {
    Idle,
    /// It has posted a READ with the FETCH_ADD, and only the READ has taken effect.
    ReadFirst(TicketWord),
    /// Only the FETCH_ADD has.
    AddedFirst(u64),
    Waits(TicketWait, u64, TicketWord),
    /// It replaces the word by that of the next ticket.
    Skips(TicketWait, u64, [TicketWord; 2]),
    /// Its ticket is served, but half of the lease has passed: it renews before it uses the lock.
    Renews(u64, TicketWord),
    Holds(u64, TicketWord),
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LockClient {
    state: LockClientState,
    /// How often it still takes the lock.
    rounds: u8,
    renewals: u8,
    /// Whether the lease that it has, or would have if it were served, is over.
    is_over: bool,
    /// Whether that began after each of the others first saw the word that it watches.
    after: Vec<bool>,
}

/// What may go wrong, how often.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RemoteLockBudget {
    /// Clients that die.
    pub deaths: u8,
    /// Clients that give up.
    pub leaves: u8,
    /// FETCH_ADDs whose answer is lost.
    pub losses: u8,
    /// Clients that are stopped for longer than a lease.
    pub stops: u8,
}

/// Clients of one lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RemoteLockClients {
    taken: u64,
    served: TicketWord,
    /// A slot each ticket; `None`: a ticket lock.
    slots: Option<Vec<SlotWord>>,
    clients: Vec<LockClient>,
    budget: RemoteLockBudget,
    /// The token of the last holder.
    token: u64,
    wrong: Option<&'static str>,
}

/// A step of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemoteLockAction {
    /// The FETCH_ADD of a ticket takes effect.
    Take(usize),
    /// The FETCH_ADD takes effect, and its answer is lost.
    Lose(usize),
    /// The READ of the word takes effect.
    Read(usize),
    /// The same, and the client finds that the lease of the holder is over.
    Watch(usize),
    /// The client reads the slot of the ticket that is served: its client has left.
    SkipLeft(usize),
    /// The compare-and-swap that skips a ticket.
    Skip(usize),
    /// The compare-and-swap that begins another lease.
    Renew(usize),
    /// The compare-and-swap that passes the lock on.
    Unlock(usize),
    /// The client gives up.
    Leave(usize),
    /// The client dies.
    Die(usize),
}

impl RemoteLockClients {
    /// Creates clients that take a ticket lock, or with `slots` a queue lock, `rounds` times each.
    pub fn new(clients: usize, slots: bool, rounds: u8, budget: RemoteLockBudget) -> Self {
        let client = LockClient {
            state: LockClientState::Idle,
            rounds,
            renewals: 1,
            is_over: false,
            after: vec![false; clients],
        };
        Self {
            taken: 0,
            served: TicketWord(0),
            slots: slots.then(Vec::new),
            clients: vec![client; clients],
            budget,
            token: 0,
            wrong: None,
        }
    }

    /// A lease of a client begins now, if it is served.
    fn begin_lease(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.is_over = false;
        client.after.fill(true);
    }

    /// The client has read the word.
    fn look(
        &mut self,
        at: usize,
        mut wait: TicketWait,
        (ticket, before): (u64, Option<TicketWord>),
        word: TicketWord,
    ) {
        // The first READ counts as ended when both have: the word is watched from now on.
        if before != Some(word) {
            for client in &mut self.clients {
                client.after[at] = false;
            }
        }
        let step = wait.step(word, 0, 0);
        let state = match step {
            TicketStep::Served { .. } if self.clients[at].is_over => {
                LockClientState::Renews(ticket, word)
            }
            TicketStep::Served { .. } => return self.hold(at, ticket, word),
            TicketStep::Overtaken => LockClientState::Idle,
            TicketStep::Skip(_) | TicketStep::Wait(_) => {
                self.begin_lease(at);
                LockClientState::Waits(wait, ticket, word)
            }
        };
        self.clients[at].state = state;
    }

    fn hold(&mut self, at: usize, ticket: u64, word: TicketWord) {
        if ticket < self.token {
            self.wrong = Some("a token does not rise");
        }
        self.token = ticket + 1;
        self.clients[at].state = LockClientState::Holds(ticket, word);
    }

    /// Whether a living client has the ticket that is served.
    fn is_served_alive(&self) -> bool {
        use LockClientState::{AddedFirst, Dead, Holds, Idle, ReadFirst, Renews, Skips, Waits};
        self.clients.iter().any(|client| match &client.state {
            Idle | ReadFirst(_) | Dead => false,
            AddedFirst(ticket)
            | Waits(_, ticket, _)
            | Skips(_, ticket, _)
            | Renews(ticket, _)
            | Holds(ticket, _) => *ticket == self.served.ticket(),
        })
    }

    fn replace(&mut self, before: TicketWord, after: TicketWord) -> bool {
        let replaced = self.served == before;
        if replaced {
            self.served = after;
        }
        replaced
    }

    /// Performs an action of a client that was served, or ends.
    fn apply_served(&mut self, at: usize, action: RemoteLockAction, state: LockClientState) {
        use LockClientState::{Dead, Holds, Idle, Renews, Waits};
        use RemoteLockAction::{Die, Leave, Renew, Unlock};
        match (action, state) {
            (Renew(_), Renews(ticket, word) | Holds(ticket, word)) => {
                let held = matches!(self.clients[at].state, Holds(..));
                if !self.replace(word, word.renewed()) {
                    self.clients[at].state = Idle; // `NotLocked`
                    self.clients[at].rounds -= u8::from(held);
                    return;
                }
                self.begin_lease(at);
                if held {
                    self.clients[at].renewals -= 1;
                    self.clients[at].state = Holds(ticket, word.renewed());
                } else {
                    self.hold(at, ticket, word.renewed());
                }
            }
            (Unlock(_), Holds(_, word)) => {
                let unlocked = self.replace(word, word.passed_on());
                if !unlocked && !self.clients[at].is_over {
                    self.wrong = Some("a ticket is skipped within its lease");
                }
                self.clients[at].state = Idle;
                self.clients[at].rounds -= 1;
            }
            (Leave(_), Waits(_, ticket, _) | Renews(ticket, _)) => {
                self.budget.leaves -= 1;
                self.leave(ticket);
                self.clients[at].state = Idle;
                self.clients[at].rounds -= 1;
            }
            (Die(_), _) => {
                self.budget.deaths -= 1;
                self.clients[at].state = Dead;
            }
            (action, state) => unreachable!("{action:?} in {state:?}"),
        }
    }

    fn has_left(&self, ticket: u64) -> bool {
        let slot = self.slots.as_ref().and_then(|slots| slots.get(ticket as usize));
        slot.is_some_and(|slot| slot.has_left(ticket))
    }

    fn leave(&mut self, ticket: u64) {
        if let Some(slots) = &mut self.slots {
            slots.resize(slots.len().max(ticket as usize + 1), SlotWord(0));
            slots[ticket as usize] = SlotWord(0).left_by(ticket);
        }
    }
}

impl Model for RemoteLockClients {
    type Action = RemoteLockAction;

    fn enabled(&self) -> Vec<RemoteLockAction> {
        use LockClientState::{AddedFirst, Dead, Holds, Idle, ReadFirst, Renews, Skips, Waits};
        use RemoteLockAction::{
            Die, Leave, Lose, Read, Renew, Skip, SkipLeft, Take, Unlock, Watch,
        };
        let mut actions = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            match &client.state {
                Idle if client.rounds == 0 => continue,
                Dead => continue,
                Idle => {
                    actions.extend([Take(at), Read(at)]);
                    if self.budget.losses > 0 {
                        actions.push(Lose(at));
                    }
                }
                ReadFirst(_) => actions.push(Take(at)),
                AddedFirst(_) => actions.push(Read(at)),
                Waits(_, _, seen) if *seen != self.served => actions.push(Read(at)),
                Waits(..) if self.has_left(self.served.ticket()) => actions.push(SkipLeft(at)),
                Waits(..) if self.is_served_alive() && self.budget.stops == 0 => {}
                Waits(..) => actions.push(Watch(at)),
                Skips(..) => actions.push(Skip(at)),
                Renews(..) => actions.push(Renew(at)),
                Holds(..) => {
                    actions.push(Unlock(at));
                    if client.renewals > 0 {
                        actions.push(Renew(at));
                    }
                }
            }
            if self.budget.leaves > 0 && matches!(client.state, Waits(..) | Renews(..)) {
                actions.push(Leave(at));
            }
            if self.budget.deaths > 0 {
                actions.push(Die(at));
            }
        }
        actions
    }

    fn apply(&mut self, action: RemoteLockAction) {
        use LockClientState::{AddedFirst, Idle, ReadFirst, Skips, Waits};
        use RemoteLockAction::{
            Die, Leave, Lose, Read, Renew, Skip, SkipLeft, Take, Unlock, Watch,
        };
        let (Take(at) | Lose(at) | Read(at) | Watch(at) | SkipLeft(at) | Skip(at) | Renew(at)
        | Unlock(at) | Leave(at) | Die(at)) = action;
        let state = self.clients[at].state.clone();
        match (action, state) {
            (Take(_), Idle) => {
                self.begin_lease(at);
                self.clients[at].state = AddedFirst(self.taken);
                self.taken += 1;
            }
            (Take(_), ReadFirst(word)) => {
                let ticket = self.taken;
                self.taken += 1;
                self.look(at, TicketWait::new(ticket, 0, LEASE_NS), (ticket, None), word);
            }
            (Lose(_), _) => {
                self.budget.losses -= 1;
                self.taken += 1;
            }
            (Read(_), Idle) => {
                self.begin_lease(at);
                self.clients[at].state = ReadFirst(self.served);
            }
            (Read(_), AddedFirst(ticket)) => {
                let wait = TicketWait::new(ticket, 0, LEASE_NS);
                self.look(at, wait, (ticket, None), self.served);
            }
            (Read(_), Waits(wait, ticket, before)) => {
                self.look(at, wait, (ticket, Some(before)), self.served)
            }
            (Watch(_), Waits(mut wait, ticket, word)) => {
                self.budget.stops -= u8::from(self.is_served_alive());
                let TicketStep::Skip(next) = wait.step(word, 0, LEASE_NS + LEASE_NS / 8) else {
                    self.wrong =
                        Some("a lease and an eighth have passed, and the ticket is not skipped");
                    return;
                };
                for client in &mut self.clients {
                    client.is_over |= !client.after[at];
                }
                self.begin_lease(at);
                self.clients[at].state = Skips(wait, ticket, [word, next]);
            }
            (SkipLeft(_), Waits(wait, ticket, word)) => {
                self.clients[at].state = Skips(wait, ticket, [word, word.left()]);
            }
            (Skip(_), Skips(wait, ticket, [word, next])) => {
                self.replace(word, next);
                self.clients[at].state = Waits(wait, ticket, word);
            }
            (action, state) => self.apply_served(at, action, state),
        }
    }

    fn violation(&self) -> Option<Violation> {
        let holds = |client: &&LockClient| {
            matches!(client.state, LockClientState::Holds(..)) && !client.is_over
        };
        if self.clients.iter().filter(holds).count() > 1 {
            return Some(Violation::new("two clients hold the lock within their leases"));
        }
        self.wrong.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let is_done =
            |client: &LockClient| client.rounds == 0 || client.state == LockClientState::Dead;
        (!self.clients.iter().all(is_done))
            .then(|| Violation::new("a living client waits for ever"))
    }
}

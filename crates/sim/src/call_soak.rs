//! A soak of remote memory calls under network faults: links break and reconnect, callers die.
//!
//! Each call adds one to a separate cell and echoes a number. Checked: no call runs twice, none is answered twice or
//! with the answer of another call, and each completes.

use crate::fabric::{INFINIBAND, SHARED_MEMORY, SimNet, SimOptions};
use farside::call::{
    CallAnswer, CallOptions, CallServer, Caller, CallerOptions, Program, ServerOptions, Site,
    Ticket,
};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_base::{Access, Capabilities};
use farside_fabric::{Arena, Fabric};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Adds one to the word at the first parameter, echoes the second, and returns the word's old value.
const TALLY: &str = "
.program tally
    r2 = *(u64 *)(r1 + 8)
    *(u64 *)(r10 - 8) = r2
    r2 = *(u64 *)(r1 + 0)
    r1 = 0
    r3 = 1
    call fetch_add
    r6 = r0
    r1 = r10
    r1 += -8
    r2 = 8
    call emit
    r0 = r6
    exit
";

/// Polls after which a round fails.
const TURNS_MAX: u64 = 2_000_000;
/// Polls after which network faults end, so that every call can complete.
const STORM_TURNS: u64 = 20_000;
/// Virtual time of a poll while nothing is in flight.
const IDLE_NS: u64 = 10_000;
/// How soon hosts notice that nothing comes from a peer.
const SILENCE_NS: u64 = 3_000_000;

/// What is drawn for a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    seed: u64,
    callers: u64,
    calls: u64,
    slots: u16,
    /// Nodes are separate hosts with links that break and reconnect.
    hosts: bool,
    immediate: bool,
    deaths: bool,
    /// Calls that callers run themselves, of a thousand.
    here_per_mille: u32,
    cancels_per_mille: u32,
    /// Bytes of comments after the program, so that its object is uploaded in several parts.
    comment_bytes: usize,
}

/// What a round came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended otherwise.
    pub failed: u64,
    /// Links that were cut.
    pub cuts: u64,
    /// Callers that died.
    pub deaths: u64,
}

impl Round {
    /// The round of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6361_6c6c);
        Self {
            seed,
            callers: random.between(1, 3),
            calls: random.between(1, 40),
            slots: *random.pick(&[1, 2, 8]),
            hosts: random.chance(700),
            immediate: random.chance(700),
            deaths: random.chance(200),
            here_per_mille: *random.pick(&[0, 0, 200]),
            cancels_per_mille: *random.pick(&[0, 50]),
            comment_bytes: *random.pick(&[0, 10_000, 100_000]),
        }
    }

    fn options(&self) -> SimOptions {
        let base = if self.hosts { INFINIBAND } else { SHARED_MEMORY };
        let capabilities = Capabilities { immediate: self.immediate, ..base };
        let silence_ns = self.hosts.then_some(SILENCE_NS);
        SimOptions { silence_ns, ..SimOptions::draw(self.seed, capabilities) }
    }

    /// Plays it.
    ///
    /// # Errors
    /// What does not hold, with the line that repeats it.
    pub fn play(&self) -> Result<Tally, String> {
        let told = |text: String| {
            let seed = self.seed;
            format!(
                "{text}\n{self:?}\nto repeat: FARSIDE_SEED={seed} FARSIDE_RUNS=1 cargo test --release \
                 -p farside-sim --test calls"
            )
        };
        Play::new(self).and_then(Play::play).map_err(told)
    }
}

/// A caller and what it has begun.
struct Actor {
    name: String,
    caller: Option<Caller>,
    program: Option<Program>,
    registering: bool,
    begun: u64,
    /// Calls in progress: which of the actor's, and whether it runs here.
    tickets: BTreeMap<Ticket, (u64, bool)>,
    ended: u64,
    over: bool,
}

struct Play<'a> {
    round: &'a Round,
    net: SimNet,
    server: CallServer,
    cells: Arena,
    actors: Vec<Actor>,
    random: Random,
    tally: Tally,
    /// Parted from the server at present.
    parted: Option<String>,
}

fn text(error: Error) -> String {
    error.to_string()
}

impl<'a> Play<'a> {
    fn new(round: &'a Round) -> Result<Self, String> {
        let net = SimNet::new(round.seed, round.options());
        let fabric: Arc<dyn Fabric> = net.fabric("server");
        let options = ServerOptions {
            slots: round.slots,
            sessions: 16,
            grace: round.hosts.then(|| Duration::from_nanos(4 * SILENCE_NS)),
            ..ServerOptions::default()
        };
        let mut server = CallServer::listen(&fabric, "calls", &options).map_err(text)?;
        let bytes = round.callers * round.calls * 8;
        let cells = server.make_region(0, bytes, Access::ALL).map_err(text)?;
        let address = server.address().ok_or("no address")?;
        let actors = (0..round.callers).map(|number| {
            let name = format!("caller{number}");
            let fabric: Arc<dyn Fabric> = net.fabric(&name);
            let options = CallerOptions {
                slots: round.slots,
                patience: round.hosts.then(|| Duration::from_nanos(3 * SILENCE_NS)),
                ..CallerOptions::default()
            };
            let caller = Caller::begin(&fabric, &address, &options).map_err(text)?;
            Ok(Actor {
                name,
                caller: Some(caller),
                program: None,
                registering: false,
                begun: 0,
                tickets: BTreeMap::new(),
                ended: 0,
                over: false,
            })
        });
        let actors = actors.collect::<Result<Vec<_>, String>>()?;
        let random = Random::new(round.seed ^ 0x706c_6179);
        let (tally, parted) = (Tally::default(), None);
        Ok(Self { round, net, server, cells, actors, random, tally, parted })
    }

    fn play(mut self) -> Result<Tally, String> {
        for turn in 0..TURNS_MAX {
            if self.actors.iter().all(|actor| actor.over) {
                self.check_cells()?;
                return Ok(self.tally);
            }
            self.weather(turn);
            let who = self.random.index(self.actors.len() + 1);
            match who.checked_sub(1) {
                None => {
                    self.server.turn();
                }
                Some(at) => self.act(at)?,
            }
            let steps = 1 + self.random.below(8) + turn / 4_000;
            if !(0..steps).all(|_| self.net.step()) {
                // Programs wait for the clock alone.
                self.net.run_until_ns(self.net.now_ns() + IDLE_NS);
            }
        }
        let waiting: Vec<_> = self.actors.iter().map(|actor| actor.tickets.len()).collect();
        Err(format!("no progress: {waiting:?} calls wait at {} ns", self.net.now_ns()))
    }

    /// Links break, are mended, and callers die.
    fn weather(&mut self, turn: u64) {
        if turn > STORM_TURNS {
            self.mend();
            return;
        }
        let who = self.random.index(self.actors.len());
        if self.round.hosts && self.random.chance(2) {
            self.tally.cuts += 1;
            let name = self.actors[who].name.clone();
            if self.random.chance(300) && self.parted.is_none() {
                self.net.part(&name, "server");
                self.parted = Some(name);
            } else {
                self.net.cut(&name, "server");
            }
        }
        if self.random.chance(5) {
            self.mend();
        }
        if self.round.deaths && self.tally.deaths == 0 && self.random.chance(1) {
            self.tally.deaths += 1;
            self.net.kill(&self.actors[who].name);
            let actor = &mut self.actors[who];
            (actor.caller, actor.over) = (None, true);
        }
    }

    fn mend(&mut self) {
        if let Some(name) = self.parted.take() {
            self.net.mend(&name, "server");
        }
    }

    fn act(&mut self, at: usize) -> Result<(), String> {
        let actor = &mut self.actors[at];
        let Some(caller) = &mut actor.caller else { return Ok(()) };
        let over = caller.turn().err();
        let Some(program) = actor.program.clone() else {
            return register(actor, over, self.round.comment_bytes);
        };
        let cell = |number: u64| (at as u64 * self.round.calls + number) * 8;
        while let Some((ticket, end)) = caller.poll_any() {
            let Some((number, here)) = actor.tickets.remove(&ticket) else {
                continue; // the answer to a cancellation
            };
            actor.ended += 1;
            let mut word = [0; 8];
            self.cells.read(cell(number), &mut word).map_err(|_| "no cell")?;
            let cell = u64::from_le_bytes(word);
            check(number, here, &end, cell)?;
            match end {
                Ok(_) => self.tally.answered += 1,
                Err(_) => self.tally.failed += 1,
            }
        }
        let all = actor.begun == self.round.calls;
        if over.is_some() || (all && actor.tickets.is_empty()) {
            if let Some((ticket, _)) = actor.tickets.first_key_value() {
                return Err(format!("{ticket:?} has not ended with its session"));
            }
            actor.over = true;
            return Ok(());
        }
        if !all && self.random.chance(500) {
            let number = actor.begun;
            let parameters = [cell(number), number ^ 0xabcd].map(u64::to_le_bytes).concat();
            let here = self.random.chance(self.round.here_per_mille);
            let runs = if here { Site::Local } else { Site::Remote };
            match caller.invoke(&program, &parameters, CallOptions::new().site(runs)) {
                Ok(Some(ticket)) => {
                    actor.begun += 1;
                    actor.tickets.insert(ticket, (number, here));
                }
                Ok(None) => {}
                // Out of reach at present, where it would run here.
                Err(error) if error.code == ErrorCode::PeerLost => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        if self.random.chance(self.round.cancels_per_mille)
            && let Some((ticket, _)) = actor.tickets.first_key_value()
        {
            let _ = caller.cancel(*ticket);
        }
        Ok(())
    }

    fn check_cells(&self) -> Result<(), String> {
        for at in 0..self.round.callers * self.round.calls {
            let mut word = [0; 8];
            self.cells.read(at * 8, &mut word).map_err(|_| "no cell")?;
            if u64::from_le_bytes(word) > 1 {
                return Err(format!("call {at} ran {} times", u64::from_le_bytes(word)));
            }
        }
        Ok(())
    }
}

/// Registers the program, in a caller that must not block: its requests are made by hand.
fn register(actor: &mut Actor, over: Option<Error>, comment_bytes: usize) -> Result<(), String> {
    let Some(caller) = &mut actor.caller else { return Ok(()) };
    if over.is_some() {
        actor.over = true;
        return Ok(());
    }
    if !actor.registering {
        let object = format!("{TALLY}//{}", "-".repeat(comment_bytes));
        actor.registering = caller.begin_register(object.as_bytes()).map_err(text)?;
        return Ok(());
    }
    match caller.registered() {
        None => {}
        Some(Ok(mut programs)) => actor.program = Some(programs.remove(0)),
        Some(Err(error)) if error.code == ErrorCode::PeerLost => actor.over = true,
        Some(Err(error)) => return Err(error.to_string()),
    }
    Ok(())
}

fn check(
    number: u64,
    here: bool,
    end: &Result<CallAnswer, Error>,
    cell: u64,
) -> Result<(), String> {
    match end {
        Ok(answer) => {
            let echo = (number ^ 0xabcd).to_le_bytes();
            if answer.result != 0 || answer.output != echo || cell != 1 {
                return Err(format!("call {number} was answered {answer:?}, its cell is {cell}"));
            }
        }
        Err(error) => {
            let fits = matches!(error.code, ErrorCode::PeerLost | ErrorCode::CallCancelled);
            // An atomic without completion may take effect while its link breaks.
            if !fits || (cell > 1 && !here) {
                return Err(format!("call {number} ended so: {error}; its cell is {cell}"));
            }
        }
    }
    Ok(())
}

//! Soak test of remote memory calls under network faults: links break and reconnect, callers die.
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

/// Program that adds one to the word at the first parameter, echoes the second, and returns the word's old value.
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

/// Number of polls after which a round fails.
const POLLS_MAX: u64 = 2_000_000;
/// Number of polls after which network faults end, so that every call can complete.
const FAULT_POLLS: u64 = 20_000;
/// Virtual time of a poll while nothing is in flight.
const IDLE_NS: u64 = 10_000;
/// Time within which hosts detect the silence of a peer.
const SILENCE_NS: u64 = 3_000_000;

/// The parameters of a round, drawn from its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    seed: u64,
    callers: u64,
    calls: u64,
    slots: u16,
    /// Whether nodes are separate hosts with links that break and reconnect.
    hosts: bool,
    immediate: bool,
    deaths: bool,
    /// Number of calls in a thousand that callers run locally.
    here_per_mille: u32,
    cancels_per_mille: u32,
    /// Bytes of comments after the program, for an upload of its object in several parts.
    comment_bytes: usize,
}

/// Results of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of calls that were answered.
    pub answered: u64,
    /// Number of calls that failed.
    pub failed: u64,
    /// Number of links that were cut.
    pub cuts: u64,
    /// Number of callers that died.
    pub deaths: u64,
}

impl Round {
    /// Draws the round of a seed.
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

    /// Runs the round.
    ///
    /// # Errors
    /// The violated property, with the command that reproduces it.
    pub fn play(&self) -> Result<Tally, String> {
        let describe = |text: String| {
            let seed = self.seed;
            format!(
                "{text}\n{self:?}\nto repeat: FARSIDE_SEED={seed} FARSIDE_RUNS=1 cargo test --release \
                 -p farside-sim --test calls"
            )
        };
        Play::new(self).and_then(Play::play).map_err(describe)
    }
}

/// A caller and its calls.
struct Actor {
    name: String,
    caller: Option<Caller>,
    program: Option<Program>,
    registering: bool,
    begun: u64,
    /// Calls in progress: the number of each, and whether it runs locally.
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
    /// The caller that is currently partitioned from the server.
    parted: Option<String>,
}

fn text(error: Error) -> String {
    error.to_string()
}

impl<'a> Play<'a> {
    fn new(round: &'a Round) -> Result<Self, String> {
        let net = SimNet::new(round.seed, round.options());
        let fabric: Arc<dyn Fabric> = net.fabric("server");
        let options = ServerOptions::default()
            .slots(round.slots)
            .sessions(16)
            .grace(round.hosts.then(|| Duration::from_nanos(4 * SILENCE_NS)));
        let mut server = CallServer::listen(&fabric, "calls", &options).map_err(text)?;
        let bytes = round.callers * round.calls * 8;
        let cells = server.make_region(0, bytes, Access::ALL).map_err(text)?;
        let address = server.address().ok_or("no address")?;
        let actors = (0..round.callers).map(|number| {
            let name = format!("caller{number}");
            let fabric: Arc<dyn Fabric> = net.fabric(&name);
            let options = CallerOptions::default()
                .slots(round.slots)
                .patience(round.hosts.then(|| Duration::from_nanos(3 * SILENCE_NS)));
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
        for poll in 0..POLLS_MAX {
            if self.actors.iter().all(|actor| actor.over) {
                self.check_cells()?;
                return Ok(self.tally);
            }
            self.inject_faults(poll);
            let who = self.random.index(self.actors.len() + 1);
            match who.checked_sub(1) {
                None => {
                    self.server.progress();
                }
                Some(at) => self.act(at)?,
            }
            let steps = 1 + self.random.below(8) + poll / 4_000;
            if !(0..steps).all(|_| self.net.step()) {
                // The programs wait only for the clock.
                self.net.run_until_ns(self.net.now_ns() + IDLE_NS);
            }
        }
        let waiting: Vec<_> = self.actors.iter().map(|actor| actor.tickets.len()).collect();
        Err(format!("no progress: {waiting:?} calls wait at {} ns", self.net.now_ns()))
    }

    /// Breaks and mends links, and kills callers.
    fn inject_faults(&mut self, poll: u64) {
        if poll > FAULT_POLLS {
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
        let over = caller.progress().err();
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
                // The server is unreachable at present, which stops a call that would run locally.
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

/// Registers the program step by step, since the caller must not block.
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
                return Err(format!("call {number} ended with {error}; its cell is {cell}"));
            }
        }
    }
    Ok(())
}

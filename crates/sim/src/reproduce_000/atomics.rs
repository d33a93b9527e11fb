//! Spinlocks and sequencers: Figure 10 of 000 §III-E, by atomics and by messages.

use super::scene::{
    Connected, Endpoint, Link, Request, Responder, Setup, Study, Tally, ThreadProgram, Verb,
};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use crate::stage::{Spent, Then};
use farside_base::CompletionKind;
use farside_fabric::FabricError;

/// Client machines.
const CLIENTS: [usize; 6] = [1, 2, 4, 6, 8, 14];
/// First and longest back-off of a lock; the first is about the time of an uncontended round.
pub(super) const BACK_OFF_NS: (u64, u64) = (2_000, 64_000);

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AtomicService {
    /// A number.
    Sequencer,
    /// A lock, which it releases at once; with exponential back-off or not.
    Lock { back_off: bool },
}

/// How it asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AccessWay {
    Atomics,
    Messages,
}

/// A message to the server: what, and an unused word.
const TAKE: u64 = 1;
const RELEASE: u64 = 2;

/// A client of a lock or sequencer.
struct Contender {
    end: Endpoint,
    link: Link,
    tally: Tally,
    service: AtomicService,
    way: AccessWay,
    started: bool,
    back_off_ns: u64,
}

impl Contender {
    /// The request for a number or for the lock.
    fn take(&self) -> Request {
        match (self.way, self.service) {
            (AccessWay::Messages, _) => Request::word(Verb::Send([TAKE, 0])),
            (AccessWay::Atomics, AtomicService::Sequencer) => Request::word(Verb::FetchAdd),
            (AccessWay::Atomics, AtomicService::Lock { .. }) => {
                Request::word(Verb::CompareSwap(0, 1))
            }
        }
    }

    /// The release of the lock.
    fn release(&self) -> Request {
        match self.way {
            AccessWay::Messages => Request::word(Verb::Send([RELEASE, 0])),
            AccessWay::Atomics => Request::word(Verb::CompareSwap(1, 0)),
        }
    }

    /// Posts a request, and another one after a release.
    fn post(&mut self, list: &[Request]) -> Result<(), FabricError> {
        self.end.post(self.link, list, self.way == AccessWay::Atomics)
    }

    /// Returns whether the lock was free, if that has been answered.
    fn answer(&mut self) -> Result<Option<bool>, FabricError> {
        let Some(completion) = self.end.poll()? else {
            return Ok(None);
        };
        if completion.kind == CompletionKind::Receive {
            let words = self.end.message(completion.id.0);
            self.end.receive(completion.id.0)?;
            return Ok(Some(words[0] == 0));
        }
        Ok(Some(self.service == AtomicService::Sequencer || self.end.result() == 0))
    }
}

impl ThreadProgram for Contender {
    fn run(&mut self) -> Result<Spent, FabricError> {
        if !std::mem::replace(&mut self.started, true) {
            let take = self.take();
            self.post(&[take])?;
            return Ok(Spent::NOTHING);
        }
        let Some(taken) = self.answer()? else {
            return Ok(Spent { then: Then::Poll, ..Spent::NOTHING });
        };
        let mut list = vec![self.take()];
        if taken {
            self.tally.add(1);
            self.back_off_ns = BACK_OFF_NS.0;
            if self.service != AtomicService::Sequencer {
                list.insert(0, self.release());
            }
        } else if self.service == (AtomicService::Lock { back_off: true }) {
            self.end.net.spend_ns(self.back_off_ns);
            self.back_off_ns = (2 * self.back_off_ns).min(BACK_OFF_NS.1);
        }
        self.post(&list)?;
        Ok(Spent::NOTHING)
    }
}

/// Returns how often a second, in millions, all clients get what they ask for.
fn rate(clients: usize, service: AtomicService, way: AccessWay) -> Result<f64, FabricError> {
    let setup = Setup { spread: true, ..Setup::new(clients) };
    let Connected { net, server, clients, warm_up_ns } = setup.connect()?;
    let mut study = Study::new(&net);
    for (node, end, link) in clients {
        let tally = study.tally.clone();
        let back_off_ns = BACK_OFF_NS.0;
        let contender = Contender { end, link, tally, service, way, started: false, back_off_ns };
        study.add(&node, contender);
    }
    match way {
        AccessWay::Messages => {
            let mut held = 0;
            let answer = move |[what, _]: [u64; 2]| {
                if what == RELEASE {
                    held = 0;
                    return None;
                }
                let before = held;
                held = u64::from(service != AtomicService::Sequencer);
                Some([before, 0])
            };
            study.add(super::scene::SERVER, Responder::new(server, answer)?);
            study.rate(warm_up_ns)
        }
        // The server's port stays open although its program does nothing.
        AccessWay::Atomics => study.rate(warm_up_ns).inspect(|_| drop(server)),
    }
}

fn line(name: &str, service: AtomicService, way: AccessWay) -> Result<PaperLine, FabricError> {
    let mut line = PaperLine::new(name);
    for clients in CLIENTS {
        line.points.push((clients as f64, rate(clients, service, way)?));
    }
    Ok(line)
}

/// Why messages are faster than in the paper.
const SERVER_TIME: &str = "The paper's server takes about 0.8 us a message, and gives no reason; the model's, charged for verbs and one cache miss, takes about 0.35 us, as in the work that the paper cites as [26].";

/// Why contended locks deviate.
const RELEASE_TIME: &str = "A release waits for the attempts of the others at the atomic unit, 420 ns each; the paper says neither how it releases nor the rate of one machine.";

/// Returns Figure 10a: spinlocks.
pub(super) fn locks() -> Result<PaperFigure, FabricError> {
    let [plain, patient] = [false, true].map(|back_off| AtomicService::Lock { back_off });
    let lines = vec![
        line("remote", plain, AccessWay::Atomics)?,
        line("remote, back-off", patient, AccessWay::Atomics)?,
        line("RPC", plain, AccessWay::Messages)?,
        line("RPC, back-off", patient, AccessWay::Messages)?,
    ];
    let [remote, patient, rpc, _] = &lines[..] else {
        return Err(FabricError::Unknown("line"));
    };
    let claims = vec![
        Claim::new("remote, 8 machines", "M/s", remote.at(8.0), 0.31).because(RELEASE_TIME),
        Claim::new("remote, 14 machines over 1", "", remote.at(14.0) / remote.at(1.0), 0.14)
            .because(RELEASE_TIME),
        Claim::range("remote over RPC, 8 machines", "", remote.at(8.0) / rpc.at(8.0), (1.54, 2.80))
            .because(SERVER_TIME),
        Claim::new("back-off over RPC, 14 machines", "", patient.at(14.0) / rpc.at(14.0), 3.63)
            .because(SERVER_TIME),
    ];
    Ok(PaperFigure {
        id: "10a",
        title: "Spinlocks",
        across: "machines",
        up: "locks taken, M/s",
        lines,
        claims,
        remarks: vec!["Local locks are not modelled: no caches of processors."],
    })
}

/// Returns Figure 10b: sequencers.
pub(super) fn sequencers() -> Result<PaperFigure, FabricError> {
    let lines = vec![
        line("remote", AtomicService::Sequencer, AccessWay::Atomics)?,
        line("RPC", AtomicService::Sequencer, AccessWay::Messages)?,
    ];
    let [remote, rpc] = &lines[..] else {
        return Err(FabricError::Unknown("line"));
    };
    let ratio = remote.at(14.0) / rpc.at(14.0);
    let claims = vec![
        Claim::new("remote, 14 machines", "M/s", remote.at(14.0), 2.6).input(),
        Claim::new("remote, 14 machines over 6: flat", "", remote.at(14.0) / remote.at(6.0), 1.0),
        Claim::range("remote over RPC, 14 machines", "", ratio, (1.87, 2.25)).because(SERVER_TIME),
    ];
    Ok(PaperFigure {
        id: "10b",
        title: "Sequencers",
        across: "machines",
        up: "numbers, M/s",
        lines,
        claims,
        remarks: vec!["A local sequencer is not modelled: no caches of processors."],
    })
}

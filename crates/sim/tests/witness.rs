//! Whole nodes on a simulated network between hosts: two that lend memory and a witness, in any order. One of the three
//! dies or is cut off, or one link breaks permanently, while a lender writes.

use farside::{AllocationHint, AllocationSpec, Config, GlobalAddress, Joining, Node, Session};
use farside_sim::cluster::process;
use farside_sim::fabric::{INFINIBAND, SimNet, SimOptions};
use farside_sim::seeds::each_seed;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The simulated fabric notices silence at any time within this one.
const SILENCE_NS: u64 = 2_500_000_000;
/// As of processes: half of the lease is the time in which silence is noticed.
const LEASE_NS: u64 = SILENCE_NS;
/// The time in which any removal ends.
const REMOVAL_NS: u64 = 8 * LEASE_NS;

/// What happens to a member, by its place in the order of admission.
#[derive(Clone, Copy, Debug)]
enum MemberFault {
    Death(usize),
    CutOff(usize),
    Link(usize, usize),
}

struct Trio {
    net: SimNet,
    nodes: Vec<Option<Node>>,
    witness: usize,
}

fn text(error: farside::Error) -> String {
    error.to_string()
}

impl Trio {
    fn start(seed: u64, witness: usize) -> Result<Self, String> {
        let options = SimOptions::draw(seed, INFINIBAND);
        let net = SimNet::new(seed, SimOptions { silence_ns: Some(SILENCE_NS), ..options });
        let mut trio = Self { net, nodes: Vec::new(), witness };
        let lender = Config::new("sim").lease_ns(LEASE_NS).cache_bytes(64 << 10);
        for number in 0..3 {
            let config = match number == witness {
                true => lender.clone().memory_bytes(0).witness(true),
                false => lender.clone().memory_bytes(1 << 20),
            };
            let fabric = trio.net.fabric(&process(number as u16));
            let node = match number {
                0 => Node::create_driven(&config, fabric).map_err(text)?,
                _ => trio.join(&config, fabric)?,
            };
            trio.nodes.push(Some(node));
        }
        Ok(trio)
    }

    fn join(
        &mut self,
        config: &Config,
        fabric: std::sync::Arc<farside_sim::fabric::SimFabric>,
    ) -> Result<Node, String> {
        let mut joining = Joining::start(config, fabric).map_err(text)?;
        let end_ns = self.net.now_ns() + REMOVAL_NS;
        loop {
            if let Some(node) = joining.poll().map_err(text)? {
                return Ok(node);
            }
            self.progress(end_ns)?;
        }
    }

    /// Polls every node, and lets time pass if there was nothing to do.
    fn progress(&self, end_ns: u64) -> Result<(), String> {
        let stepped = self.net.step();
        let busy = self.nodes.iter().flatten().fold(stepped, |busy, node| node.progress() || busy);
        if !busy {
            self.net.run_until_ns(self.net.now_ns() + LEASE_NS / 40);
        }
        match self.net.now_ns() < end_ns {
            true => Ok(()),
            false => Err("it takes too long".to_owned()),
        }
    }

    fn finish<F: Future>(&self, future: F) -> Result<F::Output, String> {
        let (mut future, end_ns) = (pin!(future), self.net.now_ns() + REMOVAL_NS);
        loop {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(output) = polled {
                return Ok(output);
            }
            self.progress(end_ns)?;
        }
    }

    fn lenders(&self) -> impl Iterator<Item = usize> + use<> {
        let witness = self.witness;
        (0..3).filter(move |number| *number != witness)
    }

    fn break_links(&mut self, fault: MemberFault) {
        match fault {
            MemberFault::Death(of) => {
                self.net.kill(&process(of as u16));
                self.nodes[of] = None;
            }
            MemberFault::CutOff(of) => {
                for other in (0..3).filter(|other| *other != of) {
                    self.net.part(&process(of as u16), &process(other as u16));
                }
            }
            MemberFault::Link(one, other) => {
                self.net.part(&process(one as u16), &process(other as u16));
            }
        }
    }

    /// Returns the lenders that still serve their own memory, with the bytes that were written.
    fn serves(&self, words: &mut [(usize, Session, GlobalAddress)]) -> Result<Vec<usize>, String> {
        let mut serving = Vec::new();
        for (lender, session, word) in words {
            if self.nodes[*lender].is_none() {
                continue;
            }
            let (before, mut bytes) = (*lender as u64 + 7, [0; 8]);
            let Ok(()) = self.finish(session.read_async(*word, &mut bytes))? else {
                continue;
            };
            assert_eq!(u64::from_le_bytes(bytes), before, "node {lender} has other bytes");
            let written = self.finish(session.write_async(*word, &before.to_le_bytes()))?;
            if written.is_ok() && self.finish(session.fence_async())?.is_ok() {
                serving.push(*lender);
            }
        }
        Ok(serving)
    }
}

/// The lenders that continue: all but the member at fault. Of a broken link of two lenders, the one that was admitted
/// first; of a link of the witness, both, unless the witness coordinates.
fn expected(trio: &Trio, fault: MemberFault) -> Vec<usize> {
    let lost = match fault {
        MemberFault::Death(of) | MemberFault::CutOff(of) => of,
        MemberFault::Link(0, other) => other,
        MemberFault::Link(one, other) if [one, other].contains(&trio.witness) => trio.witness,
        MemberFault::Link(_, other) => other,
    };
    trio.lenders().filter(|lender| *lender != lost).collect()
}

fn survives(seed: u64) -> Result<(), String> {
    let witness = (seed % 3) as usize;
    let at = (seed / 3 % 3) as usize;
    let fault = match seed / 9 % 3 {
        0 => MemberFault::Death(at),
        1 => MemberFault::CutOff(at),
        _ => [(0, 1), (0, 2), (1, 2)].map(|(one, other)| MemberFault::Link(one, other))[at],
    };
    let mut trio = Trio::start(seed, witness)?;
    let mut words = Vec::new();
    for lender in trio.lenders() {
        let node = trio.nodes[lender].as_ref().ok_or("it lives")?;
        let mut session = node.session().map_err(text)?;
        let spec = AllocationSpec::new(AllocationHint::Local);
        let word = trio.finish(session.alloc_with_async(8, spec))?.map_err(text)?;
        let value = lender as u64 + 7;
        trio.finish(session.write_async(word, &value.to_le_bytes()))?.map_err(text)?;
        trio.finish(session.fence_async())?.map_err(text)?;
        words.push((lender, session, word));
    }
    trio.break_links(fault);
    let settled_ns = trio.net.now_ns() + REMOVAL_NS / 2;
    while trio.net.now_ns() < settled_ns {
        trio.progress(u64::MAX)?;
    }
    let serving = trio.serves(&mut words)?;
    let expected = expected(&trio, fault);
    let described =
        || trio.nodes.iter().flatten().map(Node::describe).collect::<Vec<_>>().join("; ");
    match serving == expected {
        true => Ok(()),
        false => Err(format!("witness {witness}, {fault:?}: {serving:?} serve: {}", described())),
    }
}

#[test]
fn two_nodes_with_a_witness_survive_one_fault() {
    let command = "cargo test -p farside-sim --test witness";
    each_seed(command, 108, |seed| survives(seed).map_err(|why| format!("seed {seed}: {why}")));
}

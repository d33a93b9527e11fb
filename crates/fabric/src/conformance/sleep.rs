//! Arm, sleep, wake.

use super::Subject;
use super::scene::{Scene, Wire, send, silent, together};
use crate::PortSpec;
use farside_base::CompletionKind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// After so long a sleeper that should have been woken is taken for lost.
const WATCHDOG: Duration = Duration::from_secs(60);

fn sleepy_pair(subject: &dyn Subject) -> Option<(Scene<'_>, Wire)> {
    let (scene, wire) = Scene::pair(subject);
    (scene.capabilities.sleep && scene.capabilities.send).then_some((scene, wire))
}

/// Polls node 0 of a side, asleep between, until something has completed or happened to a link.
fn sleep_until_something(side: &mut Scene<'_>) {
    loop {
        side.poll();
        let node = &mut side.nodes[0];
        if !node.completions.is_empty() || !node.events.is_empty() {
            return;
        }
        let waiter = node.port().waiter();
        if !node.port().arm() {
            assert!(waiter.wait(Some(WATCHDOG)), "a wake-up was lost");
        }
        node.port().disarm();
    }
}

pub(super) fn arm_tells_of_what_is_here_already(subject: &dyn Subject) {
    let Some((mut scene, wire)) = sleepy_pair(subject) else {
        return;
    };
    scene.nodes[1].passive = true;
    scene.until("an idle port to be armed", |scene| {
        let idle = !scene.nodes[1].port().arm();
        scene.nodes[1].port().disarm();
        scene.nodes[1].poll();
        idle.then_some(())
    });
    scene.receive(1, 1, 0, 8);
    let slices = [scene.nodes[0].slice(0, 8)];
    scene.post(0, &[silent(1, wire.here, send(&slices))]);
    scene.until("a message to be told of", |scene| {
        let something = scene.nodes[1].port().arm();
        scene.nodes[1].port().disarm();
        something.then_some(())
    });
    scene.nodes[1].passive = false;
    assert_eq!(scene.completion(1).kind, CompletionKind::Receive);
    scene.nodes[1].passive = true;
    scene.nodes[0].port().close(wire.here);
    scene.until("a loss to be told of", |scene| {
        let something = scene.nodes[1].port().arm();
        scene.nodes[1].port().disarm();
        something.then_some(())
    });
    scene.nodes[1].passive = false;
    scene.lost(1, wire.there);
}

pub(super) fn time_runs_out_and_wake_ends_a_sleep(subject: &dyn Subject) {
    let Some((mut scene, _)) = sleepy_pair(subject) else {
        return;
    };
    let waiter = scene.nodes[0].port().waiter();
    scene.nodes[0].port().arm();
    // A wait may return early, so it gets some tries to run out of time.
    let ran_out = (0..1000).any(|_| !waiter.wait(Some(Duration::from_millis(1))));
    assert!(ran_out, "nothing comes, and yet no wait ends by its time");
    assert!(!waiter.wait(Some(Duration::ZERO)));
    for _ in 0..100 {
        waiter.wake();
        assert!(waiter.wait(Some(WATCHDOG)), "a wake before the wait counts");
    }
    std::thread::scope(|threads| {
        for _ in 0..100 {
            let sleeper = threads.spawn(|| waiter.wait(Some(WATCHDOG)));
            waiter.wake();
            assert!(sleeper.join().expect("no panic"), "a wake from another thread");
        }
    });
    scene.nodes[0].port().disarm();
}

pub(super) fn link_events_wake_a_sleeper(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    if !scene.capabilities.sleep {
        return;
    }
    let address = scene.nodes[1].address.clone();
    let queues = [0, 1].map(|node| scene.nodes[node].queue);
    for _ in 0..50 {
        together(
            &mut scene,
            |near| {
                let link = near.nodes[0].port().connect(&address, b"", queues[0]);
                let link = link.expect("a listener to be found");
                sleep_until_something(near);
                near.connected(0, link);
                sleep_until_something(near);
                near.lost(0, link);
                near.nodes[0].port().close(link);
            },
            |far| {
                sleep_until_something(far);
                let (link, _) = far.requested(0);
                let accepted = far.nodes[0].port().accept(link, b"", queues[1]);
                accepted.expect("to be accepted");
                far.nodes[0].port().close(link);
            },
        );
    }
}

pub(super) fn link_events_wake_who_sleeps_on_another_port(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    if !scene.capabilities.sleep {
        return;
    }
    let address = scene.nodes[1].address.clone();
    let queues = [0, 1].map(|node| scene.nodes[node].queue);
    let mut other = scene.nodes[1].fabric.open(&PortSpec { listen: None }).expect("a port");
    let waiter = other.waiter();
    scene.nodes[1].port().wake_also(other.waiter());
    // An accepting port may find its peer gone, and reports that; in this case it must not.
    let accepts = AtomicU32::new(0);
    for round in 1..=20 {
        together(
            &mut scene,
            |near| {
                let link = near.nodes[0].port().connect(&address, b"", queues[0]);
                let link = link.expect("a listener to be found");
                near.connected(0, link);
                let accepted = || (accepts.load(Ordering::Acquire) == round).then_some(());
                near.until("the link to be accepted", |_| accepted());
                near.nodes[0].port().close(link);
            },
            |far| {
                // Asleep on the other port, which nothing happens to.
                let mut sleep_until_event = |far: &mut Scene<'_>| {
                    far.poll();
                    while far.nodes[0].events.is_empty() {
                        if !other.arm() {
                            assert!(waiter.wait(Some(WATCHDOG)), "a wake-up was lost");
                        }
                        other.disarm();
                        far.poll();
                    }
                };
                sleep_until_event(far);
                let (link, _) = far.requested(0);
                let accepted = far.nodes[0].port().accept(link, b"", queues[1]);
                accepted.expect("to be accepted");
                accepts.store(round, Ordering::Release);
                sleep_until_event(far);
                far.lost(0, link);
                far.nodes[0].port().close(link);
            },
        );
    }
}

pub(super) fn no_wake_up_is_lost(subject: &dyn Subject) {
    const ROUNDS: u64 = 2000;
    let Some((mut scene, wire)) = sleepy_pair(subject) else {
        return;
    };
    // Each side answers the other's message and sleeps; from time to time it is busy for a while, so
    // that messages arrive before, between and after the steps of arming.
    let side = |side: &mut Scene<'_>, wire: &Wire, first: bool| {
        let slices = [side.nodes[0].slice(0, 8)];
        let mut random = farside_base::Random::new(u64::from(first));
        for round in 0..ROUNDS {
            if first {
                side.post(0, &[silent(1, wire.here, send(&slices))]);
            }
            for _ in 0..random.below(64) {
                std::hint::spin_loop();
            }
            sleep_until_something(side);
            assert_eq!(side.completion(0).id.0, round);
            side.receive(0, round + 1, 64, 8);
            if !first {
                side.post(0, &[silent(1, wire.here, send(&slices))]);
            }
        }
    };
    scene.receive(0, 0, 64, 8);
    scene.receive(1, 0, 64, 8);
    together(&mut scene, |near| side(near, &wire, true), |far| side(far, &wire.reversed(), false));
}

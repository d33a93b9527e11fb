//! Shuffles under every schedule of a weak fabric, with programs that are stopped or die.

use super::*;
use farside::ErrorCode;
use farside::fabrics::Fabric;
use farside::runtime::pause;
use farside_sim::lent::{NAP, PATIENCE, Scene};
use farside_sim::seeds::each_seed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SENDERS: u16 = 2;
const RECEIVERS: usize = 2;
const ROWS: u64 = 60;
const STEPS: u64 = 4_000;

/// What the programs of a run share.
#[derive(Default)]
struct RowsReceived {
    lent: AtomicU64,
    /// Of receivers that have ended.
    received: Mutex<Vec<ReceiverEnd>>,
}

/// The number of a receiver, its rows and its error.
type ReceiverEnd = (usize, Vec<[u64; 2]>, Option<ShuffleError>);

fn row(sender: u16, number: u64) -> [u8; 16] {
    let mut row = [0; 16];
    row[..8].copy_from_slice(&(number % 7).to_le_bytes());
    row[8..].copy_from_slice(&(u64::from(sender) << 32 | number).to_le_bytes());
    row
}

/// A program that sends; after the death of another one its receivers may have failed.
fn send(fabric: &Arc<dyn Fabric>, number: u16, ends: &RowsReceived) -> Result<(), ShuffleError> {
    while ends.lent.load(Ordering::Relaxed) < RECEIVERS as u64 {
        pause(NAP);
    }
    let addresses: Vec<String> = (0..RECEIVERS).map(|inbox| format!("inbox-{inbox}")).collect();
    let options = SenderOptions { batch_rows: 5, ..SenderOptions::default() };
    // Receivers that gave up lend no more.
    let patience = Duration::from_secs(5);
    let mut sender = ShuffleSender::connect(fabric, number, &addresses, options, patience)?;
    for at in 0..ROWS {
        sender.push(&row(number, at), PATIENCE)?;
    }
    sender.finish(PATIENCE)
}

fn receive(fabric: &Arc<dyn Fabric>, number: usize, ends: &RowsReceived) {
    let options =
        InboxOptions { senders: SENDERS, batch_bytes: 256, slots: 4, ..InboxOptions::default() };
    let mut inbox = ShuffleInbox::lend(fabric, &format!("inbox-{number}"), &options).unwrap();
    ends.lent.fetch_add(1, Ordering::Relaxed);
    let (mut batch, mut rows) = (RowBatch::default(), Vec::new());
    // A sender that has died before it connected is late for ever.
    let patience = Duration::from_secs(2);
    let error = loop {
        match inbox.receive(&mut batch, patience) {
            Ok(true) => rows.extend(batch.rows().map(|row| {
                let word = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
                [word(0), word(8)]
            })),
            Ok(false) => break None,
            Err(error) => break Some(error),
        }
    };
    ends.received.lock().unwrap().push((number, rows, error));
}

fn simulate(seed: u64, with_death: bool) -> Result<(), String> {
    let mut scene = Scene::new(seed, 4096)?;
    let ends = Arc::<RowsReceived>::default();
    let mut names = Vec::new();
    for number in 0..SENDERS {
        let ends = Arc::clone(&ends);
        names.push(format!("sender-{number}"));
        scene.program(&names[number as usize], move |fabric| {
            let sent = send(&fabric, number, &ends);
            let is_lost = matches!(&sent, Err(ShuffleError::Receiver(..)));
            assert!(sent.is_ok() || with_death && is_lost, "{sent:?}");
        })?;
    }
    for number in 0..RECEIVERS {
        let ends = Arc::clone(&ends);
        names.push(format!("receiver-{number}"));
        scene.program(&format!("receiver-{number}"), move |fabric| {
            receive(&fabric, number, &ends);
        })?;
    }
    scene.stop(&names, STEPS, Duration::from_millis(500));
    if with_death {
        scene.kill("sender-0", STEPS);
    }
    scene.run()?;
    let received = std::mem::take(&mut *ends.received.lock().unwrap());
    check(&received, with_death).map_err(|why| scene.trouble(&why))
}

/// Checks that each receiver has the rows that are for it, in order and once; of a sender that has died the first ones.
fn check(received: &[ReceiverEnd], with_death: bool) -> Result<(), String> {
    for (number, rows, error) in received {
        let code = error.as_ref().map(ShuffleError::code);
        let is_lost = matches!(code, Some(ErrorCode::PeerLost | ErrorCode::TimedOut));
        if error.is_some() && !(with_death && is_lost) {
            return Err(format!("receiver {number}: {error:?}"));
        }
        for sender in 0..SENDERS {
            let its = |row: &&[u64; 2]| row[1] >> 32 == u64::from(sender);
            let rows: Vec<[u64; 2]> = rows.iter().filter(its).copied().collect();
            let to_it = |row: &[u8; 16]| destination(&row[..8], RECEIVERS) == *number;
            let sent = (0..ROWS).map(|at| row(sender, at)).filter(to_it);
            let word = |row: &[u8; 16], at: usize| {
                u64::from_le_bytes(std::array::from_fn(|byte| row[at + byte]))
            };
            let sent: Vec<[u64; 2]> = sent.map(|row| [word(&row, 0), word(&row, 8)]).collect();
            let are_right = if error.is_some() { sent.starts_with(&rows) } else { sent == rows };
            if !are_right {
                return Err(format!("receiver {number} of {sender}: {rows:?}, {error:?}"));
            }
        }
    }
    Ok(())
}

const COMMAND: &str = "cargo test -p farside-apps --lib simulated_rows";

#[test]
fn simulated_rows_arrive_once_and_in_order() {
    each_seed(COMMAND, 15, |seed| simulate(seed, false));
}

#[test]
fn simulated_rows_of_dying_senders_arrive_in_part() {
    each_seed(COMMAND, 15, |seed| simulate(seed, true));
}

//! The example of docs/first-remote-memory-call.md: calls of a program that clang has made.
//!
//! `cargo run -p farside --example remote_call -- lists search.o 5 7 9`, where `lists` is what `farside rmc
//! serve` serves at on this machine, and the numbers are keys.
#![expect(clippy::print_stdout, reason = "an example shows what came out")]

use farside::call::{Caller, CallerOptions};
use farside::fabrics;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [executor, object, keys @ ..] = &arguments[..] else {
        return Err("usage: remote_call EXECUTOR OBJECT KEY...".into());
    };
    let fabric = fabrics::shared_memory()?; // or a TcpFabric, which reaches other hosts
    let mut caller = Caller::connect(&fabric, executor, &CallerOptions::default())?;
    let programs = caller.register(&std::fs::read(object)?)?; // verified there
    let search = programs.first().ok_or("the object has no program")?;

    // Begun together they share a doorbell, and are in flight at the same time.
    let mut calls = Vec::new();
    for key in keys {
        let key: u64 = key.parse()?;
        let parameters = [64, key].map(u64::to_le_bytes).concat(); // the list's head, the key
        let call = caller.invoke(search, &parameters)?.ok_or("more calls than slots")?;
        calls.push((key, call));
    }
    for (key, call) in calls {
        let answer = caller.wait(call, Duration::from_secs(10))?;
        println!("{key}: {}", answer.result.cast_signed());
    }
    Ok(())
}

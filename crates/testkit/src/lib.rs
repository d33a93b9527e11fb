//! What tests of all crates share: child processes ([`Process`]), nodes of a fabric ([`TestNode`]), one test per
//! fabric ([`on_each_fabric!`]), and the generator of pseudo-random numbers ([`Random`]).
//!
//! Everything here panics on failure, as a test does.
#![forbid(unsafe_code)]

mod node;
mod process;

pub use farside_base::Random;
pub use node::{RECEIVE_BYTES, TestNode};
pub use process::{Folder, Process, await_parent, free_address, role, say, unique_name};
pub use rustix::process::Signal;

use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
pub const WATCHDOG: Duration = Duration::from_secs(180);

/// Waits until a condition holds, and leaves the processor to what is tested between two looks.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    let mut looks = 0_u64;
    while !holds() {
        assert!(start.elapsed() < WATCHDOG, "{what}");
        looks += 1;
        match looks {
            ..64 => std::thread::yield_now(),
            _ => std::thread::park_timeout(Duration::from_micros(200)),
        }
    }
}

/// Makes one test per fabric of each function: `shm::name`, `tcp::name`; a function takes the fabric's name.
///
/// After `with`, the path of a function that makes the argument from the name.
///
/// ```
/// fn loads_return_stores(fabric: &str) {
///     assert!(!fabric.is_empty());
/// }
/// farside_testkit::on_each_fabric! { shm tcp => (loads_return_stores) }
/// ```
#[macro_export]
macro_rules! on_each_fabric {
    ($($fabric:ident)* => $tests:tt) => {
        $(mod $fabric { $crate::on_each_fabric!(@tests $fabric (std::convert::identity) $tests); })*
    };
    ($($fabric:ident)* => $tests:tt with $make:path) => {
        $(mod $fabric { $crate::on_each_fabric!(@tests $fabric ($make) $tests); })*
    };
    (@tests $fabric:ident $make:tt ($($name:ident)*)) => {
        $(#[test] fn $name() { super::$name(&$make(stringify!($fabric))) })*
    };
}

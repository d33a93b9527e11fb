//! What the tests share.

use std::io::Write;

/// Says what is not tested here, and why. Past the test harness, which keeps what tests that pass
/// print to itself: whoever runs the tests on a machine without RDMA shall see what that leaves out.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "skipped: {why}");
}

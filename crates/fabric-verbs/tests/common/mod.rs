//! Shared code of the tests.

use std::io::Write;

/// Prints what is not tested here, and why. Written past the test harness, which captures the output of
/// tests that pass, so that a run on a machine without RDMA shows what it leaves out.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "skipped: {why}");
}

//! Progress messages.

/// Prints a progress message.
pub(super) fn say(text: &str) {
    eprintln!("rdma-guest: {text}");
}

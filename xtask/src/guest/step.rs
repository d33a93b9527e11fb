//! The guest as a step of `cargo xtask ci`.

use super::boot::End;
use super::cache::Cache;
use super::image::{self, Images};
use super::options::{Job, Options};
use super::{check, run};
use crate::debian::is_root;
use crate::shell::Shell;

/// Checks that the guest works and that the tests of `suites` pass in it. Each suite is a list of
/// options for `cargo test`, such as `["-p", "farside-fabric", "--lib"]`; the time limit of `options`
/// holds for each.
///
/// With the engine uml the first run on a machine builds a kernel, which takes minutes; with auto that
/// run uses QEMU, which is ready sooner and runs everything slower. Where the guest cannot be had, the
/// step is skipped: on other processors, and where packages are missing that only root can install.
pub(crate) fn rdma(shell: &mut Shell, options: &Options, suites: &[&[&str]]) -> Result<(), String> {
    let images = Images::new(Cache::new(options.cache.as_deref())?);
    let engine = images.engine(options);
    if let Err(text) = images.meet_needs(engine) {
        if is_root() && image::is_supported() {
            return Err(text);
        }
        shell.skipped.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
        return Ok(());
    }
    shell.tests += check::run_all(&images, options)?;
    for suite in suites {
        let mut options = options.clone();
        let cargo = suite.iter().map(|&word| word.to_owned()).collect();
        options.job = Job::Tests { cargo, arguments: Vec::new() };
        let outcome = run(&images, &options, true)?;
        let passed = shell.count(&outcome.stdout);
        let again = format!("cargo xtask rdma-guest --tests {}", suite.join(" "));
        match outcome.end {
            End::Code(0) if passed > 0 => {}
            End::Code(0) => return Err(format!("no test ran: {again}")),
            End::Failed(text) => return Err(format!("{text}\nfailed: {again}")),
            End::Code(_) | End::Timeout => return Err(format!("failed: {again}")),
        }
    }
    Ok(())
}

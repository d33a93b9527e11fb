//! Registrations in progress are limited in number and memory. A separate test executable, since it measures the
//! memory of the whole process.

use farside::call::{CallServer, Caller, CallerOptions, Program, Quota, ServerOptions};
use farside::{Error, ErrorCode};
use farside_fabric::{Fabric, MemFabric};
use std::sync::Arc;

/// Returns a program whose verification needs all the working memory allowed: no two iterations are equal, and no
/// counter bounds them.
fn hungry(number: usize) -> String {
    format!(
        ".program p{number}\nr0 = {}\nagain:\nr0 *= 16777259\nr0 ^= 12345\nif r0 != 0 goto again\nexit",
        number + 1
    )
}

struct Ends {
    server: CallServer,
    callers: Vec<Caller>,
}

type Registered = Option<Result<Vec<Program>, Error>>;

impl Ends {
    /// Opens this many callers of each tenant, alternating between tenants.
    fn new(name: &str, options: &ServerOptions, callers: usize, tenants: &[&str]) -> Self {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let mut server = CallServer::listen(&fabric, name, options).expect("an executor");
        let address = server.address().expect("an address");
        let caller = |tenant: &&str| {
            let tenant = (*tenant).to_owned();
            let options = CallerOptions::default().tenant(tenant);
            Caller::begin(&fabric, &address, &options).expect("a caller")
        };
        let callers = (0..callers).flat_map(|_| tenants.iter().map(caller)).collect();
        server.progress();
        Self { server, callers }
    }

    /// Registers a separate object with every caller; returns the results in the order of the callers, and the
    /// order in which they arrived. `look` sees the executor after each poll.
    fn register(&mut self, mut look: impl FnMut(&CallServer)) -> (Vec<Registered>, Vec<usize>) {
        let mut ends: Vec<Registered> = self.callers.iter().map(|_| None).collect();
        let (mut begun, mut order) = (vec![false; ends.len()], Vec::new());
        while order.len() < ends.len() {
            self.server.progress();
            look(&self.server);
            for (at, caller) in self.callers.iter_mut().enumerate() {
                caller.progress().expect("a living executor");
                if !begun[at] {
                    begun[at] = caller.begin_register(hungry(at).as_bytes()).expect("an object");
                } else if ends[at].is_none() {
                    ends[at] = caller.registered();
                    order.extend(ends[at].as_ref().map(|_| at));
                }
            }
        }
        (ends, order)
    }
}

fn options(walked_max: u32) -> ServerOptions {
    let mut options = ServerOptions::default().slots(4);
    (options.limits.walked_max, options.limits.widened_max) = (walked_max, walked_max);
    options
}

#[test]
fn tenant_has_one_verification_at_a_time_and_all_are_answered() {
    let mut ends = Ends::new("one-at-a-time", &options(2_000), 24, &["a"]);
    let (mut verified_most, mut waiting_most, mut bytes_most) = (0, 0, 0);
    let (registered, _) = ends.register(|server| {
        let (bytes, waiting, verified) = server.registering();
        (bytes_most, waiting_most) = (bytes.max(bytes_most), waiting.max(waiting_most));
        verified_most = verified.max(verified_most);
    });
    assert!(registered.iter().flatten().all(Result::is_ok), "{registered:?}");
    assert_eq!((verified_most, waiting_most), (1, 23));
    let objects: u64 = (0..24).map(|at| hungry(at).len() as u64).sum();
    assert_eq!((bytes_most, ends.server.registering()), (objects, (0, 0, 0)));
}

#[test]
fn tenants_are_verified_round_robin() {
    let mut options = options(2_000);
    options.verifications = 1;
    for tenant in ["many", "few"] {
        options.tenants.insert(tenant.to_owned(), Quota::DEFAULT);
    }
    let mut ends =
        Ends::new("tenants", &options, 1, &["many", "many", "many", "many", "many", "few"]);
    let (registered, order) = ends.register(|server| assert!(server.registering().2 <= 1));
    assert!(registered.iter().flatten().all(Result::is_ok), "{registered:?}");
    assert_eq!(order.iter().position(|at| *at == 5), Some(1), "second in order: {order:?}");
}

#[test]
fn registrations_over_limits_are_refused_and_may_be_retried() {
    let bytes = hungry(0).len() as u64;
    let of_quota = Quota { state_bytes: 3 * bytes, ..Quota::DEFAULT };
    for (registrations, registering_bytes_max, quota, says) in [
        (3, u64::MAX, Quota::DEFAULT, "has 3 registrations in progress, which is its limit"),
        (
            64,
            3 * bytes + 9,
            Quota::DEFAULT,
            "are being registered by all tenants: register it again",
        ),
        (64, u64::MAX, of_quota, "or wait for those that are being registered"),
    ] {
        let options = options(2_000)
            .registrations(registrations)
            .registering_bytes_max(registering_bytes_max)
            .quota(quota);
        let mut ends = Ends::new("too-much", &options, 5, &["a"]);
        let (registered, _) = ends.register(|_| {});
        let mut refused = 0;
        for error in registered.iter().flatten().filter_map(|end| end.as_ref().err()) {
            assert_eq!(error.code, ErrorCode::OverQuota, "{error}");
            refused += u32::from(error.detail.contains(says));
        }
        assert!(refused > 0, "{says}: {registered:?}");
        assert_eq!(ends.server.registering(), (0, 0, 0));
    }
    let mut ends = Ends::new("again", &options(2_000).registrations(1), 2, &["a"]);
    let (first, _) = ends.register(|_| {});
    assert_eq!(first.iter().flatten().filter(|end| end.is_err()).count(), 1, "{first:?}");
    ends.callers.remove(0);
    let (again, _) = ends.register(|_| {});
    assert!(again.iter().flatten().all(Result::is_ok), "{again:?}");
}

#[test]
fn callers_leaving_during_registration_free_everything() {
    let mut ends = Ends::new("leave", &options(100_000), 6, &["a"]);
    for index in 0..6 {
        while !ends.callers[index].begin_register(hungry(index).as_bytes()).expect("an object") {
            ends.server.progress();
            ends.callers[index].progress().expect("a living executor");
        }
    }
    while ends.server.registering().1 < 5 {
        ends.server.progress();
        ends.callers.iter_mut().for_each(|caller| caller.progress().map_or((), |_| ()));
    }
    ends.callers.clear();
    while ends.server.sessions() > 0 {
        ends.server.progress();
    }
    assert_eq!(ends.server.registering(), (0, 0, 0));
}

/// Returns the resident memory of this process.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4_096
}

#[cfg(target_os = "linux")]
#[test]
#[expect(clippy::print_stderr, reason = "the figures are what it is for")]
fn many_registrations_use_the_memory_of_one() {
    let mut ends = Ends::new("resident", &options(100_000), 36, &["a"]);
    ends.server.progress();
    let before = resident_bytes();
    let mut most = before;
    let (registered, _) = ends.register(|_| most = most.max(resident_bytes()));
    assert!(registered.iter().flatten().all(Result::is_ok), "{registered:?}");
    let after = resident_bytes();
    eprintln!("resident before {before} B, at most {most} B, after {after} B");
    // Other tests of this executable run concurrently, each with one verification.
    let proof = farside::call::rmc::Verification::BYTES_MAX as u64;
    assert!(most - before < 6 * proof, "{} B more for 36 registrations", most - before);
}

//! Two streams over a pipe in memory, and peers that must be refused.

use super::{
    BootstrapError, ClusterKey, HandshakeLimits, HostAddress, Identity, Protect, Security, Stream,
    Transfer,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::rc::Rc;
use std::time::Duration;

/// Bytes in flight in one direction.
#[derive(Default)]
struct ByteQueue {
    bytes: VecDeque<u8>,
    /// All bytes ever sent.
    record: Vec<u8>,
    ended: bool,
}

/// One end of a pipe that moves at most `step` bytes at a time and holds at most `room`.
#[derive(Clone)]
struct Pipe {
    from: Rc<RefCell<ByteQueue>>,
    to: Rc<RefCell<ByteQueue>>,
    step: usize,
    room: usize,
}

fn pipe(step: usize, room: usize) -> [Pipe; 2] {
    let (one, other) = (Rc::<RefCell<ByteQueue>>::default(), Rc::<RefCell<ByteQueue>>::default());
    let near = Pipe { from: Rc::clone(&one), to: Rc::clone(&other), step, room };
    [near, Pipe { from: other, to: one, step, room }]
}

impl Read for Pipe {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut way = self.from.borrow_mut();
        let bytes = out.len().min(self.step).min(way.bytes.len());
        if bytes == 0 && !way.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for place in &mut out[..bytes] {
            *place = way.bytes.pop_front().unwrap();
        }
        Ok(bytes)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut way = self.to.borrow_mut();
        let count = bytes.len().min(self.step).min(self.room - way.bytes.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        way.bytes.extend(&bytes[..count]);
        way.record.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn alpha() -> HostAddress {
    HostAddress::Name("alpha.example".to_owned())
}

fn keyed(key: &ClusterKey, protect: Protect) -> Security {
    Security::new(Identity::cluster_key(key).unwrap(), protect).unwrap()
}

fn connect(transport: Pipe, security: &Security) -> Stream<Pipe> {
    Stream::connect(transport, security, &alpha(), HandshakeLimits::DEFAULT).unwrap()
}

fn accept(transport: Pipe, security: &Security) -> Stream<Pipe> {
    Stream::accept(transport, security, HandshakeLimits::DEFAULT).unwrap()
}

/// Runs both handshakes alternately until each is ready or has failed; then one read each, by which the
/// connecting side learns of a refusal.
fn meet(near: &mut Stream<Pipe>, far: &mut Stream<Pipe>) -> [Result<(), BootstrapError>; 2] {
    let mut ends = [None, None];
    for _ in 0..100_000 {
        for (end, stream) in ends.iter_mut().zip([&mut *near, &mut *far]) {
            if !matches!(end, Some(Err(_))) {
                let advanced = stream.advance();
                *end = match advanced {
                    Ok(true) => Some(stream.flush().map(|_| ())),
                    Ok(false) => None,
                    Err(reason) => Some(Err(reason)),
                };
            }
        }
        if ends.iter().all(Option::is_some) && !near.wants_write() && !far.wants_write() {
            break;
        }
    }
    let mut ends = ends.map(|end| end.unwrap_or(Err(BootstrapError::TooSlow)));
    for (end, stream) in ends.iter_mut().zip([near, far]) {
        if end.is_ok()
            && let Err(reason) = stream.read(&mut [0; 1])
        {
            *end = Err(reason);
        }
    }
    ends
}

fn pair(security: &Security, step: usize, room: usize) -> [Stream<Pipe>; 2] {
    let [one, other] = pipe(step, room);
    let (mut near, mut far) = (connect(one, security), accept(other, security));
    for end in meet(&mut near, &mut far) {
        end.unwrap();
    }
    [near, far]
}

/// Moves `data` from one stream to the other, in slices.
fn carry(from: &mut Stream<Pipe>, to: &mut Stream<Pipe>, data: &[u8]) {
    let (mut sent, mut got) = (0, Vec::<u8>::new());
    let mut out = [0; 5000];
    while got.len() < data.len() {
        let (head, tail) = data[sent..].split_at((data.len() - sent).min(7));
        if let Transfer::Moved(bytes) =
            from.write_vectored(&[IoSlice::new(head), IoSlice::new(tail)]).unwrap()
        {
            sent += bytes;
        }
        from.flush().unwrap();
        while let Transfer::Moved(bytes) = to.read(&mut out).unwrap() {
            got.extend(&out[..bytes]);
        }
    }
    assert!(got == data);
}

fn every_security() -> Vec<Security> {
    let key = ClusterKey::generate().unwrap();
    let papers = Papers::new("one");
    let certificates = papers.identity("alpha.example", &[2024, 2100]);
    vec![
        Security::open(),
        keyed(&key, Protect::Handshake),
        keyed(&key, Protect::Everything),
        Security::new(certificates, Protect::Everything).unwrap(),
    ]
}

#[test]
fn bytes_arrive_whole_in_both_directions() {
    let data: Vec<u8> = (0..200_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    for security in every_security() {
        for (step, room) in [(usize::MAX, 1 << 20), (1000, 3000), (1, 64)] {
            let data = &data[..if step == 1 { 3000 } else { data.len() }];
            let [mut near, mut far] = pair(&security, step, room);
            assert!(near.is_ready() && far.is_ready());
            carry(&mut near, &mut far, data);
            carry(&mut far, &mut near, data);
            near.close().unwrap();
            while near.wants_write() {
                far.read(&mut [0; 9]).unwrap();
                near.flush().unwrap();
            }
            near.transport().to.borrow_mut().ended = true;
            let mut end = far.read(&mut [0; 9]).unwrap();
            while end == Transfer::Blocked {
                end = far.read(&mut [0; 9]).unwrap();
            }
            assert_eq!(end, Transfer::Ended);
        }
    }
}

#[test]
fn protected_data_is_unreadable_in_transit() {
    let secret = b"a secret of sixty-four bytes, which no packet shows in plain text";
    for security in every_security().into_iter().skip(1) {
        let [mut near, mut far] = pair(&security, usize::MAX, 1 << 20);
        carry(&mut near, &mut far, secret);
        let seen = near.transport().to.borrow().record.clone();
        assert!(!seen.windows(16).any(|window| window == &secret[..16]));
    }
}

#[test]
fn plain_text_goes_on_without_a_gap() {
    let key = ClusterKey::generate().unwrap();
    for step in [usize::MAX, 100, 1] {
        let [mut near, mut far] = pair(&keyed(&key, Protect::Handshake), step, 1 << 20);
        while near.write(b"last protected message").unwrap() == Transfer::Blocked {}
        while !near.flush().unwrap() {}
        // The near side continues at once, before the far one has read anything.
        let (mut plain, rest) = near.into_plain().unwrap();
        assert_eq!(rest, []);
        let text = b"and this in plain text";
        let mut sent = 0;
        while sent < text.len() {
            sent += plain.write(&text[sent..]).unwrap();
        }
        let mut got = Vec::<u8>::new();
        while got.len() < 22 {
            let mut out = [0; 64];
            if let Transfer::Moved(bytes) = far.read(&mut out).unwrap() {
                got.extend(&out[..bytes]);
            }
        }
        assert_eq!(got, b"last protected message");
        let (mut plain, mut got) = far.into_plain().unwrap();
        while got.len() < text.len() {
            let mut out = [0; 64];
            let bytes = plain.read(&mut out).unwrap();
            got.extend(&out[..bytes]);
        }
        assert_eq!(got, text);
    }
}

#[test]
fn stream_with_protected_bytes_is_not_made_plain() {
    let [mut near, mut far] =
        pair(&keyed(&ClusterKey::generate().unwrap(), Protect::Handshake), usize::MAX, 1 << 20);
    near.write(b"two").unwrap();
    far.read(&mut [0; 1]).unwrap();
    let far = far.into_plain().map(|_| ()).unwrap_err();
    assert!(far.holds_bytes());
}

/// An authority, and the certificates that it signs.
struct Papers {
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Papers {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { authority }
    }

    /// A host's identity, valid in these years, which trusts this authority.
    fn identity(&self, host: &str, years: &[i32; 2]) -> Identity {
        self.identity_that_trusts(host, years, self)
    }

    fn identity_that_trusts(&self, host: &str, years: &[i32; 2], trusted: &Self) -> Identity {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(years[0], 1, 1);
        params.not_after = date_time_ymd(years[1], 1, 1);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.authority).unwrap();
        let trusted = trusted.authority.pem();
        Identity::certificates(&signed.pem(), &key.serialize_pem(), &trusted).unwrap()
    }
}

/// Checks that both ends of a stream between these two fail, and that each says what to do.
#[track_caller]
fn refused(near: &Security, far: &Security, near_says: &str, far_says: &str) {
    let [one, other] = pipe(usize::MAX, 1 << 20);
    let (mut near, mut far) = (connect(one, near), accept(other, far));
    let ends = meet(&mut near, &mut far);
    for (end, says) in ends.into_iter().zip([near_says, far_says]) {
        let reason = end.expect_err("a refusal");
        let text = reason.to_string();
        assert!(text.contains(says), "expected `{says}`, got `{text}`");
    }
}

#[test]
fn another_key_is_refused() {
    let [one, other] = [0; 2].map(|_| ClusterKey::generate().unwrap());
    for protect in [Protect::Handshake, Protect::Everything] {
        let hint = "compare the fingerprints";
        refused(&keyed(&one, protect), &keyed(&other, protect), hint, hint);
    }
}

#[test]
fn missing_key_at_either_end_is_refused() {
    let key = keyed(&ClusterKey::generate().unwrap(), Protect::Everything);
    refused(&Security::open(), &key, "give both the same", "give both the same");
    refused(&key, &Security::open(), "give both the same", "give both the same");
}

#[test]
fn less_protection_is_refused() {
    let key = ClusterKey::generate().unwrap();
    let (less, more) = (keyed(&key, Protect::Handshake), keyed(&key, Protect::Everything));
    refused(&less, &more, "give both the same", "give both the same");
    refused(&more, &less, "give both the same", "give both the same");
}

#[test]
fn certificates_are_checked_both_ways() {
    let (papers, strangers) = (Papers::new("one"), Papers::new("other"));
    let secure = |identity| Security::new(identity, Protect::Everything).unwrap();
    let good = secure(papers.identity("alpha.example", &[2024, 2100]));
    let old = secure(papers.identity("alpha.example", &[2020, 2022]));
    let early = secure(papers.identity("alpha.example", &[2090, 2100]));
    let other_host = secure(papers.identity("beta.example", &[2024, 2100]));
    let foreign = secure(strangers.identity_that_trusts("alpha.example", &[2024, 2100], &papers));
    let key = keyed(&ClusterKey::generate().unwrap(), Protect::Everything);
    refused(&good, &old, "renew it, or set the clocks", "renew it, or set the clocks");
    refused(&old, &good, "renew it, or set the clocks", "renew it, or set the clocks");
    refused(&good, &early, "set the clocks", "does not trust this side");
    refused(&early, &good, "does not trust this side", "set the clocks");
    refused(&good, &foreign, "no trusted authority", "does not know the authority");
    refused(&foreign, &good, "does not know the authority", "no trusted authority");
    let same_name = Papers::new("one");
    let foreign = secure(same_name.identity_that_trusts("alpha.example", &[2024, 2100], &papers));
    refused(&good, &foreign, "no trusted authority", "another authority of the same name");
    refused(&good, &other_host, "add the name that was called", "does not trust this side");
    refused(&good, &key, "give both the same", "give both the same");
    // A connecting host may be any that the authority signed.
    let [one, other] = pipe(usize::MAX, 1 << 20);
    let (mut near, mut far) = (connect(one, &other_host), accept(other, &good));
    for end in meet(&mut near, &mut far) {
        end.unwrap();
    }
}

/// Replays one side's bytes of an earlier handshake.
#[test]
fn a_recorded_handshake_opens_nothing() {
    for security in every_security().into_iter().skip(1) {
        let [near, far] = pair(&security, usize::MAX, 1 << 20);
        let said_by_near = near.transport().to.borrow().record.clone();
        let said_by_far = far.transport().to.borrow().record.clone();
        let [one, other] = pipe(usize::MAX, 1 << 20);
        other.from.borrow_mut().bytes.extend(&said_by_near);
        let mut victim = accept(other, &security);
        let ends = (0..3).find_map(|_| victim.advance().err());
        assert!(matches!(ends, Some(BootstrapError::Malformed(_))), "{ends:?}");
        assert!(!victim.is_ready());
        one.from.borrow_mut().bytes.clear();
        one.from.borrow_mut().bytes.extend(&said_by_far);
        let mut victim = connect(one, &security);
        let ends = (0..3).find_map(|_| victim.advance().err());
        assert!(matches!(ends, Some(BootstrapError::Malformed(_))), "{ends:?}");
        assert!(!victim.is_ready());
    }
}

/// Reflects one side's bytes to itself.
#[test]
fn a_mirror_opens_nothing() {
    for security in every_security().into_iter().skip(1) {
        let way = Rc::<RefCell<ByteQueue>>::default();
        let mirror = Pipe { from: Rc::clone(&way), to: way, step: usize::MAX, room: 1 << 20 };
        let mut victim = connect(mirror, &security);
        let ends = (0..5).find_map(|_| victim.advance().err());
        assert!(ends.is_some() && !victim.is_ready());
    }
}

#[test]
fn a_handshake_that_breaks_off_is_no_stream() {
    for security in every_security() {
        let [near, _far] = pair(&security, usize::MAX, 1 << 20);
        let said = near.transport().to.borrow().record.clone();
        for cut in (0..said.len()).step_by(13) {
            let [_, other] = pipe(usize::MAX, 1 << 20);
            other.from.borrow_mut().bytes.extend(&said[..cut]);
            other.from.borrow_mut().ended = true;
            let mut victim = accept(other, &security);
            match victim.advance() {
                Ok(true) => assert!(cut >= 16 && security.protect() == Protect::Nothing),
                Ok(false) => panic!("an end was not seen"),
                Err(BootstrapError::Ended | BootstrapError::Malformed(_)) => {}
                Err(other) => panic!("{cut} bytes: {other}"),
            }
        }
    }
}

#[test]
fn broken_stream_is_distinguished_from_closed_stream() {
    let security = keyed(&ClusterKey::generate().unwrap(), Protect::Everything);
    let [near, mut far] = pair(&security, usize::MAX, 1 << 20);
    near.transport().to.borrow_mut().ended = true;
    assert!(matches!(far.read(&mut [0; 8]), Err(BootstrapError::Ended)));
}

#[test]
fn random_bytes_are_refused() {
    let mut random = farside_testkit::Random::new(0x5eed);
    let mut byte = || random.byte();
    for security in every_security() {
        let [near, _far] = pair(&security, usize::MAX, 1 << 20);
        let good = near.transport().to.borrow().record.clone();
        for round in 0..300 {
            // All random, or a genuine prefix with a random rest.
            let kept = if round % 2 == 0 { 0 } else { 16 + usize::from(byte()) % 60 };
            let mut said = good[..kept.min(good.len())].to_vec();
            said.extend((0..usize::from(byte())).map(|_| byte()));
            let [_, other] = pipe(usize::MAX, 1 << 20);
            other.from.borrow_mut().bytes.extend(&said);
            other.from.borrow_mut().ended = true;
            let mut victim = accept(other, &security);
            let open = security.protect() == Protect::Nothing;
            match victim.advance() {
                Ok(ready) => assert!(ready && open && kept >= 16),
                Err(reason) => assert!(!reason.to_string().is_empty()),
            }
        }
    }
}

/// Changes of a byte anywhere in a handshake or in protected data are detected.
#[test]
fn changed_bytes_are_found() {
    let security = keyed(&ClusterKey::generate().unwrap(), Protect::Everything);
    for at in (0..900).step_by(37) {
        let [one, other] = pipe(usize::MAX, 1 << 20);
        let (mut near, mut far) = (connect(one.clone(), &security), accept(other, &security));
        let mut changed = false;
        let mut failed = false;
        for _ in 0..20 {
            failed |= near.advance().is_err();
            if near.is_ready() && !failed {
                let _ = near.write(&[7; 500]);
            }
            let mut way = one.to.borrow_mut();
            let before = way.record.len() - way.bytes.len();
            if !changed
                && at >= before
                && let Some(byte) = way.bytes.get_mut(at - before)
            {
                *byte ^= 0x10;
                changed = true;
            }
            drop(way);
            failed |= far.advance().is_err();
            if far.is_ready() && !failed {
                failed |= far.read(&mut [0; 1000]).is_err();
            }
        }
        assert!(changed && failed, "byte {at} was changed, and neither side noticed");
    }
}

#[test]
fn handshake_is_bounded() {
    let security = keyed(&ClusterKey::generate().unwrap(), Protect::Everything);
    let limits = HandshakeLimits { time: Duration::ZERO, bytes: 64 << 10 };
    let [_, other] = pipe(usize::MAX, 1 << 20);
    let mut slow = Stream::accept(other, &security, limits).unwrap();
    assert!(matches!(slow.advance(), Err(BootstrapError::TooSlow)));
    let limits = HandshakeLimits { time: Duration::from_secs(60), bytes: 200 };
    let [one, other] = pipe(usize::MAX, 1 << 20);
    let mut near = connect(one, &security);
    let mut far = Stream::accept(other, &security, limits).unwrap();
    near.advance().unwrap();
    assert!(matches!(far.advance(), Err(BootstrapError::TooLong)));
}

#[test]
fn foreign_peers_and_other_releases_are_distinguished() {
    for (said, expected) in [
        (&b"GET / HTTP/1.1\r\n"[..], "no Farside fabric"),
        (b"farside\n\x09\0\0\0\0\0\0\0", "speaks version 9"),
    ] {
        let [_, other] = pipe(usize::MAX, 1 << 20);
        other.from.borrow_mut().bytes.extend(said);
        let mut victim = accept(other, &Security::open());
        let text = victim.advance().unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

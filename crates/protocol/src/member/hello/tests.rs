use super::*;
use alloc::{format, vec};
use farside_base::{Access, Random, RegionId, RemoteKey};

struct HelloGenerator(Random);

impl HelloGenerator {
    fn name(&mut self) -> String {
        let length = 1 + self.0.below(CLUSTER_NAME_MAX as u64) as usize;
        let letters = b"abcXYZ019-_.";
        let letter = |_| char::from(letters[self.0.below(letters.len() as u64) as usize]);
        let rest: String = (1..length).map(letter).collect();
        alloc::format!("q{rest}")
    }

    fn token(&mut self) -> RegionToken {
        RegionToken {
            region: RegionId(self.0.word() as u32),
            key: RemoteKey(self.0.word()),
            bytes: self.0.word(),
            access: Access::from_bits(self.0.below(8) as u8).unwrap(),
        }
    }

    fn regions(&mut self) -> MemberRegions {
        let (home, cache, fence) = (self.token(), self.token(), self.token());
        let tags = (self.0.below(2) == 1).then(|| self.token());
        MemberRegions { home, cache, fence, tags }
    }

    fn hello(&mut self) -> HelloRequest {
        let kind = self.0.below(4);
        if kind == 3 {
            return HelloRequest::AskOccupancy(AskOccupancy);
        }
        if kind == 0 {
            return HelloRequest::Resume(Resume {
                version: PROTOCOL_VERSION,
                cluster: self.name(),
                node: NodeId(self.0.word() as u16),
                incarnation: Incarnation(self.0.word()),
                to: Incarnation(self.0.word()),
                received: self.0.word(),
            });
        }
        if kind == 1 {
            let witness = self.0.below(2) == 0;
            return HelloRequest::Join(Join {
                version: PROTOCOL_VERSION,
                cluster: self.name(),
                limits: self.0.word(),
                incarnation: Incarnation(self.0.word()),
                home_bytes: if witness { 0 } else { self.0.word() },
                witness,
                keeps: if witness { Keeps::Nothing } else { self.keeps() },
                host: self.host(),
            });
        }
        HelloRequest::Peer(PeerRequest {
            version: PROTOCOL_VERSION,
            cluster: self.name(),
            node: NodeId(self.0.word() as u16),
            incarnation: Incarnation(self.0.word()),
            view: ViewNumber(self.0.word()),
            regions: self.regions(),
        })
    }

    fn answer(&mut self) -> HelloAnswer {
        match self.0.below(6) {
            5 => {
                let members_max = self.0.word() as u16;
                let members = self.0.below(u64::from(members_max) + 1) as u16;
                HelloAnswer::Occupancy(Occupancy { members, members_max })
            }
            3 => HelloAnswer::Resumed(Resumed {
                incarnation: Incarnation(self.0.word()),
                received: self.0.word(),
            }),
            4 => HelloAnswer::Elsewhere(Elsewhere { host: SocketAddr::from(([10, 0, 0, 1], 7)) }),
            0 => HelloAnswer::Welcome(self.welcome()),
            1 => HelloAnswer::PeerReply(PeerReply {
                node: NodeId(self.0.word() as u16),
                incarnation: Incarnation(self.0.word()),
                view: ViewNumber(self.0.word()),
                regions: self.regions(),
            }),
            _ => HelloAnswer::Refusal(JoinRefusal {
                code: ErrorCode::ALL[self.0.below(ErrorCode::ALL.len() as u64) as usize],
                text: "é".repeat(self.0.below(REFUSAL_TEXT_MAX as u64 / 2 + 1) as usize),
            }),
        }
    }

    fn keeps(&mut self) -> Keeps {
        match self.0.below(3) {
            0 => Keeps::Nothing,
            1 => Keeps::New,
            _ => Keeps::Known {
                node: NodeId(self.0.word() as u16),
                generation: Generation(self.0.below(1_024) as u16),
                names: self.0.below(2) > 0,
            },
        }
    }

    fn host(&mut self) -> Option<SocketAddr> {
        let port = 1 + self.0.below(65_535) as u16;
        match self.0.below(3) {
            0 => None,
            1 => Some(SocketAddr::from(([10, self.0.word() as u8, 0, 1], port))),
            _ => Some(SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, self.0.word() as u16], port))),
        }
    }

    fn welcome(&mut self) -> Welcome {
        let node = 1 + self.0.below(NodeSet::CAPACITY as u64 - 1) as u16;
        let members = (0..node)
            .filter(|member| *member == 0 || self.0.below(3) > 0)
            .map(NodeId)
            .collect::<Vec<_>>();
        let lives = members.into_iter().map(|node| {
            let role = self.0.below(4);
            ListedMember {
                memory: (role < 2).then_some(Generation(self.0.below(1_024) as u16)),
                state: role == 0,
                names: role == 0 && node.0.is_multiple_of(2),
                witness: role == 2,
                node,
                born: ViewNumber(u64::from(node.0) + 1),
                incarnation: Incarnation(self.0.word()),
                host: self.host(),
            }
        });
        Welcome {
            members: lives.collect(),
            node: NodeId(node),
            settings: FounderSettings {
                nodes_max: 256,
                leases: Leases {
                    fabric_ns: self.0.below(9),
                    member_ns: 10_000_000 + self.0.below(9),
                },
            },
            memory: (self.0.below(2) == 0).then_some(Generation(3)),
            view: ViewNumber(1_000),
            generations: (0..node).map(|node| lent(node, 1 + node)).collect(),
            limits: 7,
            founder: Incarnation(self.0.word()),
        }
    }
}

fn lent(node: u16, next: u16) -> LentNumber {
    let (state, names) = (next.is_multiple_of(2), next.is_multiple_of(4));
    LentNumber { node: NodeId(node), next, state, names }
}

fn listed(node: u16, life: u64) -> ListedMember {
    ListedMember {
        node: NodeId(node),
        incarnation: Incarnation(life),
        born: ViewNumber(u64::from(node)),
        host: None,
        memory: life.is_multiple_of(2).then_some(Generation(2)),
        state: life.is_multiple_of(4),
        names: life.is_multiple_of(8),
        witness: life.is_multiple_of(3) && !life.is_multiple_of(2),
    }
}

fn encode_hello(hello: &HelloRequest) -> Vec<u8> {
    match hello {
        HelloRequest::Join(join) => join.encode(),
        HelloRequest::Peer(peer) => peer.encode(),
        HelloRequest::Resume(resume) => resume.encode(),
        HelloRequest::AskOccupancy(ask) => ask.encode(),
    }
}

fn encode_answer(answer: &HelloAnswer) -> Vec<u8> {
    match answer {
        HelloAnswer::Welcome(welcome) => welcome.encode(),
        HelloAnswer::PeerReply(reply) => reply.encode(),
        HelloAnswer::Resumed(resumed) => resumed.encode(),
        HelloAnswer::Elsewhere(elsewhere) => elsewhere.encode(),
        HelloAnswer::Occupancy(occupancy) => occupancy.encode(),
        HelloAnswer::Refusal(refusal) => refusal.encode(),
    }
}

#[test]
fn hello_messages_round_trip() {
    for seed in 1..=500 {
        let mut random = HelloGenerator(Random::new(seed));
        let hello = random.hello();
        let bytes = encode_hello(&hello);
        assert!(bytes.len() <= HELLO_MAX, "seed {seed}");
        assert_eq!(HelloRequest::decode(&bytes), Ok(hello), "seed {seed}");
        assert_eq!(HelloAnswer::decode(&bytes), Err(HelloError::Junk("kind")), "seed {seed}");
        let answer = random.answer();
        let bytes = encode_answer(&answer);
        assert!(bytes.len() <= HELLO_MAX, "seed {seed}");
        assert_eq!(HelloAnswer::decode(&bytes), Ok(answer), "seed {seed}");
        assert!(HelloRequest::decode(&bytes).is_err(), "seed {seed}");
    }
}

#[test]
fn a_cut_or_lengthened_hello_is_refused() {
    for seed in 1..=40 {
        let mut random = HelloGenerator(Random::new(seed));
        let hello = encode_hello(&random.hello());
        let answer = encode_answer(&random.answer());
        for end in 0..hello.len() {
            assert!(HelloRequest::decode(&hello[..end]).is_err(), "seed {seed}, cut at {end}");
        }
        for end in 0..answer.len() {
            assert!(HelloAnswer::decode(&answer[..end]).is_err(), "seed {seed}, cut at {end}");
        }
        assert!(HelloRequest::decode(&[&hello[..], &[0]].concat()).is_err(), "seed {seed}");
        assert!(HelloAnswer::decode(&[&answer[..], &[0]].concat()).is_err(), "seed {seed}");
    }
}

#[test]
fn changed_bytes_never_decode_to_what_encodes_otherwise() {
    for seed in 1..=3_000 {
        let mut random = HelloGenerator(Random::new(seed));
        let mut bytes = match random.0.below(2) {
            0 => encode_hello(&random.hello()),
            _ => encode_answer(&random.answer()),
        };
        for _ in 0..=random.0.below(3) {
            let at = random.0.below(bytes.len() as u64) as usize;
            bytes[at] = random.0.word() as u8;
        }
        if let Ok(hello) = HelloRequest::decode(&bytes) {
            assert_eq!(encode_hello(&hello), bytes, "seed {seed}");
        }
        match HelloAnswer::decode(&bytes) {
            // Refusals are decoded from every version, with codes of every table.
            Ok(HelloAnswer::Refusal(_)) | Err(_) => {}
            Ok(answer) => assert_eq!(encode_answer(&answer), bytes, "seed {seed}"),
        }
    }
}

#[test]
fn noise_is_refused() {
    for seed in 1..=2_000 {
        let mut random = HelloGenerator(Random::new(seed));
        let length = random.0.below(300) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.0.word() as u8).collect();
        assert!(
            HelloRequest::decode(&bytes).is_err() && HelloAnswer::decode(&bytes).is_err(),
            "seed {seed}"
        );
        // The same after a valid header.
        for kind in 1..=8 {
            let header = Output::new(HelloKind::Join, PROTOCOL_VERSION).0;
            bytes.splice(..bytes.len().min(16), header);
            bytes[12] = kind;
            let _ = HelloRequest::decode(&bytes);
            let _ = HelloAnswer::decode(&bytes);
        }
    }
    assert_eq!(HelloRequest::decode(&vec![0; HELLO_MAX + 1]), Err(HelloError::Junk("length")));
}

#[test]
fn refusal_of_other_version_is_readable_by_it() {
    let hellos = (1..).map(|seed| HelloGenerator(Random::new(seed)).hello());
    let with_version = |hello: &HelloRequest| !matches!(hello, HelloRequest::AskOccupancy(_));
    let mut join = hellos.into_iter().find(with_version).unwrap();
    match &mut join {
        HelloRequest::Join(join) => join.version = 99,
        HelloRequest::Peer(peer) => peer.version = 99,
        HelloRequest::Resume(resume) => resume.version = 99,
        HelloRequest::AskOccupancy(_) => panic!("it has the version of its header alone"),
    }
    let mut bytes = encode_hello(&join);
    bytes.extend([1, 2, 3]);
    let error = HelloRequest::decode(&bytes).unwrap_err();
    assert_eq!(error, HelloError::Version(99));
    let refusal = error.refusal();
    assert_eq!(refusal.code, ErrorCode::VersionMismatch);
    assert_eq!(refusal.text, format!("protocol version {PROTOCOL_VERSION} is required, not 99"));
    // The peer's table may be longer, and its version differs.
    let mut bytes = refusal.encode();
    bytes[8] = 99;
    assert_eq!(HelloAnswer::decode(&bytes), Ok(HelloAnswer::Refusal(refusal)));
    bytes[16..18].copy_from_slice(&60_000_u16.to_le_bytes());
    assert!(matches!(
        HelloAnswer::decode(&bytes),
        Ok(HelloAnswer::Refusal(JoinRefusal { code: ErrorCode::ProtocolViolation, .. }))
    ));
}

#[test]
fn names_are_checked_where_they_arrive() {
    for good in ["a", "A.b-c_9", &"x".repeat(64)] {
        assert!(valid_cluster_name(good), "{good}");
    }
    for bad in ["", "-a", ".a", "a/b", "a b", "ä", "a\0", &"x".repeat(65)] {
        assert!(!valid_cluster_name(bad), "{bad}");
        let join = Join {
            version: PROTOCOL_VERSION,
            cluster: bad.into(),
            limits: 0,
            incarnation: Incarnation(0),
            home_bytes: 0,
            witness: false,
            keeps: Keeps::Nothing,
            host: None,
        };
        assert_eq!(
            HelloRequest::decode(&join.encode()),
            Err(HelloError::Junk("cluster name")),
            "{bad}"
        );
    }
}

#[test]
fn witness_with_memory_or_state_is_refused() {
    let witness = Join {
        version: PROTOCOL_VERSION,
        cluster: "c".into(),
        limits: 0,
        incarnation: Incarnation(0),
        home_bytes: 0,
        witness: true,
        keeps: Keeps::Nothing,
        host: None,
    };
    let encoded = witness.encode();
    assert_eq!(HelloRequest::decode(&encoded), Ok(HelloRequest::Join(witness.clone())));
    let known = Keeps::Known { node: NodeId(1), generation: Generation(0), names: true };
    let lending = Join { home_bytes: 1, ..witness.clone() };
    let lending = [Keeps::New, known]
        .map(|keeps| Join { keeps, ..witness.clone() })
        .into_iter()
        .chain([lending]);
    for join in lending {
        let refused = Err(HelloError::Junk("memory of a witness"));
        assert_eq!(HelloRequest::decode(&join.encode()), refused, "{join:?}");
    }
    for flag in 2..=255 {
        let mut bytes = encoded.clone();
        bytes[40] = flag;
        assert_eq!(HelloRequest::decode(&bytes), Err(HelloError::Junk("flag of a witness")));
    }
}

#[test]
fn long_texts_are_cut_between_letters() {
    let refusal = JoinRefusal {
        code: ErrorCode::System,
        text: alloc::format!("x{}", "é".repeat(REFUSAL_TEXT_MAX)),
    };
    let Ok(HelloAnswer::Refusal(read)) = HelloAnswer::decode(&refusal.encode()) else {
        panic!("a refusal");
    };
    assert_eq!(read.text.len(), REFUSAL_TEXT_MAX - 1);
    assert!(refusal.text.starts_with(&read.text));
}

#[test]
fn a_welcome_out_of_order_is_refused() {
    let mut welcome = Welcome {
        founder: Incarnation(1),
        node: NodeId(5),
        view: ViewNumber(9),
        settings: FounderSettings {
            nodes_max: 6,
            leases: Leases { fabric_ns: 0, member_ns: Leases::MAX_NS },
        },
        memory: None,
        generations: vec![lent(1, 1), lent(3, 1_024)],
        members: vec![listed(1, 1), listed(3, 2)],
        limits: 0,
    };
    assert!(HelloAnswer::decode(&welcome.encode()).is_ok());
    let order = Err(HelloError::Junk("order of members"));
    welcome.members.swap(0, 1);
    assert_eq!(HelloAnswer::decode(&welcome.encode()), order);
    welcome.members = vec![listed(9, 1)];
    assert_eq!(HelloAnswer::decode(&welcome.encode()), order);
    welcome.members = vec![listed(1, 1); 2];
    assert_eq!(HelloAnswer::decode(&welcome.encode()), order);
    welcome.members.clear();
    assert_eq!(HelloAnswer::decode(&welcome.encode()), Err(HelloError::Junk("count of members")));
}

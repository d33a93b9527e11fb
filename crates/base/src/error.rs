//! The table of errors: number, name, blame, whether to retry, what happened and what to do. All interfaces
//! of Farside (Rust, C, Python, the command) print from it.

/// The party to blame for an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Blame {
    /// The calling program: a review of its code would show it.
    Caller,
    /// The configuration: limits, names, versions.
    Configuration,
    /// Another process broke the protocol.
    Peer,
    /// The environment: a process died, memory ran out.
    Environment,
    /// Farside itself.
    Farside,
}

/// The family of an error, by what a program does about it. Each row of the table is in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorKind {
    /// The call is wrong: an address, a size, a form. Fix the calling program.
    Misuse,
    /// A program for remote memory calls was refused or stopped. Fix it, or its parameters.
    Program,
    /// A setting is invalid, or two processes disagree. Correct it; the text names it.
    Configuration,
    /// A limit is reached or memory is used up. Free something or raise the limit, then retry.
    Exhausted,
    /// Another session holds a conflicting lock. Release what is held, then retry.
    Conflict,
    /// The operation was ended by its deadline or by its caller. Retry, or give it more time.
    TimedOut,
    /// No process listens under the name, or a node with state is away. Start it, or retry later.
    NotFound,
    /// A peer, its memory or the only copy of a line is gone. Rebuild what it had, or connect again.
    Lost,
    /// This node is out of its cluster. Join again.
    Disconnected,
    /// The operating system refused. Follow the text, then retry.
    System,
    /// Farside or a peer is defective. Report it with the text.
    Defect,
}

/// Whether the same call can succeed later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Retry {
    /// Never, without a change.
    No,
    /// Yes, after another party has made progress.
    Later,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ErrorEntry {
    /// Stable number, also the C value.
    pub number: u16,
    /// Stable name, as in JSON output.
    pub name: &'static str,
    /// The family, by what a program does about it.
    pub kind: ErrorKind,
    /// The party to blame.
    pub blame: Blame,
    /// Whether to retry.
    pub retry: Retry,
    /// What happened.
    pub sentence: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

macro_rules! errors {
    ($($number:literal $name:ident $kind:ident $blame:ident $retry:ident $sentence:literal $remedy:literal;)*) => {
        /// The errors; [`ErrorCode::entry`] returns the row of the table.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum ErrorCode {
            $(#[doc = $sentence] #[doc = ""] #[doc = $remedy] $name = $number,)*
        }

        impl ErrorCode {
            /// Every error, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The error with this number, as received over the wire or from C.
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The row of the table.
            pub const fn entry(self) -> ErrorEntry {
                match self {
                    $(Self::$name => ErrorEntry {
                        number: $number,
                        name: stringify!($name),
                        kind: ErrorKind::$kind,
                        blame: Blame::$blame,
                        retry: Retry::$retry,
                        sentence: $sentence,
                        remedy: $remedy,
                    },)*
                }
            }
        }
    };
}

errors! {
    1 Unallocated Misuse Caller No "The address is in no allocation." "Use an address that alloc returned and that was not freed since.";
    2 OutOfBounds Misuse Caller No "The access passes the end of its allocation." "Shorten it, or allocate more.";
    3 Misaligned Misuse Caller No "The address is not aligned to the size of the atomic." "Align 8-byte atomics to 8 bytes, and 4-byte atomics to 4.";
    4 ForeignAddress Misuse Caller No "No node of this cluster has this number." "Use addresses of this cluster only; addresses of another cluster or an earlier run are not valid here.";
    5 ZeroSize Misuse Caller No "The size is zero." "Ask for at least one byte.";
    6 TooLarge Misuse Caller No "The size is over the limit." "Split it; Limits has the maximum.";
    7 NotAnAllocation Misuse Caller No "The address is not the start of an allocation, or was freed already." "Free exactly what alloc returned, once.";
    8 NotLocked Misuse Caller No "The session holds no such lock." "Unlock exactly what was locked, once, by the session that locked it.";
    9 BadLineSize Misuse Caller No "The line size is not a power of two from 64 B to 64 KiB." "Choose one of 64, 128, ... 65536.";
    10 LineSpanning Misuse Caller No "A single-line atomic crosses a line." "Keep it within one line, or use read_atomic and write_atomic.";
    11 BadForm Misuse Caller No "The channel cannot send or receive a message in this form." "See the text for the form that it takes.";
    12 NotHeld Misuse Caller No "No such message is held." "Release or fetch a message once.";
    13 BadProgram Program Caller No "It is not an object with programs for remote memory calls." "Fix what the text names, and compile it with farside rmc build, or as described at the top of farside_rmc.h.";
    14 UnsafeProgram Program Caller No "The verifier refused the program." "Fix the line that the text names; farside rmc check reports the same.";
    15 NoProgram Program Caller No "The caller has registered no such program at this executor." "Register its object first, over the same connection.";
    16 BadParameters Program Caller No "The parameters do not fit the program." "Pass as many bytes as it reads, and no more than the limit; larger data go into memory.";
    17 CallStopped Program Caller No "The call was stopped before its end." "The text names the location and the reason: a limit that was passed, or memory that the caller may not access.";
    18 CallCancelled TimedOut Caller No "The call was cancelled." "Invoke it again if it is still wanted; its effects up to then remain.";
    19 BadAnswer Defect Farside No "An executor of calls or a program reached an impossible state." "Report it with the program and the text; the executor continues.";
    20 OutOfMemory Exhausted Environment Later "No node has that much free memory." "Free something, start nodes with more memory, or add nodes.";
    21 CacheFull Exhausted Environment Later "All cache frames that this line may use are held by unfinished operations." "Let operations finish, or give the node a larger cache.";
    22 Busy Conflict Environment Later "A conflicting lock is held." "Try again later, or use the waiting form.";
    23 Deadlock Conflict Environment Later "Waiting would have closed a cycle of lock waiters, and this session was the youngest in it." "Release the locks held and start over.";
    24 UpgradeConflict Conflict Environment Later "Another reader of this range waits for its upgrade already." "Release the read lock and take the write lock.";
    25 TooManySessions Exhausted Configuration Later "Session limit of the node reached." "Close sessions, or raise Limits::sessions_max on all nodes.";
    26 TooManyLocks Exhausted Caller Later "Lock limit of the session reached." "Release some, or raise Limits::locks_per_session_max.";
    27 TimedOut TimedOut Environment Later "The deadline passed first." "Check whether the peer is alive (farside info), then try again.";
    28 PeerLost Lost Environment No "The peer at the other end is gone." "Connect again; what was not acknowledged may not have been received.";
    29 OverQuota Exhausted Configuration Later "The quota of the tenant or a limit of the executor is reached." "End calls or callers, or unregister programs; or raise the tenant's quota or the executor's limits.";
    30 ExecutorLacks Configuration Configuration No "The executor or caller that is to run the program lacks something that the program needs." "Provide what the text names, or run the program where that is available.";
    31 NotHere Program Caller No "The program cannot run at its caller." "Run it at its executor, or call the executor that the text names.";
    32 DeadlinePassed TimedOut Caller Later "The call was stopped at its deadline." "Give it more time, or less to do; its effects up to then remain.";
    33 TooManyRequests Exhausted Caller Later "All request slots of the client are taken." "Take the outcomes of requests that have ended, or raise MemoryClientOptions::requests_max.";
    34 Indeterminate Lost Environment No "The connection was lost with an atomic in flight; whether it took effect is unknown." "Read the word, and decide by its value.";
    35 AccessDenied Misuse Caller No "The memory does not grant this access." "Use an access that it grants, or lend it with more.";
    36 Torn Conflict Environment Later "The content was published again during each attempt to read it." "Try again; a writer that publishes less often leaves more time.";
    40 NodeLost Lost Environment No "The home of this address died; its memory is gone." "Allocate on a living node; memory of other homes is still there.";
    41 LineLost Lost Environment No "The only up-to-date copy was at a node that died." "Overwrite the whole line from your own source by one write, or free the allocation.";
    42 NodeClosed Disconnected Caller No "This node has left its cluster." "Join again.";
    43 NodeFailed Defect Farside No "This node reached an impossible state and stopped serving." "Report the dump in the node's failure text; restart the process.";
    44 Isolated Disconnected Environment Later "This node was partitioned from the majority of its cluster, which continues without it." "Repair the network, then join again; what was written only here is lost.";
    45 NodeLeft Lost Environment No "The home of this address has left the cluster, and its memory with it." "Allocate on a node that stays; memory of other homes is still there.";
    46 RootExists Misuse Caller No "A root of this name exists." "Open it with Session::root, or choose another name.";
    47 GroupBroken Lost Environment No "A member of the group has ended, or a collective call of a member failed." "Leave the group, and join one of another name with the members that are left.";
    48 HomeAway NotFound Environment Later "The home of this address is a node with state that is not a member at the moment, and whose memory is kept; or a member that is not linked yet." "Start the node again with its state directory, and repeat the operation once it is a member.";
    49 WritesLost Lost Environment No "A node with state ended before it had logged what this node had written to its memory since the last fence." "Read what is kept, and write again; what was fenced is kept.";
    50 LogFull Exhausted Environment Later "The log has no space left." "Trim it up to the last checkpoint, raise DurableLogOptions::bytes_max, or free space of its folder.";
    51 DeviceFailed Lost Environment No "The device of the log has failed." "What was committed is kept, and nothing else can be. Check the device, then open the log again.";
    52 LogDamaged Lost Environment No "The log is damaged where it was durable." "Restore its folder from a copy, or remove the folder to begin without what was in it.";
    53 LogTruncated Lost Environment No "A file of the log is shorter than it was made." "Restore the file from a copy, or remove the folder to begin without what was in it.";
    54 StateInUse Configuration Configuration Later "Another process uses this folder." "End the other process, or choose another folder.";
    55 StateForeign Configuration Configuration No "The folder has state of something else, of another version or of other memory." "Choose another folder, or follow the text: it names the version or the memory that fits.";
    56 NotEnoughReplicas Lost Environment Later "Copies of the log are not reached, or are empty." "Start those that the text names; or say by ReplicaOptions::copies_min (--copies-min) how few may do, if no program goes on with the missing ones alone.";
    57 NoState Exhausted Environment Later "No member keeps its memory as the allocation asks." "Start one with such a state (farside node --state or --state-copies), or ask for less durability.";
    60 NameTaken Configuration Configuration No "A cluster of this name runs already." "Join it, choose another name, or end the other one.";
    61 NoSuchCluster NotFound Configuration Later "No cluster of this name runs here." "Start it (farside up), or correct the name.";
    62 ClusterFull Exhausted Configuration No "Member limit of the cluster reached." "Let a member leave, or start the cluster with a higher --nodes-max (Limits::nodes_max).";
    63 VersionMismatch Configuration Configuration No "The peer speaks another version of the protocol." "Run the same version of Farside on all nodes.";
    64 LimitsMismatch Configuration Configuration No "The cluster runs with other limits." "Use the same Limits and line sizes on all nodes.";
    65 BadConfiguration Configuration Configuration No "A setting is unknown or out of its range." "Correct the setting that the text names.";
    66 FabricLacks Configuration Configuration No "The fabric lacks a capability that is needed." "Choose a fabric that has it; farside info lists them.";
    67 NotPermitted Configuration Configuration No "The other end does not trust this one, or this one the other." "Give both the same key and protection, or run both as the same user; the text says which it is.";
    68 NoListener NotFound Configuration Later "No process listens under this name." "Start the other end first, or correct the name.";
    69 AddressTaken Configuration Configuration No "A process listens under this name already." "Choose another name, or end the other one.";
    70 ChannelMismatch Configuration Configuration No "The other end is of another kind, or has other options." "Connect to the right address, and give both ends the same options; the text says how they differ.";
    71 ChannelFull Exhausted Configuration Later "Peer limit of the other end reached." "Let a peer leave, or raise Options::peers or LendOptions::clients_max at the end that listens; the text names the limit.";
    80 ProtocolViolation Defect Peer No "A peer sent what the protocol forbids; its link was closed." "Check that all nodes run the same version; report it with the text.";
    81 System System Environment Later "The operating system refused." "See the text for its reason; farside doctor says what to change.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_every_row_says_what_to_do() {
        for pair in ErrorCode::ALL.windows(2) {
            assert!(pair[0].entry().number < pair[1].entry().number);
        }
        for code in ErrorCode::ALL {
            let entry = code.entry();
            assert_eq!(ErrorCode::from_number(entry.number), Some(*code));
            assert!(entry.sentence.ends_with('.') && entry.remedy.ends_with('.'), "{}", entry.name);
        }
    }
}

//! The workflows of figures 3 and 4 of the paper (004 §2.3, §2.4), message by message. n0 is the home; n1 is the
//! requester unless the home is; n2 owns or shares.

use crate::cluster::CoherenceCluster;

/// Figure 3a: the home reads a line that a remote node owns. Its numbers: 1 look-up, 2 READ, 3 the
/// owner's copy, 4.1 the owner is a sharer now, 4.2 the home's memory and directory are up to date.
#[test]
fn figure_3a_local_read_of_a_dirty_line() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(0, 1);
    cluster.run();
    cluster.happened(
        "
        n0 issues o1 Read
            n0 send to n2: Recall g1 down to Shared
        n0 > n2: Recall g1 down to Shared
            n2 set Shared g1
            n2 place in n0 memory: Ack g1 had the bytes, left Shared
        n2 > n0: Ack g1 had the bytes, left Shared
            n0 set Shared g0
            n0 ready o1
        n2 placed
        ",
    );
    cluster.at_rest(None, &[2]);
}

/// Figure 3b: a remote read of a line without an owner. 1 request, 2 look-up, 3 reply with the bytes, 4.1 directory,
/// 4.2 the requester's cache.
#[test]
fn figure_3b_remote_read_of_an_unshared_line() {
    let mut cluster = CoherenceCluster::new(3);
    cluster.read(1, 1);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Read
            n1 send to n0: Read t1 into frame 1
        n1 > n0: Read t1 into frame 1
            n0 set Shared g0
            n0 place in n1 frame 1: Grant t1 g1 Shared, bytes from home
        n0 > n1: Grant t1 g1 Shared, bytes from home
            n1 set Shared g1
            n1 ready o1
        n0 placed
        ",
    );
    cluster.at_rest(None, &[1]);
}

/// Figure 3b again, with the line already shared: the sharers are not involved.
#[test]
fn figure_3b_remote_read_of_a_shared_line() {
    let mut cluster = CoherenceCluster::shared_by(3, &[2]);
    cluster.read(1, 1);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Read
            n1 send to n0: Read t1 into frame 1
        n1 > n0: Read t1 into frame 1
            n0 place in n1 frame 1: Grant t1 g2 Shared, bytes from home
        n0 > n1: Grant t1 g2 Shared, bytes from home
            n1 set Shared g2
            n1 ready o1
        n0 placed
        ",
    );
    cluster.at_rest(None, &[1, 2]);
}

/// Figure 3c: a remote read of a line that a third node owns. 1 request, 2 look-up, 3 forward, 4.1 the owner's copy
/// to the requester, 4.2 and to the home, 5.1 the owner is a sharer, 5.2 the home is up to date, 5.3 so is the
/// requester. In addition the home's reply ends the requester's wait: only then is it in the directory.
#[test]
fn figure_3c_remote_read_of_a_dirty_line() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.read(1, 1);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Read
            n1 send to n0: Read t1 into frame 1
        n1 > n0: Read t1 into frame 1
            n0 send to n2: Recall g1 down to Shared, bytes to n1 t1
        n0 > n2: Recall g1 down to Shared, bytes to n1 t1
            n2 set Shared g1
            n2 place in n1 frame 1: Data t1
            n2 place in n0 memory: Ack g1 had the bytes, left Shared
        n2 > n0: Ack g1 had the bytes, left Shared
            n0 set Shared g0
            n0 send to n1: Grant t1 g2 Shared, bytes from n2
        n0 > n1: Grant t1 g2 Shared, bytes from n2
        n2 > n1: Data t1
            n1 set Shared g2
            n1 ready o1
        n2 placed
        n2 placed
        ",
    );
    cluster.at_rest(None, &[1, 2]);
}

/// Figure 4a: the home writes a line that remote nodes share. 1 look-up, 2 INVALIDATE, 3
/// acknowledgement, 4.1 the sharers' copies are gone, 4.2 the home writes.
#[test]
fn figure_4a_local_write_of_a_shared_line() {
    let mut cluster = CoherenceCluster::shared_by(3, &[1, 2]);
    cluster.write(0, 1);
    cluster.run();
    cluster.happened(
        "
        n0 issues o1 Write
            n0 send to n1: Recall g1 down to Invalid
            n0 send to n2: Recall g2 down to Invalid
        n0 > n1: Recall g1 down to Invalid
            n1 set Invalid
            n1 send to n0: Ack g1 had a clean copy, left Invalid
            n1 release
        n0 > n2: Recall g2 down to Invalid
            n2 set Invalid
            n2 send to n0: Ack g2 had a clean copy, left Invalid
            n2 release
        n1 > n0: Ack g1 had a clean copy, left Invalid
        n2 > n0: Ack g2 had a clean copy, left Invalid
            n0 set Dirty g0
            n0 ready o1
        ",
    );
    cluster.at_rest(None, &[]);
}

/// Figure 4a again, with a remote owner: its bytes come with the acknowledgement.
#[test]
fn figure_4a_local_write_of_a_dirty_line() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(0, 1);
    cluster.run();
    cluster.happened(
        "
        n0 issues o1 Write
            n0 send to n2: Recall g1 down to Invalid
        n0 > n2: Recall g1 down to Invalid
            n2 set Invalid
            n2 place in n0 memory: Ack g1 had the bytes, left Invalid
        n2 > n0: Ack g1 had the bytes, left Invalid
            n0 set Dirty g0
            n0 ready o1
        n2 placed
            n2 release
        ",
    );
    cluster.at_rest(None, &[]);
}

/// Figure 4b: a remote write of a line that others share. 1 request, 2 look-up, 3 INVALIDATE, 4
/// acknowledgements, 5 directory, 6 reply with the bytes.
#[test]
fn figure_4b_remote_write_of_a_shared_line() {
    let mut cluster = CoherenceCluster::shared_by(4, &[2, 3]);
    cluster.write(1, 1);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Write
            n1 send to n0: Write t1 into frame 1
        n1 > n0: Write t1 into frame 1
            n0 send to n2: Recall g1 down to Invalid
            n0 send to n3: Recall g2 down to Invalid
        n0 > n2: Recall g1 down to Invalid
            n2 set Invalid
            n2 send to n0: Ack g1 had a clean copy, left Invalid
            n2 release
        n0 > n3: Recall g2 down to Invalid
            n3 set Invalid
            n3 send to n0: Ack g2 had a clean copy, left Invalid
            n3 release
        n2 > n0: Ack g1 had a clean copy, left Invalid
        n3 > n0: Ack g2 had a clean copy, left Invalid
            n0 set Invalid
            n0 place in n1 frame 1: Grant t1 g3 Dirty, bytes from home
        n0 > n1: Grant t1 g3 Dirty, bytes from home
            n1 set Dirty g3
            n1 ready o1
        n0 placed
        ",
    );
    cluster.at_rest(Some(1), &[]);
}

/// Figure 4b again, without sharers: steps 3 and 4 are omitted.
#[test]
fn figure_4b_remote_write_of_an_unshared_line() {
    let mut cluster = CoherenceCluster::new(3);
    cluster.write(1, 1);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Write
            n1 send to n0: Write t1 into frame 1
        n1 > n0: Write t1 into frame 1
            n0 set Invalid
            n0 place in n1 frame 1: Grant t1 g1 Dirty, bytes from home
        n0 > n1: Grant t1 g1 Dirty, bytes from home
            n1 set Dirty g1
            n1 ready o1
        n0 placed
        ",
    );
    cluster.at_rest(Some(1), &[]);
}

/// Figure 4c: a remote write of a line that a third node owns. 1 request, 2 look-up, 3 forward, 4.1 the bytes to the
/// requester, 4.2 the transfer to the home, 5.1 the owner's copy is gone, 5.2 directory, 6 the home's reply, 7 the
/// write, only after both 4.1 and 6.
#[test]
fn figure_4c_remote_write_of_a_dirty_line() {
    let mut cluster = CoherenceCluster::owned_by(3, 2);
    cluster.write(1, 1);
    cluster.run();
    cluster.happened(
        "
        n1 issues o1 Write
            n1 send to n0: Write t1 into frame 1
        n1 > n0: Write t1 into frame 1
            n0 send to n2: Recall g1 down to Invalid, bytes to n1 t1
        n0 > n2: Recall g1 down to Invalid, bytes to n1 t1
            n2 set Invalid
            n2 place in n1 frame 1: Data t1
            n2 send to n0: Ack g1 had the bytes and forwarded them, left Invalid
        n2 > n0: Ack g1 had the bytes and forwarded them, left Invalid
            n0 send to n1: Grant t1 g2 Dirty, bytes from n2
        n0 > n1: Grant t1 g2 Dirty, bytes from n2
        n2 > n1: Data t1
            n1 set Dirty g2
            n1 ready o1
        n2 placed
            n2 release
        ",
    );
    cluster.at_rest(Some(1), &[]);
}

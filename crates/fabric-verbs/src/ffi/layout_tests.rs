//! Compares sizes and offsets of C's structures in this machine's headers with those of `types`.
//! Without a C compiler or headers there is nothing to compare with, which the test reports.

use super::types::*;
use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

/// `struct`, C name of a field (if any), and the value in Rust.
type Place = (&'static str, &'static str, usize);

macro_rules! of {
    ($($name:ident { $($field:ident),* })*) => {
        vec![$(
            (stringify!($name), "", size_of::<$name>()),
            $((stringify!($name), stringify!($field), offset_of!($name, $field)),)*
        )*]
    };
}

fn places_of_objects() -> Vec<Place> {
    of! {
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { alloc_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat }
        ibv_device_attr {
            node_guid, max_mr_size, vendor_id, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            atomic_cap, max_mw, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt
        }
        ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, device_cap_flags_ex, max_dm_size,
            pci_atomic_caps, phys_port_cnt_ex
        }
        ibv_port_attr {
            state, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, lid, sm_lid, lmc,
            sm_sl, link_layer, flags
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { context, handle }
        ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe }
        ibv_srq { context, srq_context, pd, handle }
        ibv_qp { context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

fn places_of_queues() -> Vec<Place> {
    let mut places = of! {
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl,
            rx_hash_conf, source_qpn, send_ops_flags
        }
        ibv_ah_attr { dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num,
            alt_timeout, rate_limit
        }
        ibv_async_event { element, event_type }
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_rdma_read,
            wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_set_inline_data, wr_set_sge,
            wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write
        }
    };
    places.push(("ibv_odp_caps", "", size_of::<ibv_odp_caps>()));
    let of_connections = offset_of!(ibv_odp_caps, rc_odp_caps);
    places.push(("ibv_odp_caps", "per_transport_caps.rc_odp_caps", of_connections));
    let context = offset_of!(ibv_srq_init_attr, max_wr);
    places.push(("ibv_srq_init_attr", "attr.max_wr", context));
    places.push(("ibv_ah_attr", "grh.flow_label", offset_of!(ibv_ah_attr, flow_label)));
    places.push(("ibv_ah_attr", "grh.sgid_index", offset_of!(ibv_ah_attr, sgid_index)));
    places.push(("ibv_ah_attr", "grh.hop_limit", offset_of!(ibv_ah_attr, hop_limit)));
    places.push(("ibv_ah_attr", "grh.traffic_class", offset_of!(ibv_ah_attr, traffic_class)));
    for (field, place) in [
        ("", size_of::<ibv_mw>()),
        ("rkey", offset_of!(ibv_mw, rkey)),
        ("handle", offset_of!(ibv_mw, handle)),
        ("type", offset_of!(ibv_mw, kind)),
    ] {
        places.push(("ibv_mw", field, place));
    }
    let bind = offset_of!(ibv_send_wr, bind_mw);
    for (field, place) in [
        ("bind_mw.mw", offset_of!(ibv_send_wr_bind, mw)),
        ("bind_mw.rkey", offset_of!(ibv_send_wr_bind, rkey)),
        ("bind_mw.bind_info", offset_of!(ibv_send_wr_bind, bind_info)),
    ] {
        places.push(("ibv_send_wr", field, bind + place));
    }
    let wr = offset_of!(ibv_send_wr, wr);
    let atomic = |field| wr + field;
    let key = offset_of!(ibv_send_wr_rdma, rkey);
    places.push(("ibv_send_wr", "wr.rdma.rkey", atomic(key)));
    let key = offset_of!(ibv_send_wr_atomic, rkey);
    places.push(("ibv_send_wr", "wr.atomic.rkey", atomic(key)));
    let add = offset_of!(ibv_send_wr_atomic, compare_add);
    places.push(("ibv_send_wr", "wr.atomic.compare_add", atomic(add)));
    places
}

/// Structures that have grown at their ends; an older header has a smaller size, and that is all.
const GROWN: &[&str] = &["ibv_qp_ex", "ibv_port_attr", "ibv_device_attr_ex", "ibv_gid_entry"];

fn places_of_rdma_cm() -> Vec<Place> {
    let mut places = of! {
        rdma_event_channel {}
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num
        }
    };
    for (field, place) in [
        ("verbs", offset_of!(rdma_cm_id, verbs)),
        ("channel", offset_of!(rdma_cm_id, channel)),
        ("context", offset_of!(rdma_cm_id, context)),
        ("qp", offset_of!(rdma_cm_id, qp)),
        ("ps", offset_of!(rdma_cm_id, ps)),
        ("port_num", offset_of!(rdma_cm_id, port_num)),
    ] {
        places.push(("rdma_cm_id", field, place));
    }
    for (field, place) in [
        ("id", offset_of!(rdma_cm_event, id)),
        ("listen_id", offset_of!(rdma_cm_event, listen_id)),
        ("event", offset_of!(rdma_cm_event, event)),
        ("status", offset_of!(rdma_cm_event, status)),
        ("param.conn", offset_of!(rdma_cm_event, conn)),
    ] {
        places.push(("rdma_cm_event", field, place));
    }
    places
}

/// Returns the values in C, each on a line.
fn asked(header: &str, places: &[(&str, &str, usize)]) -> Option<Vec<String>> {
    let mut source = format!(
        "#include <infiniband/verbs.h>\n#include <{header}>\n#include <stdio.h>\n\
         #include <stddef.h>\nint main(void) {{\n",
    );
    for (name, field, _) in places {
        let value = match *field {
            "" => format!("sizeof(struct {name})"),
            field => format!("offsetof(struct {name}, {field})"),
        };
        source += &format!("printf(\"%zu\\n\", {value});\n");
    }
    // Offsets in the tail are counted from its end.
    let wide = ["reg_dm_mr", "alloc_dm", "free_dm"];
    for field in wide.iter().chain(&["query_device_ex", "create_qp_ex", "sz", "context"]) {
        let place = format!("offsetof(struct verbs_context, {field})");
        source += &format!("printf(\"%zu\\n\", sizeof(struct verbs_context) - {place});\n");
    }
    source += "return 0; }\n";
    let name = header.replace(['/', '.'], "-");
    let name = format!("farside-layout-{}-{name}", std::process::id());
    let program = std::env::temp_dir().join(name);
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-w", "-o"])
        .arg(&program)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    compiler.stdin.take()?.write_all(source.as_bytes()).ok()?;
    let output = compiler
        .wait()
        .ok()
        .filter(std::process::ExitStatus::success)
        .and_then(|_| Command::new(&program).output().ok());
    let _ = std::fs::remove_file(&program);
    let text = String::from_utf8(output?.stdout).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

/// Past the test harness, which shows nothing of tests that pass.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "skipped: {why}");
}

#[test]
fn structures_of_rdma_cm_are_as_in_the_headers() {
    let places = places_of_rdma_cm();
    let Some(lines) = asked("rdma/rdma_cma.h", &places) else {
        skipped("no C compiler, or no <rdma/rdma_cma.h> (librdmacm-dev)");
        return;
    };
    for ((name, field, ours), theirs) in places.iter().zip(&lines) {
        assert_eq!(ours.to_string(), *theirs, "{name}.{field}");
    }
}

#[test]
fn structures_are_as_in_the_headers() {
    let places = [places_of_objects(), places_of_queues()].concat();
    let Some(lines) = asked("infiniband/verbs.h", &places) else {
        skipped("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
        return;
    };
    let mut wrong = Vec::new();
    for ((name, field, ours), theirs) in places.iter().zip(&lines) {
        let theirs: usize = theirs.parse().expect("a number of each line");
        let smaller = field.is_empty() && GROWN.contains(name) && theirs < *ours;
        if theirs != *ours && !smaller {
            wrong.push(format!("{name}.{field}: {ours} here, {theirs} in C"));
        }
    }
    let whole = size_of::<verbs_context_wide>();
    let before = offset_of!(verbs_context_wide, tail);
    let tail = [
        offset_of!(verbs_context_wide, reg_dm_mr),
        offset_of!(verbs_context_wide, alloc_dm),
        offset_of!(verbs_context_wide, free_dm),
        before + offset_of!(verbs_context_tail, query_device_ex),
        before + offset_of!(verbs_context_tail, create_qp_ex),
        before + offset_of!(verbs_context_tail, sz),
        before + offset_of!(verbs_context_tail, context),
    ];
    for (ours, theirs) in tail.map(|place| whole - place).iter().zip(&lines[places.len()..]) {
        if ours.to_string() != *theirs {
            wrong.push(format!("verbs_context, from its end: {ours} here, {theirs} in C"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

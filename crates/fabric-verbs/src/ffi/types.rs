//! The C types of libibverbs that are used, written by hand from rdma-core 56's `verbs.h`; they have
//! not changed since rdma-core 20 except for additions at their ends. `layout_tests` compares every
//! size and offset with the installed headers, if there are any.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | libibverbs and its providers | fill and read these | during the call that is given one |
//! | the other files of `ffi` | read fields and call through them | while the object lives |
//!
//! Nothing here is called; function pointers are typed here and called in the files that own objects.

#![allow(
    non_camel_case_types,
    reason = "the names of C's headers, so that they can be found there"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type Gid = [u8; 16];

#[repr(C)]
pub(crate) struct ibv_device {
    _operations: [*mut c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// An entry of a function table that is not called.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub(crate) struct ibv_context_ops {
    _before_mw: [Unused; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    _bind_mw: Unused,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    _create_cq: Unused,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _before_srq: [Unused; 7],
    pub(crate) post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    _before_send: [Unused; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv: Unused,
    _after: [Unused; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    _mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// The end of `verbs_context`, which grows at its beginning: the memory before `ibv_context` if
/// `abi_compat` is all ones. `sz` says from where on, counted from the end.
#[repr(C)]
pub(crate) struct verbs_context_tail {
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const c_void,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    _flows: [Unused; 4],
    _open_qp: Unused,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    _after: [Unused; 4],
    _placeholder: u64,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

pub(crate) type RegDmMr =
    unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr;
pub(crate) type AllocDm =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
pub(crate) type FreeDm = unsafe extern "C" fn(*mut ibv_dm) -> c_int;

/// The same end, from further before: with memory at the adapter.
#[repr(C)]
pub(crate) struct verbs_context_wide {
    pub(crate) reg_dm_mr: Option<RegDmMr>,
    pub(crate) alloc_dm: Option<AllocDm>,
    pub(crate) free_dm: Option<FreeDm>,
    _between: [Unused; 17],
    pub(crate) tail: verbs_context_tail,
}

#[repr(C)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm:
        Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
    pub(crate) memcpy_from_dm:
        Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    _max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    _max_ee: [c_int; 2],
    pub(crate) max_mw: c_int,
    _unused: [c_int; 8],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_odp_caps {
    pub(crate) general_caps: u64,
    pub(crate) rc_odp_caps: u32,
    _uc_and_ud: [u32; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr_ex {
    pub(crate) orig_attr: ibv_device_attr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: ibv_odp_caps,
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    _tso_caps: [u32; 2],
    _rss_caps: [u64; 4],
    _max_wq_type_rq: u32,
    _packet_pacing_caps: [u32; 3],
    _raw_packet_caps: u32,
    _tm_caps: [u32; 5],
    _cq_mod_caps: [u16; 2],
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: [u16; 3],
    _xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    _counters: [u32; 2],
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    _max_vl_num: u8,
    pub(crate) sm_sl: u8,
    _unused: [u8; 5],
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    _port_cap_flags2: u16,
    _active_speed_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    /// `type`
    pub(crate) kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _comp_events_completed: u32,
    _async_events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `wr` in its longest form; `rdma` has its key where `atomic` has `compare_add`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_send_wr_remote {
    pub(crate) rdma: ibv_send_wr_rdma,
    pub(crate) atomic: ibv_send_wr_atomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The part of `ibv_send_wr` for binding a window, with the longest form of its last field.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_bind {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

impl ibv_send_wr_bind {
    /// Of a request that binds nothing.
    pub(crate) const NONE: Self = Self {
        mw: std::ptr::null_mut(),
        rkey: 0,
        bind_info: ibv_mw_bind_info {
            mr: std::ptr::null_mut(),
            addr: 0,
            length: 0,
            mw_access_flags: 0,
        },
    };
}

#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    pub(crate) wr: ibv_send_wr_remote,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: ibv_send_wr_bind,
}

#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In network byte order.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) dgid: Gid8,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    _end_of_route: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// A GID aligned as C's union with 64-bit words is.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Gid8(pub(crate) Gid);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    /// A pointer to a queue or, in its low half, the number of a port.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: u32,
}

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

/// Up to `port_num`; C has further fields.
#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    _addresses: [libc::sockaddr_storage; 2],
    _gids: [u64; 5],
    _path_rec: *mut c_void,
    /// With C's padding after it.
    _num_paths: [c_int; 2],
    pub(crate) ps: c_int,
    pub(crate) port_num: u8,
}

#[repr(C)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// With the form of `param` that connections have; C has further fields.
#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: u32,
    pub(crate) status: c_int,
    pub(crate) conn: rdma_conn_param,
}

type Setter0 = Option<unsafe extern "C" fn(*mut ibv_qp_ex)>;

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    _wr_bind_mw: Unused,
    _wr_local_inv: Unused,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_send: Setter0,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    _wr_send_inv: Unused,
    _wr_send_tso: Unused,
    _wr_set_ud_addr: Unused,
    _wr_set_xrc_srqn: Unused,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    _wr_set_inline_data_list: Unused,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub(crate) wr_start: Setter0,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub(crate) wr_abort: Setter0,
    /// From here on only if the queue pair was created with the flag of it: an older library's
    /// structure ends before.
    pub(crate) wr_atomic_write:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    pub(crate) wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

pub(crate) const IBV_QPT_RC: c_int = 2;
pub(crate) const IBV_TRANSPORT_IB: c_int = 0;
pub(crate) const IBV_TRANSPORT_IWARP: c_int = 1;
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub(crate) const IBV_PORT_ACTIVE: c_int = 4;

pub(crate) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(crate) const IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
pub(crate) const IBV_ACCESS_MW_BIND: c_int = 1 << 4;
pub(crate) const IBV_ACCESS_ZERO_BASED: c_int = 1 << 5;
pub(crate) const IBV_ACCESS_ON_DEMAND: c_int = 1 << 6;
pub(crate) const IBV_ACCESS_FLUSH_GLOBAL: c_int = 1 << 8;
pub(crate) const IBV_ACCESS_FLUSH_PERSISTENT: c_int = 1 << 9;
pub(crate) const IBV_ACCESS_RELAXED_ORDERING: c_int = 1 << 20;
/// Flags that are ignored if they are not known: bits 20 to 29.
pub(crate) const IBV_ACCESS_OPTIONAL_RANGE: c_int = 0x3ff0_0000;

pub(crate) const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub(crate) const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub(crate) const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub(crate) const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
pub(crate) const IBV_QP_EX_WITH_FLUSH: u64 = 1 << 11;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;

pub(crate) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(crate) const IBV_WR_SEND: c_int = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: c_int = 3;
pub(crate) const IBV_WR_RDMA_READ: c_int = 4;
pub(crate) const IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub(crate) const IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub(crate) const IBV_WR_BIND_MW: c_int = 8;

pub(crate) const IBV_SEND_FENCE: c_uint = 1;
pub(crate) const IBV_SEND_SIGNALED: c_uint = 2;
pub(crate) const IBV_SEND_INLINE: c_uint = 8;

pub(crate) const IBV_FLUSH_GLOBAL: u8 = 1;
pub(crate) const IBV_FLUSH_PERSISTENT: u8 = 2;
pub(crate) const IBV_FLUSH_RANGE: u8 = 0;
pub(crate) const IBV_FLUSH_MR: u8 = 1;

pub(crate) const IBV_QP_STATE: c_int = 1;
pub(crate) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const IBV_QP_PORT: c_int = 1 << 5;
pub(crate) const IBV_QP_AV: c_int = 1 << 7;
pub(crate) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(crate) const IBV_QPS_INIT: c_int = 1;
pub(crate) const IBV_QPS_RTR: c_int = 2;
pub(crate) const IBV_QPS_RTS: c_int = 3;
pub(crate) const IBV_QPS_ERR: c_int = 6;

pub(crate) const IBV_WC_RECV: u32 = 1 << 7;
pub(crate) const IBV_WC_RECV_RDMA_WITH_IMM: u32 = IBV_WC_RECV + 1;
pub(crate) const IBV_WC_WITH_IMM: u32 = 1 << 1;

pub(crate) const IBV_MW_TYPE_2: c_int = 2;
pub(crate) const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;

//! The functions of libibverbs that the fabric loads.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the fabric | call these, with objects created by them | until it destroys them |
//! | these | read and fill their arguments | during the call |
//!
//! C objects are boxes that are leaked when created and freed when destroyed; the adapter's state of
//! them is in the world, by their addresses.

use crate::copy::copy;
use crate::fake::Odd;
use crate::types::*;
use crate::world::{
    Bind, Completions, DeviceMemory, FakeRegion, MemoryWindow, PostedWork, QueuePairState,
    Receives, World, world,
};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

const INLINE_BYTES: u64 = 256;
const DEVICE_BYTES: u64 = 64 << 10;

/// Returns a C structure of zeroes, as an address that `free` takes back.
fn make<T>() -> *mut T {
    // SAFETY: C structures, for which zeroes are a value.
    let object: T = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(object))
}

/// # Safety
/// Made by `make`, and freed once.
unsafe fn free<T>(object: *mut T) -> c_int {
    // SAFETY: as promised.
    drop(unsafe { Box::from_raw(object) });
    0
}

fn odd(world: &World, what: Odd, usual: u64) -> u64 {
    world.script.odd.get(&(what as u32)).copied().unwrap_or(usual)
}

fn name(into: &mut [c_char], text: &str) {
    for (to, from) in into.iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

fn fail<T>(number: c_int) -> *mut T {
    // SAFETY: this thread's error number.
    unsafe { *libc::__errno_location() = number };
    null_mut()
}

fn counter() -> c_int {
    // SAFETY: makes an event counter, each read of which takes one.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) }
}

/// Returns whether the counter had something; takes it.
fn take(counter: c_int) -> bool {
    let mut one = [0u8; 8];
    // SAFETY: reads at most eight bytes.
    unsafe { libc::read(counter, one.as_mut_ptr().cast(), 8) == 8 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let device = make::<ibv_device>();
    let world = world();
    // SAFETY: just made; `count` is the caller's.
    unsafe {
        name(&mut (*device).name, "fake0");
        (*device).node_type = 1;
        (*device).transport_type = odd(&world, Odd::Transport, 0) as c_int;
        if !count.is_null() {
            *count = c_int::from(!world.script.removed);
        }
    }
    Box::into_raw(Box::new([device, null_mut()])).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: made by `ibv_get_device_list`. The device stays: contexts point to it.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let around = make::<verbs_context_wide>();
    // SAFETY: just made.
    let context = unsafe {
        (*around).alloc_dm = Some(alloc_dm);
        (*around).free_dm = Some(free_dm);
        (*around).reg_dm_mr = Some(reg_dm_mr);
        (*around).tail.sz = size_of::<verbs_context_wide>();
        (*around).tail.query_device_ex = Some(query_device_ex);
        &raw mut (*around).tail.context
    };
    // SAFETY: as above.
    unsafe {
        (*context).abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        (*context).device = device;
        (*context).async_fd = counter();
        (*context).ops.poll_cq = Some(poll_cq);
        (*context).ops.req_notify_cq = Some(req_notify_cq);
        (*context).ops.post_srq_recv = Some(post_srq_recv);
        (*context).ops.post_send = Some(post_send);
        (*context).ops.alloc_mw = Some(alloc_mw);
        (*context).ops.dealloc_mw = Some(dealloc_mw);
        world().contexts.insert(context.addr(), ((*context).async_fd, VecDeque::new()));
    }
    context
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    world().contexts.remove(&context.addr());
    // SAFETY: the context's own counter; it was created with the structure around it.
    unsafe {
        libc::close((*context).async_fd);
        let back = std::mem::offset_of!(verbs_context_wide, tail)
            + std::mem::offset_of!(verbs_context_tail, context);
        free(context.cast::<u8>().sub(back).cast::<verbs_context_wide>())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(_: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    let world = world();
    // SAFETY: the caller's structure.
    let out = unsafe { &mut *out };
    out.max_mr_size = 1 << 40;
    out.max_qp = 4096;
    out.max_qp_wr = odd(&world, Odd::Requests, 1024) as c_int;
    out.max_sge = odd(&world, Odd::Slices, 8) as c_int;
    (out.max_cq, out.max_cqe, out.max_mr, out.max_pd) = (1024, 1 << 16, 1 << 16, 1024);
    (out.max_qp_rd_atom, out.max_qp_init_rd_atom, out.max_res_rd_atom) = (16, 16, 1024);
    out.atomic_cap = odd(&world, Odd::AtomicCap, 2) as c_int;
    out.max_srq = odd(&world, Odd::SharedReceiveQueues, 1024) as c_int;
    out.max_mw = odd(&world, Odd::Windows, 1 << 16) as c_int;
    if out.max_mw > 0 {
        out.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    }
    (out.max_srq_wr, out.max_srq_sge, out.max_pkeys, out.phys_port_cnt) = (4096, 1, 1, 1);
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const c_void,
    out: *mut ibv_device_attr_ex,
    _: usize,
) -> c_int {
    // SAFETY: the caller's structure, of this project's version.
    let done = unsafe { ibv_query_device(context, &raw mut (*out).orig_attr) };
    let paging = odd(&world(), Odd::OnDemand, 0);
    let device_bytes = odd(&world(), Odd::DeviceBytes, DEVICE_BYTES);
    // SAFETY: as above.
    unsafe {
        (*out).max_dm_size = device_bytes;
        (*out).odp_caps.general_caps = u64::from(paging != 0);
        (*out).odp_caps.rc_odp_caps = paging as u32;
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(_: *mut ibv_context, _: u8, out: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller's structure.
    let out = unsafe { &mut *out };
    out.state = if world().script.down { 1 } else { IBV_PORT_ACTIVE };
    (out.max_mtu, out.active_mtu, out.gid_tbl_len) = (5, 3, 1);
    (out.max_msg_sz, out.link_layer) = (1 << 24, IBV_LINK_LAYER_ETHERNET);
    0
}

fn gid() -> Gid {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 9, 8, 1 + world().script.moves]);
    gid
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    _: *mut ibv_context,
    _: u8,
    index: c_int,
    out: *mut Gid8,
) -> c_int {
    if index != 0 {
        return -1;
    }
    // SAFETY: the caller's pointer.
    unsafe { (*out).0 = gid() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    _: *mut ibv_context,
    out: *mut ibv_gid_entry,
    most: usize,
    _: u32,
    _: usize,
) -> isize {
    if most == 0 {
        return 0;
    }
    // SAFETY: the caller's array of `most`. 2 is RoCE v2.
    unsafe {
        *out =
            ibv_gid_entry { gid: gid(), gid_index: 0, port_num: 1, gid_type: 2, ndev_ifindex: 0 };
    }
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let domain = make::<ibv_pd>();
    // SAFETY: just made.
    unsafe { (*domain).context = context };
    domain
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: made above.
    unsafe { free(domain) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    if access & (IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT) != 0 {
        return fail(libc::EINVAL);
    }
    let mut world = world();
    // Far apart, so that no key is next to another.
    let key = world.number().wrapping_mul(0x9e37_79b1);
    let place = start.expose_provenance() as u64;
    world.regions.insert(key, FakeRegion { base: 0, start: place, bytes: bytes as u64, access });
    let memory = make::<ibv_mr>();
    // SAFETY: just made.
    unsafe {
        ((*memory).pd, (*memory).addr, (*memory).length) = (domain, start, bytes);
        ((*memory).lkey, (*memory).rkey) = (key, key);
    }
    memory
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    address: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if address != start.addr() as u64 {
        return fail(libc::EINVAL);
    }
    // SAFETY: as promised by the caller.
    unsafe { ibv_reg_mr(domain, start, bytes, access.cast_signed()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(memory: *mut ibv_mr) -> c_int {
    // SAFETY: made above.
    unsafe {
        let mut world = world();
        let key = (*memory).lkey;
        let bound = world.windows.values().any(|window| window.pair != 0 && window.region == key);
        world.violations += u64::from(bound);
        world.regions.remove(&key);
        free(memory)
    }
}

unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    wanted: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the caller's structure.
    let bytes = unsafe { (*wanted).length };
    let mut world = world();
    let own = world.device.values().filter(|one| one.context == context.addr());
    let taken: usize = own.map(|one| one.bytes).sum();
    if (taken + bytes) as u64 > odd(&world, Odd::DeviceBytes, DEVICE_BYTES) {
        return fail(libc::ENOMEM);
    }
    // Words, so that atomics are aligned; not zeroes, as an adapter's memory is not.
    let words = vec![0x5555_5555_5555_5555_u64; bytes.div_ceil(8)].into_boxed_slice();
    let memory = make::<ibv_dm>();
    // SAFETY: just made.
    unsafe {
        (*memory).context = context;
        (*memory).memcpy_to_dm = Some(memcpy_to_dm);
        (*memory).memcpy_from_dm = Some(memcpy_from_dm);
    }
    let start = Box::into_raw(words).cast::<u64>().expose_provenance() as u64;
    let made = DeviceMemory { context: context.addr(), start, bytes };
    world.device.insert(memory.addr(), made);
    memory
}

unsafe extern "C" fn free_dm(memory: *mut ibv_dm) -> c_int {
    let mut world = world();
    let Some(DeviceMemory { start, bytes, .. }) = world.device.remove(&memory.addr()) else {
        return libc::EINVAL;
    };
    // A region of it that is still registered.
    world.violations += u64::from(world.regions.values().any(|region| region.base == start));
    let first = std::ptr::with_exposed_provenance_mut::<u64>(start as usize);
    // SAFETY: leaked above with that many words, and taken back once.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, bytes.div_ceil(8))) });
    // SAFETY: made above.
    unsafe { free(memory) }
}

/// Returns the target of a copy, with the restrictions of mlx5's provider: words of four bytes, within
/// the memory.
fn copied(memory: *mut ibv_dm, offset: u64, bytes: usize) -> Option<*mut u8> {
    let DeviceMemory { start, bytes: all, .. } = *world().device.get(&memory.addr())?;
    let whole = offset.is_multiple_of(4) && bytes.is_multiple_of(4);
    let fits = offset.checked_add(bytes as u64).is_some_and(|end| end <= all as u64);
    (whole && fits).then(|| std::ptr::with_exposed_provenance_mut((start + offset) as usize))
}

unsafe extern "C" fn memcpy_to_dm(
    memory: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    match copied(memory, offset, bytes) {
        // SAFETY: within the memory; the caller's bytes.
        Some(to) => unsafe { copy(to, from.cast(), bytes) },
        None => return libc::EINVAL,
    }
    0
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    memory: *mut ibv_dm,
    offset: u64,
    bytes: usize,
) -> c_int {
    match copied(memory, offset, bytes) {
        // SAFETY: as above.
        Some(from) => unsafe { copy(to.cast(), from, bytes) },
        None => return libc::EINVAL,
    }
    0
}

unsafe extern "C" fn reg_dm_mr(
    domain: *mut ibv_pd,
    memory: *mut ibv_dm,
    offset: u64,
    bytes: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let mut world = world();
    let access = access.cast_signed();
    let found = world.device.get(&memory.addr()).copied();
    let Some(found) = found.filter(|_| access & IBV_ACCESS_ZERO_BASED != 0) else {
        return fail(libc::EINVAL);
    };
    if offset.checked_add(bytes as u64).is_none_or(|end| end > found.bytes as u64) {
        return fail(libc::EINVAL);
    }
    let key = world.number().wrapping_mul(0x9e37_79b1);
    let base = found.start + offset;
    world.regions.insert(key, FakeRegion { base, start: 0, bytes: bytes as u64, access });
    let region = make::<ibv_mr>();
    // SAFETY: just made.
    unsafe {
        ((*region).pd, (*region).length) = (domain, bytes);
        ((*region).lkey, (*region).rkey) = (key, key);
    }
    region
}

unsafe extern "C" fn alloc_mw(domain: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    let mut world = world();
    let most = odd(&world, Odd::Windows, 1 << 16);
    if kind != IBV_MW_TYPE_2 || world.windows.len() as u64 >= most {
        return fail(libc::ENOMEM);
    }
    let key = world.number().wrapping_mul(0x9e_3779) << 8;
    let window = make::<ibv_mw>();
    // SAFETY: just made.
    unsafe {
        ((*window).context, (*window).pd) = ((*domain).context, domain);
        ((*window).rkey, (*window).kind) = (key, kind);
    }
    let place = FakeRegion { base: 0, start: 0, bytes: 0, access: 0 };
    world.windows.insert(window.addr(), MemoryWindow { key, pair: 0, region: 0, place });
    window
}

unsafe extern "C" fn dealloc_mw(window: *mut ibv_mw) -> c_int {
    world().windows.remove(&window.addr());
    // SAFETY: made above.
    unsafe { free(window) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let channel = make::<ibv_comp_channel>();
    // SAFETY: just made.
    unsafe {
        ((*channel).context, (*channel).fd) = (context, counter());
        world().channels.insert(channel.addr(), ((*channel).fd, VecDeque::new()));
    }
    channel
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    world().channels.remove(&channel.addr());
    // SAFETY: made above; its own counter.
    unsafe {
        libc::close((*channel).fd);
        free(channel)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let queue = make::<ibv_cq>();
    // SAFETY: just made.
    unsafe { ((*queue).context, (*queue).channel, (*queue).cqe) = (context, channel, entries) };
    let completions = Completions {
        channel: channel.addr(),
        most: usize::try_from(entries).unwrap_or(0),
        ..Default::default()
    };
    world().completions.insert(queue.addr(), completions);
    queue
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: made above.
    unsafe { (*queue).cqe = entries };
    if let Some(completions) = world().completions.get_mut(&queue.addr()) {
        completions.most = usize::try_from(entries).unwrap_or(0);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    let mut world = world();
    world.completions.remove(&queue.addr());
    for (_, events) in world.channels.values_mut() {
        events.retain(|event| *event != queue.addr());
    }
    // SAFETY: made above.
    unsafe { free(queue) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    // SAFETY: made above.
    if !take(unsafe { (*channel).fd }) {
        return -1;
    }
    let mut world = world();
    let events = world.channels.get_mut(&channel.addr());
    let Some(event) = events.and_then(|(_, events)| events.pop_front()) else {
        return -1;
    };
    // SAFETY: the caller's pointer.
    unsafe { *queue = std::ptr::with_exposed_provenance_mut(event) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    domain: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let queue = make::<ibv_srq>();
    // SAFETY: just made; the caller's structure.
    let most = unsafe {
        ((*queue).context, (*queue).pd) = ((*domain).context, domain);
        (*attributes).max_wr as usize
    };
    world().receives.insert(queue.addr(), Receives { most, ..Default::default() });
    queue
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int {
    world().receives.remove(&queue.addr());
    // SAFETY: made above.
    unsafe { free(queue) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    domain: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let attributes = unsafe { &mut *attributes };
    let mut world = world();
    let inline = odd(&world, Odd::InlineBytes, INLINE_BYTES);
    if u64::from(attributes.cap.max_inline_data) > inline || world.script.removed {
        return fail(libc::EINVAL);
    }
    let number = world.number();
    let pair = make::<ibv_qp>();
    // SAFETY: just made.
    let context = unsafe {
        ((*pair).context, (*pair).pd, (*pair).qp_num) = ((*domain).context, domain, number);
        (*pair).context.addr()
    };
    let made = QueuePairState {
        state: 0,
        peer: 0,
        queue: attributes.send_cq.addr(),
        receives: attributes.srq.addr(),
        context,
        object: pair.addr(),
        jobs: VecDeque::new(),
        hangs: false,
        answer: None,
    };
    world.pairs.insert(number, made);
    pair
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: made above; the caller's structure.
    let (number, attributes) = unsafe { ((*pair).qp_num, &*attributes) };
    let mut world = world();
    let Some(found) = world.pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    if mask & IBV_QP_STATE != 0 {
        found.state = attributes.qp_state;
    }
    if mask & IBV_QP_DEST_QPN != 0 {
        found.peer = attributes.dest_qp_num;
    }
    if found.state == IBV_QPS_ERR {
        world.fail(number);
    }
    world.go_on();
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_int, _: u32) -> c_int {
    let rising = cfg!(target_arch = "x86_64");
    odd(&world(), Odd::InOrder, u64::from(rising)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: made above.
    unsafe {
        let (mut world, number) = (world(), (*pair).qp_num);
        let bound = world.windows.values().any(|window| window.pair == number);
        world.violations += u64::from(bound);
        world.pairs.remove(&number);
        free(pair)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    // SAFETY: made above.
    if !take(unsafe { (*context).async_fd }) {
        return -1;
    }
    let mut world = world();
    let events = world.contexts.get_mut(&context.addr());
    let Some((element, event_type)) = events.and_then(|(_, events)| events.pop_front()) else {
        return -1;
    };
    let element = std::ptr::without_provenance_mut(element);
    // SAFETY: the caller's structure.
    unsafe { *out = ibv_async_event { element, event_type } };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    let mut world = world();
    let removed = world.script.removed;
    let Some(completions) = world.completions.get_mut(&queue.addr()) else {
        return -1;
    };
    if removed || completions.done.len() > completions.most {
        return -1;
    }
    let mut count = 0;
    while count < most
        && let Some(done) = completions.done.pop_front()
    {
        // SAFETY: the caller's array of `most`.
        unsafe { *out.add(count as usize) = done };
        count += 1;
    }
    count
}

unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _: c_int) -> c_int {
    if let Some(completions) = world().completions.get_mut(&queue.addr()) {
        completions.armed = true;
    }
    0
}

unsafe extern "C" fn post_srq_recv(
    queue: *mut ibv_srq,
    request: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world();
    let Some(receives) = world.receives.get_mut(&queue.addr()) else {
        return libc::EINVAL;
    };
    if receives.posted.len() >= receives.most {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's request, with one slice or none.
    let (id, slice) = unsafe {
        let slice = ((*request).num_sge > 0).then(|| *(*request).sg_list);
        ((*request).wr_id, slice)
    };
    receives.posted.push_back((id, slice));
    world.go_on();
    0
}

/// # Safety
/// A request as `ibv_post_send` wants it.
unsafe fn job(request: &ibv_send_wr) -> PostedWork {
    let count = usize::try_from(request.num_sge).unwrap_or(0);
    let mut slices = Vec::with_capacity(count);
    let mut inline = None;
    // SAFETY: as promised; inline slices are addresses of the program's own bytes.
    unsafe {
        for at in 0..count {
            slices.push(*request.sg_list.add(at));
        }
        if request.send_flags & IBV_SEND_INLINE != 0 {
            let mut bytes = Vec::new();
            for slice in &slices {
                let from = std::ptr::with_exposed_provenance::<u8>(slice.addr as usize);
                bytes.extend_from_slice(std::slice::from_raw_parts(from, slice.length as usize));
            }
            inline = Some(bytes);
        }
        let bind = (request.opcode == IBV_WR_BIND_MW).then(|| {
            let asked = &request.bind_mw;
            let info = &asked.bind_info;
            // The key that the program has noted names the window.
            let named = (*asked.mw).rkey >> 8 == asked.rkey >> 8;
            Bind {
                window: if named { asked.mw.addr() } else { 0 },
                key: asked.rkey,
                region: (*info.mr).lkey,
                start: info.addr,
                bytes: info.length,
                access: info.mw_access_flags.cast_signed(),
            }
        });
        let atomic = request.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
        let (remote, key) = if atomic {
            (request.wr.atomic, request.wr.atomic.rkey)
        } else {
            (request.wr.atomic, request.wr.rdma.rkey)
        };
        PostedWork {
            id: request.wr_id,
            opcode: request.opcode,
            signalled: request.send_flags & IBV_SEND_SIGNALED != 0,
            fence: request.send_flags & IBV_SEND_FENCE != 0,
            immediate: request.imm_data,
            address: remote.remote_addr,
            key,
            operands: [remote.compare_add, remote.swap],
            slices,
            inline,
            bind,
        }
    }
}

unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    let mut world = world();
    // SAFETY: made above.
    let number = unsafe { (*pair).qp_num };
    world.posted[0] += 1;
    while !request.is_null() {
        // SAFETY: the caller's list.
        let job = unsafe { job(&*request) };
        let Some(found) = world.pairs.get_mut(&number) else {
            return libc::EINVAL;
        };
        found.jobs.push_back(job);
        world.posted[1] += 1;
        // SAFETY: as above.
        request = unsafe { (*request).next };
    }
    world.run(number);
    0
}

//! libibverbs, found at run time.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | [`Library::load`] | open the library, take the addresses of its functions | once a library |
//! | the other files of `ffi` | call them with objects of the same library | while they hold the `Arc` |
//! | no code | unload it: threads of providers may run in it | |
//!
//! Plain `dlsym`: of a symbol with several versions it finds the default one, which for all of these
//! is `IBVERBS_1.1` or newer; a library without versions (a fake one) is found as well. A function
//! that came later than rdma-core 20 is optional.

use super::types::*;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The default library.
pub const LIBRARY: &str = "libibverbs.so.1";

/// Why the library cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoLibrary {
    /// It is not installed; the text of the loader.
    Absent(String),
    /// It lacks this function.
    Lacks(&'static str),
}

impl fmt::Display for NoLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(words) => f.write_str(words),
            Self::Lacks(name) => write!(f, "it lacks the function {name}"),
        }
    }
}

/// Declares a type of each function, and its address.
macro_rules! functions {
    (
        $library:ident
        required { $($(#[$doc:meta])* $name:ident: $symbol:literal $kind:ty;)* }
        optional { $($(#[$late_doc:meta])* $late:ident: $late_symbol:literal $late_kind:ty;)* }
    ) => {
        /// The functions of one loaded library.
        pub(crate) struct $library {
            $($(#[$doc])* pub(super) $name: $kind,)*
            $($(#[$late_doc])* pub(super) $late: Option<$late_kind>,)*
        }

        impl $library {
            fn of(handle: Opened) -> Result<Self, NoLibrary> {
                Ok(Self {
                    $($name: {
                        let found = handle.find(concat!($symbol, "\0"));
                        let found = found.ok_or(NoLibrary::Lacks($symbol))?;
                        // SAFETY: the C function of this name has this type in every version of the
                        // library that has it at all.
                        unsafe { std::mem::transmute::<*mut c_void, $kind>(found) }
                    },)*
                    $($late: handle.find(concat!($late_symbol, "\0")).map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, $late_kind>(found) }
                    }),)*
                })
            }
        }
    };
}

pub(super) use functions;

functions! {
    Library
    required {
        get_device_list: "ibv_get_device_list"
            unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list: "ibv_free_device_list" unsafe extern "C" fn(*mut *mut ibv_device);
        open_device: "ibv_open_device" unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
        close_device: "ibv_close_device" unsafe extern "C" fn(*mut ibv_context) -> c_int;
        query_device: "ibv_query_device"
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        /// Fills the structure up to `flags`, as this symbol always has.
        query_port: "ibv_query_port"
            unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        query_gid: "ibv_query_gid"
            unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut Gid8) -> c_int;
        alloc_pd: "ibv_alloc_pd" unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd: "ibv_dealloc_pd" unsafe extern "C" fn(*mut ibv_pd) -> c_int;
        reg_mr: "ibv_reg_mr"
            unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr: "ibv_dereg_mr" unsafe extern "C" fn(*mut ibv_mr) -> c_int;
        create_comp_channel: "ibv_create_comp_channel"
            unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel: "ibv_destroy_comp_channel"
            unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
        create_cq: "ibv_create_cq"
            unsafe extern "C" fn(
                *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int,
            ) -> *mut ibv_cq;
        resize_cq: "ibv_resize_cq" unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
        destroy_cq: "ibv_destroy_cq" unsafe extern "C" fn(*mut ibv_cq) -> c_int;
        get_cq_event: "ibv_get_cq_event"
            unsafe extern "C" fn(
                *mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void,
            ) -> c_int;
        ack_cq_events: "ibv_ack_cq_events" unsafe extern "C" fn(*mut ibv_cq, c_uint);
        create_srq: "ibv_create_srq"
            unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        destroy_srq: "ibv_destroy_srq" unsafe extern "C" fn(*mut ibv_srq) -> c_int;
        create_qp: "ibv_create_qp"
            unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp: "ibv_modify_qp"
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        destroy_qp: "ibv_destroy_qp" unsafe extern "C" fn(*mut ibv_qp) -> c_int;
        get_async_event: "ibv_get_async_event"
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event: "ibv_ack_async_event" unsafe extern "C" fn(*mut ibv_async_event);
    }
    optional {
        /// Drops optional flags that the kernel does not know, which `ibv_reg_mr` as a function does not
        /// in every version (rdma-core 28 to 31 hand them on, and older ones know of none).
        reg_mr_iova2: "ibv_reg_mr_iova2"
            unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        query_gid_table: "_ibv_query_gid_table"
            unsafe extern "C" fn(
                *mut ibv_context, *mut ibv_gid_entry, usize, u32, usize,
            ) -> isize;
        qp_to_qp_ex: "ibv_qp_to_qp_ex" unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
        query_qp_data_in_order: "ibv_query_qp_data_in_order"
            unsafe extern "C" fn(*mut ibv_qp, c_int, u32) -> c_int;
    }
}

/// An open library, never closed.
pub(super) struct Opened(*mut c_void);

impl Opened {
    pub(super) fn open(name: &str) -> Result<Self, NoLibrary> {
        let absent = |words: &str| NoLibrary::Absent(words.to_owned());
        let path = CString::new(name).map_err(|_| absent("its path has a zero byte"))?;
        // SAFETY: a string that ends; initialisers of the library run, as for any linked one.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Self(handle));
        }
        // SAFETY: the words of this thread's last failure, which stay until its next call.
        let words = unsafe { libc::dlerror() };
        if words.is_null() {
            return Err(absent("no reason was given"));
        }
        // SAFETY: a string that ends, copied at once.
        let words = unsafe { CStr::from_ptr(words) };
        Err(absent(&words.to_string_lossy()))
    }

    /// Returns the symbol of a name that ends with a zero byte.
    pub(super) fn find(&self, name: &'static str) -> Option<*mut c_void> {
        // SAFETY: the handle is never closed, and the name ends with a zero byte.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr().cast::<c_char>()) };
        (!found.is_null()).then_some(found)
    }
}

impl Library {
    /// Returns the library of this name or path; opened once, never closed.
    ///
    /// # Errors
    /// If it is not installed, or not such a library.
    pub(crate) fn load(name: &str) -> Result<Arc<Self>, NoLibrary> {
        static LOADED: Mutex<Vec<(String, Arc<Library>)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = loaded.iter().find(|(known, _)| known == name) {
            return Ok(Arc::clone(known));
        }
        let library = Arc::new(Self::of(Opened::open(name)?)?);
        loaded.push((name.to_owned(), Arc::clone(&library)));
        Ok(library)
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_absent_or_another_is_said() {
        let absent = Library::load("libibverbs-that-is-absent.so.1");
        assert!(matches!(absent, Err(NoLibrary::Absent(words)) if words.contains("is-absent")));
        let other = Library::load("libc.so.6");
        assert_eq!(other.err(), Some(NoLibrary::Lacks("ibv_get_device_list")));
    }
}

//! The guest's root file system: named programs of Debian with the libraries that they need.

use super::apt::{Apt, Chosen, output};
use super::cache::failed;
use super::initramfs::Archive;
use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that provide programs, libraries and headers; their dependencies are added.
const PACKAGES: &[&str] = &[
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "dash",
    "coreutils",
    "util-linux",
    "busybox-static",
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1t64",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "ndctl",
    "libibverbs-dev",
    "librdmacm-dev",
];
/// Programs of every guest. Debian's busybox prefers its own applets when it starts a program (its `ip` to iproute2's),
/// so programs that start others are not busybox's.
const PROGRAMS: &[&str] = &[
    "busybox", "dash", "env", "timeout", "nice", "stdbuf", "setsid", "taskset", "chrt", "nsenter",
    "unshare", "ip", "rdma", "tc",
];
/// Programs of `--tools`.
const TOOLS: &[&str] = &[
    "ibv_devinfo",
    "ibv_devices",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_ud_pingpong",
    "ibv_uc_pingpong",
    "rping",
    "ucmatose",
    "udaddy",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ndctl",
];
/// Libraries that host-built programs find in the guest; others are copied with the programs.
const LIBRARIES: &[&str] = &[
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libibverbs.so.1",
    "librdmacm.so.1",
];
/// User-space drivers of devices.
const DRIVERS: &[&str] = &["rxe", "siw"];
/// Debian's folder of libraries of this architecture.
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
/// Folders of files in an unpacked package. Releases differ in what has moved to /usr.
const FOLDERS: &[&str] = &[
    LIBRARY_FOLDER,
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/bin",
    "bin",
    "usr/sbin",
    "sbin",
];
/// Folders that are mount points of the first program, or that programs expect.
const EMPTY_FOLDERS: &[&str] =
    &["proc", "sys", "dev", "tmp", "run", "out", "share", "modules", "var", "etc/libibverbs.d"];
/// The first program: mounts the folder that the guest shares with this machine, and continues there.
const FIRST: &str = include_str!("../../guest/first.sh");

/// Returns the fingerprint of the image that this file builds.
pub(crate) fn identity() -> String {
    let lists = [PACKAGES, PROGRAMS, TOOLS, LIBRARIES, EMPTY_FOLDERS].concat();
    super::cache::fingerprint(&[FIRST, &lists.join(" "), "layout 1"])
}

/// Fills `folder` with `base.cpio`, `tools.cpio`, `libraries` (their names, one per line) and `development` (headers
/// and libraries for compiling the self-test).
pub(crate) fn build(apt: &Apt, work: &Path, folder: &Path) -> Result<Vec<Chosen>, String> {
    let stage = UnpackedPackages { root: work.join("userland") };
    let mut chosen = apt.unpack_closure(PACKAGES, &stage.root)?;
    let root = work.join("root");
    stage.lay_out(&root)?;
    PROGRAMS.iter().try_for_each(|program| stage.add_program(program, &root, &root))?;
    LIBRARIES.iter().try_for_each(|library| stage.add_library(library, &root, &root))?;
    DRIVERS.iter().try_for_each(|driver| stage.add_driver(driver, &root))?;
    link_applets(&root)?;
    write(&root.join("init"), FIRST, 0o755)?;
    pack(&root, &folder.join("base.cpio"))?;
    let libraries = names_in(&root.join(LIBRARY_FOLDER))?.into_iter().collect::<Vec<_>>();
    write(&folder.join("libraries"), &libraries.join("\n"), 0o644)?;

    let tools = work.join("tools");
    TOOLS.iter().try_for_each(|program| stage.add_program(program, &tools, &root))?;
    pack(&tools, &folder.join("tools.cpio"))?;

    stage.export(&folder.join("development"))?;
    chosen.retain(|package| PACKAGES.contains(&package.name.as_str()));
    Ok(chosen)
}

/// Unpacked packages.
struct UnpackedPackages {
    root: PathBuf,
}

impl UnpackedPackages {
    /// Creates the folders, links and tables of an empty root file system.
    fn lay_out(&self, root: &Path) -> Result<(), String> {
        let folders = EMPTY_FOLDERS.iter().chain(&["usr/bin", "usr/lib64", "usr/lib"]);
        for name in folders.chain(&[LIBRARY_FOLDER]) {
            make_folder(&root.join(name))?;
        }
        let links = [
            ("bin", "usr/bin"),
            ("sbin", "usr/bin"),
            ("usr/sbin", "bin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
            ("usr/bin/sh", "dash"),
        ];
        for (name, target) in links {
            link(target, &root.join(name))?;
        }
        write(&root.join("etc/passwd"), "root:x:0:0:root:/tmp:/bin/sh\n", 0o644)?;
        write(&root.join("etc/group"), "root:x:0:\n", 0o644)?;
        write(&root.join("etc/hosts"), "127.0.0.1 localhost guest\n::1 localhost\n", 0o644)
    }

    /// Adds a program and its libraries to `into`, except those in `base`.
    fn add_program(&self, name: &str, into: &Path, base: &Path) -> Result<(), String> {
        let from = self.find(name)?;
        let to = into.join("usr/bin").join(name);
        copy(&from, &to)?;
        self.add_needed(&from, into, base)
    }

    fn add_library(&self, name: &str, into: &Path, base: &Path) -> Result<(), String> {
        if base.join(LIBRARY_FOLDER).join(name).exists() {
            return Ok(());
        }
        let from = self.find(name)?;
        // Every program contains the path of the loader.
        if name.starts_with("ld-linux") {
            copy(&from, &into.join("usr/lib64").join(name))?;
        }
        let to = into.join(LIBRARY_FOLDER).join(name);
        if to.exists() {
            return Ok(());
        }
        copy(&from, &to)?;
        self.add_needed(&from, into, base)
    }

    fn add_needed(&self, file: &Path, into: &Path, base: &Path) -> Result<(), String> {
        needed(file)?.iter().try_for_each(|name| self.add_library(name, into, base))
    }

    /// Adds the driver library of one kind of device.
    fn add_driver(&self, name: &str, root: &Path) -> Result<(), String> {
        let folder = self.root.join(LIBRARY_FOLDER).join("libibverbs");
        let start = format!("lib{name}-rdmav");
        let file = names_in(&folder)?.into_iter().find(|file| file.starts_with(&start));
        let file = file.ok_or(format!("the package ibverbs-providers has no {start}*"))?;
        copy(&folder.join(&file), &root.join(LIBRARY_FOLDER).join("libibverbs").join(&file))?;
        let table = root.join(format!("etc/libibverbs.d/{name}.driver"));
        write(&table, &format!("driver {name}\n"), 0o644)
    }

    /// Adds headers and libraries of verbs for compiling C programs of this project.
    fn export(&self, folder: &Path) -> Result<(), String> {
        for headers in ["infiniband", "rdma"] {
            let from = self.root.join("usr/include").join(headers);
            for name in names_in(&from)? {
                copy(&from.join(&name), &folder.join("include").join(headers).join(&name))?;
            }
        }
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            copy(&self.find(name)?, &folder.join("lib").join(name))?;
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<PathBuf, String> {
        let mut places = FOLDERS.iter().map(|folder| self.root.join(folder).join(name));
        places.find(|path| path.is_file()).ok_or(format!("no package of the guest has `{name}`"))
    }
}

/// Returns the shared libraries that a program or library needs directly.
fn needed(file: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new("readelf");
    command.args(["--dynamic", "--wide"]).arg(file).env("LC_ALL", "C");
    let text = output(command, &format!("readelf --dynamic {}", file.display()))?;
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    let names = lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0));
    Ok(names.map(str::to_owned).collect())
}

/// Creates a link for each of busybox's programs that is not installed as a separate program.
fn link_applets(root: &Path) -> Result<(), String> {
    let busybox = root.join("usr/bin/busybox");
    let mut command = Command::new(&busybox);
    // It is static, so it runs on this machine too.
    command.arg("--list");
    for name in output(command, "busybox --list")?.lines() {
        let path = root.join("usr/bin").join(name);
        if path.symlink_metadata().is_err() {
            link("busybox", &path)?;
        }
    }
    Ok(())
}

fn pack(root: &Path, file: &Path) -> Result<(), String> {
    let mut archive = Archive::new();
    archive.tree(root)?;
    std::fs::write(file, archive.finish()).map_err(|e| failed(file, e))
}

fn names_in(folder: &Path) -> Result<BTreeSet<String>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| failed(folder, e))?.flatten();
    Ok(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

fn make_folder(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|e| failed(path, e))
}

fn link(target: &str, path: &Path) -> Result<(), String> {
    symlink(target, path).map_err(|e| failed(path, e))
}

/// Copies a file, and creates its parent folders.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    std::fs::copy(from, to).map(|_| ()).map_err(|e| failed(from, e))
}

/// Writes a file with these permissions.
pub(crate) fn write(path: &Path, text: &str, permissions: u32) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| failed(path, e))?;
    let permissions = std::fs::Permissions::from_mode(permissions);
    std::fs::set_permissions(path, permissions).map_err(|e| failed(path, e))
}

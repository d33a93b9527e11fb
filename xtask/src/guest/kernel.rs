//! Debian's own kernel with a few of its modules, for QEMU.

use super::apt::{Apt, output, unpack};
use super::cache::failed;
use super::initramfs::Archive;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tested kernel; if it is not served any more, the newest one of the suite is used.
const VERSION: &str = "7.3.4+deb13";

/// Modules, grouped by the time when they are needed. Modules that are built into a kernel may be missing.
const GROUPS: &[(&str, &[&str])] = &[
    ("share", &["virtio_pci", "9pnet_virtio", "9p"]),
    // Before 7.0 rxe requests "crc32" by name, which no dependency loads.
    ("rdma", &["crc32_generic", "crc32c_generic", "ib_uverbs", "rdma_rxe", "rdma_ucm", "dummy"]),
    ("nodes", &["veth", "bridge", "sch_netem"]),
    ("pmem", &["nfit", "nd_pmem", "dax_pmem", "device_dax"]),
];

/// Returns the fingerprint of the kernel that this file builds.
pub(crate) fn identity() -> String {
    let groups: String = GROUPS.iter().map(|(name, list)| format!("{name} {list:?} ")).collect();
    super::cache::fingerprint(&[VERSION, &groups, "layout 2"])
}

/// Fills `folder` with `vmlinux` and `modules.cpio`, and returns the chosen version.
pub(crate) fn build(apt: &Apt, work: &Path, folder: &Path) -> Result<String, String> {
    let image = choose(&apt.names("linux-image-")?).ok_or("the suite has no linux-image")?;
    let version = image.trim_start_matches("linux-image-").to_owned();
    // From 7.1 on the image is in several packages.
    let mut packages = apt.depends(&image)?;
    let parts = [format!("linux-binary-{version}"), format!("linux-modules-{version}")];
    packages.retain(|name| parts.contains(name));
    packages.push(image);
    let (archives, tree) = (work.join("kernel-archives"), work.join("kernel"));
    apt.download(&packages, &archives)?;
    unpack(&archives, &tree)?;
    let files = files_below(&tree);
    let compressed = files.iter().find(|path| file_name(path).starts_with("vmlinuz"));
    let compressed = compressed.ok_or(format!("no vmlinuz in {}", packages.join(" ")))?;
    let bytes = std::fs::read(compressed).map_err(|e| failed(compressed, e))?;
    let vmlinux = folder.join("vmlinux");
    let image = uncompressed_image(&bytes).unwrap_or(bytes);
    std::fs::write(&vmlinux, image).map_err(|e| failed(&vmlinux, e))?;
    pack_modules(&files, work, &folder.join("modules.cpio"))
        .map_err(|text| format!("kernel {version}: {text}"))?;
    Ok(version)
}

/// Returns the tested image, or the newest one of the plain flavour: `-cloud` has no rxe.
fn choose(names: &[String]) -> Option<String> {
    let plain = |name: &&String| {
        let version =
            name.strip_prefix("linux-image-").and_then(|rest| rest.strip_suffix("-amd64"));
        version.is_some_and(|version| {
            version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains('-')
        })
    };
    let wanted = format!("linux-image-{VERSION}-amd64");
    let plain: Vec<_> = names.iter().filter(plain).collect();
    let newest = plain.iter().max_by_key(|name| numbers(name)).copied();
    plain.iter().find(|name| ***name == wanted).copied().or(newest).cloned()
}

/// Returns the numbers in a version, by which versions are ordered.
pub(crate) fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Returns the ELF image inside a bzImage; `None` if the format is unknown. QEMU starts it directly, without the
/// kernel's own decompressor, which is the slowest part of an emulated start.
fn uncompressed_image(bytes: &[u8]) -> Option<Vec<u8>> {
    // The boot protocol of x86: sectors of set-up code at 0x1f1, the payload's offset at 0x248.
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let sectors = match *bytes.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + usize::try_from(word(0x248)?).ok()?;
    let length = usize::try_from(word(0x24c)?).ok()?;
    // The last four bytes are the uncompressed length and not part of the stream.
    let payload = bytes.get(start..start + length.checked_sub(4)?)?;
    let image = decompress(payload).ok()?;
    image.starts_with(b"\x7fELF").then_some(image)
}

/// Uncompresses zstd, xz or gzip; returns other data unchanged.
fn decompress(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let program = match bytes {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x1f, 0x8b, ..] => "gzip",
        _ => return Ok(bytes.to_owned()),
    };
    let mut command = Command::new(program);
    command.args(["-d", "-c", "-q"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("{program}: {e}"))?;
    let input = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            // If the program ends early, its status is the reason.
            input.map(|mut input| input.write_all(bytes))
        });
        child.wait_with_output().map_err(|e| format!("{program}: {e}"))
    })?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("{program} failed ({})", output.status)),
    }
}

/// Packs the modules of all groups with their dependencies, and for each group a list in loading order.
fn pack_modules(files: &[PathBuf], work: &Path, archive: &Path) -> Result<(), String> {
    let mut collection = Collection { paths: BTreeMap::new(), loaded: BTreeMap::new() };
    for path in files {
        if let Some((name, _)) = file_name(path).split_once(".ko") {
            collection.paths.insert(name.replace('-', "_"), path);
        }
    }
    let mut packed = Archive::new();
    packed.folder("modules");
    for (group, names) in GROUPS {
        let mut order = Vec::new();
        names.iter().try_for_each(|name| collection.load(name, &mut order))?;
        let list: String = order.iter().map(|name| format!("{name}\n")).collect();
        packed.file(&format!("modules/{group}"), 0o644, list.as_bytes());
    }
    if !collection.loaded.contains_key("rdma_rxe") {
        return Err("it has no rdma_rxe".to_owned());
    }
    for (name, bytes) in &collection.loaded {
        let file = work.join("module.ko");
        std::fs::write(&file, bytes).map_err(|e| failed(&file, e))?;
        // Without signature and type tables a module loads three times faster under emulation.
        let mut command = Command::new("strip");
        command.args(["-g", "-R", ".BTF", "-R", ".BTF.ext"]).arg(&file);
        output(command, &format!("strip {name}"))?;
        let bytes = std::fs::read(&file).map_err(|e| failed(&file, e))?;
        packed.file(&format!("modules/{name}.ko"), 0o644, &bytes);
    }
    std::fs::write(archive, packed.finish()).map_err(|e| failed(archive, e))
}

/// Modules of a kernel.
struct Collection<'a> {
    paths: BTreeMap<String, &'a PathBuf>,
    /// The uncompressed contents.
    loaded: BTreeMap<String, Vec<u8>>,
}

impl Collection<'_> {
    /// Reads a module after its dependencies, and adds their names to `order`.
    fn load(&mut self, name: &str, order: &mut Vec<String>) -> Result<(), String> {
        let name = name.replace('-', "_");
        // Without a file: built in, or unknown to this version.
        let Some(path) = self.paths.get(&name).copied().filter(|_| !order.contains(&name)) else {
            return Ok(());
        };
        if !self.loaded.contains_key(&name) {
            let bytes = std::fs::read(path).map_err(|e| failed(path, e))?;
            let bytes = decompress(&bytes).map_err(|text| format!("{name}: {text}"))?;
            self.loaded.insert(name.clone(), bytes);
        }
        let needs = dependencies(&self.loaded[&name]);
        needs.iter().try_for_each(|need| self.load(need, order))?;
        order.push(name);
        Ok(())
    }
}

/// Returns the dependencies of a module from its section `.modinfo`: `depends=a,b` between zeros.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let at = module.windows(key.len()).position(|window| window == key);
    let rest = at.map_or(&[][..], |at| &module[at + key.len()..]);
    let value = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(value);
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns all files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tested_or_newest_plain_kernel_is_chosen() {
        let names = |list: &[&str]| -> Vec<String> {
            list.iter().map(|version| format!("linux-image-{version}-amd64")).collect()
        };
        let known = names(&["7.12.1+deb13", VERSION, "7.9.20+deb13"]);
        assert_eq!(choose(&known), Some(format!("linux-image-{VERSION}-amd64")));
        let later = names(&["7.9.20+deb13", "7.12.1+deb13", "7.13.1+deb13-cloud"]);
        assert_eq!(choose(&later), Some("linux-image-7.12.1+deb13-amd64".to_owned()));
        assert_eq!(choose(&names(&["cloud", "rt"])), None);
    }

    #[test]
    fn module_dependencies_are_parsed() {
        let module = b"\x7fELF..\0license=GPL\0depends=ib_core,ib_uverbs\0name=x\0";
        assert_eq!(dependencies(module), ["ib_core", "ib_uverbs"]);
        assert_eq!(dependencies(b"\0depends=\0"), [""; 0]);
        assert_eq!(dependencies(b"nothing"), [""; 0]);
    }

    #[test]
    fn invalid_kernel_has_no_image() {
        assert_eq!(uncompressed_image(b"short"), None);
        assert_eq!(uncompressed_image(&[0; 4096]), None);
    }
}

//! Folders of recorded machines.

use super::*;

/// A folder on a disk file system, and a `/sys` of its own; both are removed on drop.
struct RecordedFolder {
    folder: PathBuf,
    sysfs: PathBuf,
}

impl RecordedFolder {
    fn new(name: &str) -> Self {
        // The build folder is on a disk; temporary folders may be in memory.
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let base = base.join(format!("folder-{name}-{}", std::process::id()));
        let (folder, sysfs) = (base.join("data"), base.join("sys"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(sysfs.join("dev/block")).unwrap();
        Self { folder, sysfs }
    }

    /// Puts the folder's block device into a region of persistent memory with these files.
    fn on_region(&self, domain: Option<&str>, provider: &str) {
        let bus = self.sysfs.join("devices/LNXSYSTM:00/ndbus0");
        let block = bus.join("region2/namespace2.0/block/pmem2");
        std::fs::create_dir_all(&block).unwrap();
        std::fs::write(bus.join("provider"), format!("{provider}\n")).unwrap();
        if let Some(domain) = domain {
            let path = bus.join("region2/persistence_domain");
            std::fs::write(path, format!("{domain}\n")).unwrap();
        }
        self.device_is(&block);
    }

    fn device_is(&self, block: &Path) {
        let device = std::fs::metadata(&self.folder).unwrap().dev();
        let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        std::os::unix::fs::symlink(block, self.sysfs.join("dev/block").join(name)).unwrap();
    }

    /// Returns the report of a machine whose files can be mapped.
    fn mapped(&self) -> FolderReport {
        let report = inspect_with(&self.folder, &self.sysfs, &mut |file| {
            assert_eq!(file.metadata()?.len(), PROBE_BYTES);
            Ok(())
        });
        report.unwrap()
    }
}

impl Drop for RecordedFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.folder.parent().unwrap());
    }
}

#[test]
fn dax_folder_promises_persistent_memory_with_its_domain() {
    for (file, expected) in [
        ("memory_controller", PersistenceDomain::MemoryController),
        ("cpu_cache", PersistenceDomain::Caches),
    ] {
        let machine = RecordedFolder::new(file);
        machine.on_region(Some(file), "ACPI.NFIT");
        let report = machine.mapped();
        assert_eq!(report.promise, Promise::of(Medium::PersistentMemory));
        assert!(report.promise.survives_power);
        assert_eq!((report.mapping, report.domain), (FolderMapping::Synchronous, Some(expected)));
        assert_eq!(std::fs::read_dir(&machine.folder).unwrap().count(), 0, "unchanged");
    }
}

#[test]
fn memory_that_boot_options_declare_persistent_is_lost_with_the_power() {
    let machine = RecordedFolder::new("e820");
    machine.on_region(None, "e820");
    let report = machine.mapped();
    assert_eq!(report.promise.medium, Medium::PersistentMemory);
    assert!(!report.promise.survives_power, "{report:?}");
    let domain = report.domain.unwrap().to_string();
    assert!(domain.contains("may be DRAM"), "{domain}");
}

#[test]
fn unknown_persistence_domains_say_why() {
    let machine = RecordedFolder::new("no-region");
    let said = |report: FolderReport| {
        assert!(!report.promise.survives_power, "{report:?}");
        report.domain.unwrap().to_string()
    };
    let text = said(machine.mapped());
    assert!(text.contains("not known: sysfs has no block device"), "{text}");
    let mapper = machine.sysfs.join("devices/virtual/block/dm-0");
    std::fs::create_dir_all(&mapper).unwrap();
    machine.device_is(&mapper);
    let text = said(machine.mapped());
    assert!(text.contains("in no region of persistent memory"), "{text}");
    let machine = RecordedFolder::new("no-domain");
    machine.on_region(Some(""), "ACPI.NFIT");
    assert_eq!(said(machine.mapped()), "not known: the kernel does not say it");
}

#[test]
fn refused_and_failed_mappings_leave_a_disk_file() {
    let machine = RecordedFolder::new("refused");
    for (kind, text) in [
        (io::ErrorKind::Unsupported, "no: MAP_SYNC"),
        (io::ErrorKind::OutOfMemory, "not tried: cannot map a temporary file (MAP_SYNC)"),
    ] {
        let map = &mut |_: &File| Err(io::Error::new(kind, "MAP_SYNC"));
        let report = inspect_with(&machine.folder, &machine.sysfs, map).unwrap();
        assert_eq!(report.promise, Promise::of(Medium::File));
        assert_eq!((report.mapping.to_string().as_str(), report.domain), (text, None));
    }
    let missing = machine.folder.join("missing");
    assert!(inspect_folder(&missing).is_err());
}

#[test]
fn folders_in_memory_are_not_probed() {
    let Ok(report) = inspect_with(Path::new("/dev/shm"), Path::new("/sys"), &mut |_| {
        panic!("a folder in memory was probed")
    }) else {
        return;
    };
    if report.promise.medium == Medium::MemoryFile {
        assert!(matches!(report.mapping, FolderMapping::NotTried(_)), "{report:?}");
    }
}

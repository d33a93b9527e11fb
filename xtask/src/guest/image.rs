//! Images of guests: fetched and built if they are not in the cache.

use super::apt::{Apt, Chosen};
use super::boot::{GuestExit, Image, boot, read};
use super::cache::{Cache, RunFolder, failed, fingerprint, forget, part};
use super::engine::Engine;
use super::options::{EngineChoice, Job, Options, PROCESSORS_ON_PMEM};
use super::payload::{Pmem, Share};
use super::progress::say;
use super::{kernel, uml, userland};
use crate::debian::{Need, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The file in every part with its contents, one `package version` per line.
const CHOSEN: &str = "chosen";

/// Programs for unpacking, and for finding the libraries of this machine's programs.
const NEEDS: &[Need] = &[
    Need { what: "dpkg-deb", package: "dpkg" },
    Need { what: "readelf", package: "binutils" },
    Need { what: "xz", package: "xz-utils" },
    Need { what: "ldd", package: "libc-bin" },
    Need {
        what: "/usr/share/keyrings/debian-archive-keyring.gpg",
        package: "debian-archive-keyring",
    },
];
const NEEDS_OF_QEMU: &[Need] = &[
    Need { what: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { what: "zstd", package: "zstd" },
];
const NEEDS_OF_UML_BUILD: &[Need] = &[
    Need { what: "gcc", package: "gcc" },
    Need { what: "make", package: "make" },
    Need { what: "flex", package: "flex" },
    Need { what: "bison", package: "bison" },
    Need { what: "bc", package: "bc" },
    Need { what: "/usr/include/stdio.h", package: "libc6-dev" },
];

/// The cache of images.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) cache: Cache,
    /// Time limit of a kernel build.
    pub(crate) kernel_limit: Option<Duration>,
}

impl Images {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache, kernel_limit: None }
    }

    /// Returns the engine for these options.
    pub(crate) fn engine(&self, options: &Options) -> Engine {
        match options.engine {
            EngineChoice::Uml => Engine::Uml,
            EngineChoice::Qemu => Engine::Qemu,
            EngineChoice::Auto if options.has_pmem() => Engine::Qemu,
            EngineChoice::Auto if options.devices == super::options::Devices::Siw => Engine::Uml,
            EngineChoice::Auto if self.kernel_folder(Engine::Uml).is_dir() => Engine::Uml,
            EngineChoice::Auto => {
                say("the kernel of User Mode Linux is not built yet, so this is the engine qemu; \
                     for starts in a second, once: cargo xtask rdma-guest --prepare");
                Engine::Qemu
            }
        }
    }

    /// Returns the image of a guest of this engine, without an NVDIMM.
    pub(crate) fn image(&self, engine: Engine, tools: bool) -> Result<Image, String> {
        self.prepare(engine)?;
        let (userland, kernel) = (self.userland_folder(), self.kernel_folder(engine));
        let mut archives = vec![userland.join("base.cpio")];
        if tools {
            archives.push(userland.join("tools.cpio"));
        }
        let kernel = match engine {
            Engine::Uml => kernel.join("linux"),
            Engine::Qemu => {
                archives.push(kernel.join("modules.cpio"));
                kernel.join("vmlinux")
            }
        };
        Ok(Image { engine, kernel, archives, pmem: None })
    }

    /// Fetches and builds missing parts.
    pub(crate) fn prepare(&self, engine: Engine) -> Result<(), String> {
        self.meet_needs(engine)?;
        let mut workshop = Workshop { cache: &self.cache, open: None };
        part(&self.userland_folder(), |folder| {
            say("fetching the guest's programs");
            workshop.make(folder, |apt, work| userland::build(apt, work, folder))
        })?;
        part(&self.kernel_folder(engine), |folder| {
            say(&format!("making the kernel of the engine {}", engine.name()));
            workshop.make(folder, |apt, work| {
                let (name, version) = match engine {
                    Engine::Uml => {
                        ("linux-source", uml::build(apt, work, folder, self.kernel_limit)?)
                    }
                    Engine::Qemu => ("linux-image", kernel::build(apt, work, folder)?),
                };
                Ok(vec![Chosen { name: name.to_owned(), version }])
            })
        })?;
        Ok(())
    }

    /// Removes the parts that `prepare` creates for this engine.
    pub(crate) fn forget(&self, engine: Engine) -> Result<(), String> {
        forget(&self.userland_folder())?;
        forget(&self.kernel_folder(engine))
    }

    /// Returns the contents of the guests in the cache.
    pub(crate) fn chosen(&self) -> String {
        let mut text = String::new();
        let folders = [
            ("programs and libraries", self.userland_folder()),
            ("kernel of uml, by source", self.kernel_folder(Engine::Uml)),
            ("kernel of qemu", self.kernel_folder(Engine::Qemu)),
        ];
        for (what, folder) in folders {
            let list = read(&folder.join(CHOSEN));
            let list = if list.is_empty() { "not in the cache\n" } else { &list };
            text.push_str(&format!("{what} ({}):\n", folder.display()));
            list.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        text
    }

    /// Returns the file with the names of the guest's libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.userland_folder().join("libraries")
    }

    /// Returns the folder with headers and libraries of verbs.
    pub(crate) fn development(&self) -> PathBuf {
        self.userland_folder().join("development")
    }

    /// Adds an NVDIMM to an image: the file of `options`, created if it is absent, or one for this run.
    pub(crate) fn add_pmem(
        &self,
        image: &mut Image,
        options: &Options,
        run: &Path,
    ) -> Result<(), String> {
        let file = options.pmem_file.clone().unwrap_or_else(|| run.join("pmem"));
        let file = std::path::absolute(&file).map_err(|e| failed(&file, e))?;
        if !file.exists() {
            if options.pmem_mib == 0 {
                let shown = file.display();
                return Err(format!("{shown} does not exist: give its size by --pmem"));
            }
            copy_sparse(&self.formatted_pmem(options.pmem_mib)?, &file)?;
        }
        let bytes = file.metadata().map_err(|e| failed(&file, e))?.len();
        let size_mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        if !bytes.is_multiple_of(16 << 20) || size_mib < 64 {
            return Err(format!("{}: not an NVDIMM of this tool", file.display()));
        }
        image.pmem = Some((file, size_mib));
        Ok(())
    }

    /// Returns a file of this size, formatted as one device-dax namespace. A guest formats it once.
    fn formatted_pmem(&self, size_mib: u32) -> Result<PathBuf, String> {
        let name = fingerprint(&[&userland::identity(), &kernel::identity()]);
        let folder = self.cache.common.join(format!("pmem-{size_mib}-{name}"));
        let made = part(&folder, |folder| {
            say(&format!("formatting an NVDIMM of {size_mib} MiB; this is done once"));
            let file = folder.join("pmem");
            let made =
                std::fs::File::create(&file).and_then(|f| f.set_len(u64::from(size_mib) << 20));
            made.map_err(|e| failed(&file, e))?;
            let mut image = self.image(Engine::Qemu, true)?;
            image.pmem = Some((file, size_mib));
            let run = RunFolder::new(&self.cache)?;
            let options = Options { processors: PROCESSORS_ON_PMEM, ..Options::new(Job::Prepare) };
            Share::new(&run.path, &options, Pmem::Format, &self.libraries())?.command("true\n")?;
            match boot(&image, &options, &run.path, false)? {
                GuestExit::Code(0) => Ok(()),
                other => Err(format!("the NVDIMM could not be formatted: {other:?}")),
            }
        });
        made.map(|folder| folder.join("pmem"))
    }

    fn userland_folder(&self) -> PathBuf {
        self.cache.common.join(format!("userland-{}", userland::identity()))
    }

    fn kernel_folder(&self, engine: Engine) -> PathBuf {
        match engine {
            Engine::Uml => self.cache.lasting.join(format!("uml-{}", uml::identity())),
            Engine::Qemu => self.cache.common.join(format!("kernel-{}", kernel::identity())),
        }
    }

    /// Ensures that this machine has the programs that the engine needs.
    pub(crate) fn meet_needs(&self, engine: Engine) -> Result<(), String> {
        if !is_supported() {
            return Err("the guest needs a machine with an x86_64 processor".to_owned());
        }
        ensure(&self.needs(engine), &say)
    }

    /// Returns the needs of an engine on this machine.
    fn needs(&self, engine: Engine) -> Vec<Need> {
        let more = match engine {
            Engine::Qemu => NEEDS_OF_QEMU,
            Engine::Uml if self.kernel_folder(engine).is_dir() => &[],
            Engine::Uml => NEEDS_OF_UML_BUILD,
        };
        [NEEDS, more].concat()
    }
}

/// Returns whether guests support this machine's processor.
pub(crate) fn is_supported() -> bool {
    std::env::consts::ARCH == "x86_64"
}

/// A work folder with apt's private tree, both created on first use.
struct Workshop<'a> {
    cache: &'a Cache,
    open: Option<(Apt, RunFolder)>,
}

impl Workshop<'_> {
    /// Creates a part of the cache in `folder`, and records its contents.
    fn make(
        &mut self,
        folder: &Path,
        make: impl FnOnce(&Apt, &Path) -> Result<Vec<Chosen>, String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        if self.open.is_none() {
            let folder = RunFolder::new(self.cache)?;
            self.open = Some((Apt::open(&folder.path.join("apt"))?, folder));
        }
        let Some((apt, work)) = &self.open else {
            return Ok(());
        };
        let chosen = make(apt, &work.path)?;
        let lines = chosen.iter().map(|package| format!("{} {}", package.name, package.version));
        let lines: Vec<_> = lines.collect();
        userland::write(&folder.join(CHOSEN), &lines.join("\n"), 0o644)?;
        let seconds = begun.elapsed().as_secs();
        let versions: Vec<_> = chosen.iter().filter(|package| is_telling(&package.name)).collect();
        let versions = versions.iter().map(|chosen| format!("{} {}", chosen.name, chosen.version));
        say(&format!("made in {seconds} s of {}", versions.collect::<Vec<_>>().join(", ")));
        Ok(())
    }
}

/// Returns whether a package's version determines features of a guest.
fn is_telling(name: &str) -> bool {
    name.starts_with("linux-") || matches!(name, "libibverbs1" | "libc6" | "iproute2")
}

fn copy_sparse(from: &Path, to: &Path) -> Result<(), String> {
    let mut command = Command::new("cp");
    command.arg("--sparse=always").arg("--").arg(from).arg(to);
    super::apt::output(command, &format!("cp {} {}", from.display(), to.display())).map(|_| ())
}

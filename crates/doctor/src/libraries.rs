//! Finds the shared library that the dynamic loader would load, without loading it.

use super::host::Host;

/// Maximum number of folders searched.
const FOLDERS_MAX: usize = 128;

/// Returns the path of a library, in the loader's search order: `LD_LIBRARY_PATH`, `ld.so.conf`, the default folders.
pub(crate) fn find_library(host: &dyn Host, name: &str) -> Option<String> {
    let paths = folders(host).into_iter().map(|folder| format!("{folder}/{name}"));
    paths.into_iter().find(|path| host.exists(path))
}

/// Returns the path of a provider library, from the `libibverbs` subfolder of each search folder.
pub(crate) fn find_provider(host: &dyn Host, provider: &str) -> Option<String> {
    let start = format!("lib{provider}-rdmav");
    for folder in folders(host) {
        let folder = format!("{folder}/libibverbs");
        let fits = |name: &String| name.starts_with(&start) && name.contains(".so");
        if let Some(name) = host.names(&folder).into_iter().find(fits) {
            return Some(format!("{folder}/{name}"));
        }
    }
    None
}

fn folders(host: &dyn Host) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    let variable = host.variable("LD_LIBRARY_PATH").unwrap_or_default();
    folders.extend(variable.split([':', ';']).map(str::to_owned));
    let main = host.text("/etc/ld.so.conf").unwrap_or_default();
    for line in main.lines() {
        match line.trim().strip_prefix("include") {
            Some(pattern) => folders.extend(included(host, pattern.trim())),
            None => folders.push(line.trim().to_owned()),
        }
    }
    let arch = std::env::consts::ARCH;
    let usual = ["lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib"];
    folders.extend([format!("/lib/{arch}-linux-gnu"), format!("/usr/lib/{arch}-linux-gnu")]);
    folders.extend(usual.map(|folder| format!("/{folder}")));
    folders
        .retain(|folder| folder.starts_with('/') && folder.bytes().all(|b| b.is_ascii_graphic()));
    folders.truncate(FOLDERS_MAX);
    folders
}

/// Returns the folders that `include /etc/ld.so.conf.d/*.conf` adds.
fn included(host: &dyn Host, pattern: &str) -> Vec<String> {
    let Some((folder, files)) = pattern.rsplit_once('/') else {
        return Vec::new();
    };
    let folder = if folder.starts_with('/') { folder.to_owned() } else { format!("/etc/{folder}") };
    let end = files.trim_start_matches('*');
    let names = host.names(&folder).into_iter().filter(|name| name.ends_with(end));
    let texts = names.filter_map(|name| host.text(&format!("{folder}/{name}")));
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| line.trim().to_owned()).collect()
}

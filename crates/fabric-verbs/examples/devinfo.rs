//! Prints the RDMA devices and their attributes, and which one a fabric would use and why.

#![allow(clippy::print_stdout, reason = "an example's only output")]

use farside_bootstrap::Security;
use farside_fabric::Fabric;
use farside_fabric_verbs::{Options, VerbsFabric};

fn main() {
    let options = Options::new(Security::open());
    match VerbsFabric::devices(&options) {
        Ok(devices) if devices.is_empty() => println!("no RDMA devices"),
        Ok(devices) => {
            for device in devices {
                println!("{}", device.name);
                device.ports.iter().for_each(|port| println!("  {port}"));
                match device.facts {
                    Ok(facts) => println!("  {facts:#?}"),
                    Err(reason) => println!("  {reason}"),
                }
            }
        }
        Err(error) => println!("{error}"),
    }
    match VerbsFabric::open(options) {
        Ok(fabric) => println!("{}\n{:#?}", fabric.describe(), fabric.capabilities()),
        Err(error) => println!("{error}"),
    }
}

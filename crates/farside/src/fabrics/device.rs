//! RDMA devices as URLs and commands name them.

use std::fmt;
use std::str::FromStr;

/// A device with its port and the index of a GID, as far as they are named: `mlx5_0:1:3`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Device {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Its port, from 1; `None` for the first that is up.
    pub port: Option<u8>,
    /// The index of the port's GID; `None` for the best.
    pub gid_index: Option<u32>,
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("`{text}`: write DEVICE, DEVICE:PORT or DEVICE:PORT:GID, as mlx5_0:1:3");
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(wrong)?.to_owned();
        let number = |part: Option<&str>| part.map(str::parse::<u8>).transpose();
        let port = number(parts.next()).map_err(|_| wrong())?;
        let gid_index = number(parts.next()).map_err(|_| wrong())?.map(u32::from);
        match (port, parts.next()) {
            (Some(0), _) | (_, Some(_)) => Err(wrong()),
            _ => Ok(Self { name, port, gid_index }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.port, self.gid_index) {
            (None, _) => Ok(()),
            (Some(port), None) => write!(f, ":{port}"),
            (Some(port), Some(gid_index)) => write!(f, ":{port}:{gid_index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_parsed_and_printed() {
        let name = |port, gid_index| Device { name: "mlx5_0".to_owned(), port, gid_index };
        assert_eq!("mlx5_0".parse(), Ok(name(None, None)));
        assert_eq!("mlx5_0:2".parse(), Ok(name(Some(2), None)));
        assert_eq!("mlx5_0:1:3".parse(), Ok(name(Some(1), Some(3))));
        for text in ["mlx5_0", "mlx5_0:2", "mlx5_0:1:3"] {
            assert_eq!(text.parse::<Device>().map(|name| name.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:1:x", "mlx5_0:1:256", "a:1:2:3"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}

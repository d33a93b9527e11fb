//! Parses the URL of a fabric.

use super::{Endpoint, FabricOptions, Scheme};
use crate::security::Security;
use crate::{Error, ErrorCode};

const FORMS: &str = "write shm, tcp://HOST:PORT[,HOST:PORT...] or verbs://HOST:PORT[,HOST:PORT...], \
    and options as ?listen=HOST:PORT&advertise=HOST:PORT (and &device=DEVICE[:PORT[:GID]] over verbs)";

impl FabricOptions {
    /// Reads a URL ([module](super)).
    ///
    /// # Errors
    /// `BadConfiguration`, which lists the forms.
    pub fn parse(url: &str, security: Security) -> Result<Self, Error> {
        let options = read(url).map_err(|reason| {
            let url = url.escape_debug();
            Error::with(ErrorCode::BadConfiguration, format!("fabric `{url}`: {reason}; {FORMS}"))
        })?;
        Ok(options.security(security))
    }
}

fn read(url: &str) -> Result<FabricOptions, String> {
    if url == "shm" {
        return Ok(FabricOptions::new(Scheme::Shm));
    }
    let (scheme, rest) = url.split_once("://").ok_or("no such fabric")?;
    let scheme = match scheme {
        "tcp" => Scheme::Tcp,
        "verbs" => Scheme::Verbs,
        "shm" => return Err("shm has no hosts".to_owned()),
        other => return Err(format!("no fabric `{}`", other.escape_debug())),
    };
    let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut options = FabricOptions::new(scheme);
    options.hosts = hosts.split(',').map(endpoint).collect::<Result<_, _>>()?;
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "listen" => options.listen = Some(endpoint(value)?),
            "advertise" => options.advertise = Some(endpoint(value)?),
            "device" if scheme == Scheme::Verbs => options.device = Some(value.parse()?),
            other => return Err(format!("no option `{}`", other.escape_debug())),
        }
    }
    Ok(options)
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<FabricOptions, Error> {
        FabricOptions::parse(url, Security::open())
    }

    #[test]
    fn urls_are_parsed_by_scheme() {
        assert_eq!(parse("shm").unwrap().scheme, Scheme::Shm);
        let hosts = |options: &FabricOptions| {
            options.hosts.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
        };
        let tcp = parse("tcp://10.0.0.1:7471,[fd00::2]:7471,alpha:1").unwrap();
        assert_eq!(tcp.scheme, Scheme::Tcp);
        assert_eq!(hosts(&tcp), "10.0.0.1:7471,[fd00::2]:7471,alpha:1");
        assert_eq!((tcp.listen, tcp.advertise), (None, None));
        let url = "verbs://a:1?listen=0.0.0.0:1&advertise=a:2&device=mlx5_0:1";
        let verbs = parse(url).unwrap();
        assert_eq!(verbs.scheme, Scheme::Verbs);
        assert_eq!(verbs.listen.unwrap().to_string(), "0.0.0.0:1");
        assert_eq!(verbs.advertise.unwrap().to_string(), "a:2");
        assert_eq!(verbs.device.unwrap().to_string(), "mlx5_0:1");
    }

    #[test]
    fn malformed_urls_are_refused_with_the_forms() {
        for wrong in [
            "",
            "tcp",
            "tcp://",
            "tcp://10.0.0.1",
            "tcp://10.0.0.1:7471,",
            "tcp://10.0.0.1:7471/name",
            "tcp://10.0.0.1:7471?listen",
            "tcp://10.0.0.1:7471?device=mlx5_0",
            "tcp://10.0.0.1:7471?Listen=a:1",
            "shm://lab",
            "udp://10.0.0.1:7471",
            "verbs://a:1?device=",
            "tcp://\u{7}:1",
        ] {
            let error = FabricOptions::parse(wrong, Security::open()).unwrap_err();
            assert_eq!(error.code, ErrorCode::BadConfiguration, "{wrong}");
            assert!(error.detail.contains(FORMS) && !error.detail.contains('\u{7}'), "{error}");
        }
    }
}

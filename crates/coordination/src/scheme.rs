//! The exported scheme of an engine on a coordination service.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use oncegate_core::engine::Engine;
use oncegate_driver::scheme::{Inspection, OpenError, Promise, Scheme};

use super::options::Options;
use super::service;
use super::url::{InvalidUrl, Url};

/// An engine on a coordination service, for its scheme.
pub trait Exported {
    /// The parts of its URLs before the colon.
    const NAMES: &'static [&'static str];

    /// The forms of its URLs, for messages.
    const FORMS: &'static [&'static str];

    /// The protocol that its TLS connections ask for.
    const ALPN: Option<&'static [u8]>;

    /// Longest result of a claim.
    const RESULT_BYTES_MAX: usize;

    /// Checks a URL. Returns the parts that such engines have in common.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    fn parse(url: &str) -> Result<Url, InvalidUrl>;

    /// Opens the engine.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    fn open(url: &str, options: Options) -> Result<Arc<dyn Engine>, InvalidUrl>;

    /// Checks every member that the URL names. Writes nothing.
    fn inspect(url: String) -> BoxFuture<'static, Inspection>;
}

/// Returns the scheme of an engine.
pub const fn scheme<E: Exported>() -> Scheme {
    Scheme {
        names: E::NAMES,
        forms: E::FORMS,
        parse: |url| E::parse(url).map(drop).map_err(OpenError::new),
        check_files: |url| match E::parse(url).map_err(OpenError::new)?.tls {
            Some(certificates) => certificates.connector(E::ALPN).map(drop).map_err(OpenError::new),
            None => Ok(()),
        },
        addresses: |url| {
            let members = E::parse(url).map_or_else(|_| Vec::new(), |url| url.members);
            members.iter().map(|member| member.to_string().to_lowercase()).collect()
        },
        capabilities: service::CAPABILITIES,
        promise: |_| Promise { result_bytes_max: Some(E::RESULT_BYTES_MAX), ..Promise::new(service::PROMISE) },
        restore: None,
        inspect: Some(E::inspect),
        open: |url, host| {
            let mut options = Options { cores: host.cores, clock: host.clock, ..Options::default() };
            if let Some(limit) = E::parse(url).map_err(OpenError::new)?.response_timeout {
                options = options.with_response_timeout(limit);
            }
            E::open(url, options).map_err(OpenError::new)
        },
    }
}

//! The exported scheme of an engine on a coordination service.

use std::sync::Arc;

use oncegate_driver::scheme::{OpenError, Promise, Scheme};

use super::backend::Backend;
use super::options::Options;
use super::service::{self, Service};

/// Returns the scheme of an engine.
pub const fn scheme<B: Backend>() -> Scheme {
    Scheme {
        names: B::NAMES,
        forms: B::FORMS,
        parse: |url| B::parse(url).map(drop).map_err(OpenError::new),
        check_files: |url| match B::parse(url).map_err(OpenError::new)?.tls {
            Some(certificates) => certificates.connector(B::ALPN).map(drop).map_err(OpenError::new),
            None => Ok(()),
        },
        addresses: |url| {
            let members = B::parse(url).map_or_else(|_| Vec::new(), |url| url.members);
            members.iter().map(|member| member.to_string().to_lowercase()).collect()
        },
        capabilities: service::CAPABILITIES,
        promise: |_| Promise { result_bytes_max: Some(B::RESULT_BYTES_MAX), ..Promise::new(service::PROMISE) },
        restore: None,
        inspect: Some(B::inspect),
        open: |url, host| {
            let mut options = Options { cores: host.cores, clock: host.clock, ..Options::default() };
            if let Some(limit) = B::parse(url).map_err(OpenError::new)?.response_timeout {
                options = options.with_response_timeout(limit);
            }
            Ok(Arc::new(Service::<B>::open(url, options).map_err(OpenError::new)?))
        },
    }
}

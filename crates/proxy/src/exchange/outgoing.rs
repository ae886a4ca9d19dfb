//! The request of an exchange as the upstream gets it.

use axum::http::{Extensions, HeaderValue, Request, Version, header};
use bytes::Bytes;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_web::response::DEGRADED;

use crate::Proxy;
use crate::fields::{self, Client};

impl Proxy {
    /// Returns a request whose claim is granted as the upstream gets it.
    pub(crate) fn for_upstream(
        &self,
        mut request: Request<Bytes>,
        client: Client,
        is_repeat: bool,
        degraded: Option<OutagePolicy>,
    ) -> Request<Bytes> {
        *request.version_mut() = Version::HTTP_11;
        *request.extensions_mut() = Extensions::new();
        let headers = request.headers_mut();
        fields::to_upstream(headers, client, &self.via);
        headers.remove(header::CONTENT_LENGTH);
        // A replay must fit every caller.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.remove(header::RANGE);
        headers.remove(header::IF_RANGE);
        // Those of the request are not sent on.
        headers.remove(header::TRAILER);
        if is_repeat {
            headers.insert(fields::REPEAT, HeaderValue::from_static("unknown"));
        }
        if let Some(degraded) = degraded {
            headers.insert(DEGRADED, HeaderValue::from_static(degraded.name()));
        }
        request
    }
}

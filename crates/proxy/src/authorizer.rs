//! Asks a server whether a caller may still get its stored response, before the replay.

use std::time::Duration;

use axum::http::uri::Scheme;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use bytes::Bytes;
use http_body_util::Empty;
use oncegate_web::problem::{Code, Problem};
use rustls::RootCertStore;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::fields;
use super::options::{RouteOptions, UpstreamOptions, authorities};
use super::upstream::connector::Connector;
use super::upstream::pools::Pools;

/// Time limit of an answer, with the wait for a permit.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Requests that the server of a route gets at once. More wait.
const REQUESTS_MAX: usize = 64;

const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Fields that are about the request itself: its body, its conditions, its host.
static OF_REQUEST: [HeaderName; 12] = [
    header::HOST,
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    HeaderName::from_static("content-digest"),
    header::TE,
    header::CONNECTION,
];

/// The server that is asked.
pub(super) struct Authorizer {
    uri: Uri,
    pools: Pools<Empty<Bytes>>,
    permits: Semaphore,
}

impl Authorizer {
    /// Returns the server of a route, if it has one. Its certificate is verified like those of the upstream.
    ///
    /// # Errors
    /// It cannot be used, for a person to read.
    pub(super) fn new(route: &RouteOptions, upstream: &UpstreamOptions) -> Result<Option<Self>, String> {
        let Some(uri) = route.authorize()? else { return Ok(None) };
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        let authorities = if is_https { authorities(&upstream.ca_file)? } else { RootCertStore::empty() };
        let connector = Connector::new(authorities, upstream.connect_timeout.0, false);
        let connector = connector.ok_or("TLS cannot be used")?;
        Ok(Some(Self { uri, pools: Pools::new(&connector, upstream.idle.0), permits: Semaphore::new(REQUESTS_MAX) }))
    }

    /// Asks with the fields of a request, as the upstream would get them.
    ///
    /// # Errors
    /// The caller may not have it, or there is no answer.
    pub(super) async fn authorize(&self, method: &Method, uri: &Uri, headers: HeaderMap) -> Result<(), Problem> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        let fields = request.headers_mut();
        let host = fields.get(header::HOST).cloned();
        let uri = uri.path_and_query().map_or("/", |path| path.as_str());
        let about = [
            (FORWARDED_HOST, host),
            (FORWARDED_METHOD, HeaderValue::from_str(method.as_str()).ok()),
            (FORWARDED_URI, HeaderValue::from_str(uri).ok()),
        ];
        // Set, and in no other spelling: a server that reads the first of two must not read the caller's value.
        fields::remove(fields, |name| {
            let normal = fields::normal(name);
            OF_REQUEST.contains(name)
                || fields::is_method_override(name)
                || about.iter().any(|(about, _)| about.as_str() == normal)
        });
        fields.extend(about.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let asking = async {
            let _permit = self.permits.acquire().await;
            self.pools.here().request(request).await
        };
        let status = match timeout(TIMEOUT, asking).await {
            Ok(Ok(response)) if !response.status().is_server_error() => response.status(),
            failed => {
                let reason = match failed {
                    Ok(Ok(response)) => format!("it answered {}", response.status()),
                    Ok(Err(error)) => error.to_string(),
                    Err(_late) => format!("no answer within {TIMEOUT:?}"),
                };
                tracing::warn!(reason, "The server that allows replays did not say if one is allowed");
                let detail =
                    "The server that allows replays does not answer; nothing was replayed. Send the request again.";
                return Err(Problem::new(Code::UpstreamUnavailable, detail).retry_soon());
            }
        };
        if status.is_success() {
            return Ok(());
        }
        let detail = "The first request with this key is done, and its response is not for these credentials any more.";
        Err(Problem::new(Code::ReplayRefused, detail))
    }
}

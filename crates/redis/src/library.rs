//! Connections of the Redis library: their certificates and timeouts, and the reasons of their failures.

use std::sync::Arc;

use oncegate_core::engine::Determinate;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError};
use tokio::task::spawn_blocking;

use super::invalid_url::InvalidUrl;
use super::url::Url;

/// Makes something of the present certificates in their files.
pub(super) async fn with_files<T: Send + 'static>(
    url: &Arc<Url>,
    make: impl FnOnce(&Url) -> Result<T, InvalidUrl> + Send + 'static,
) -> Result<T, Determinate> {
    let url = url.clone();
    let result = spawn_blocking(move || make(&url)).await;
    // The runtime is ending, or reading the files has panicked.
    let unreadable = |_| Determinate::Unavailable("the certificates of the Redis engine could not be read".into());
    result.map_err(unreadable)?.map_err(|why| Determinate::Unavailable(why.to_string()))
}

/// Returns settings of the library's connections whose timeouts are kept by their users: it would apply them to each of its steps.
pub(super) fn without_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Returns why a connection could not be opened, or was lost. The client's errors hold no secrets: of a refused password
/// they say only that it was refused.
pub(super) fn failure(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            "WRONGPASS: the Redis server does not accept the user and password of the engine's URL".into()
        }
        _ if error.is_connection_refusal() => "the Redis server refuses connections".into(),
        ErrorKind::Io if error.to_string().contains("certificate expired") => {
            "the certificate of the Redis server has expired; replace it there, and compare the clocks of both machines"
                .into()
        }
        ErrorKind::Io if error.to_string().contains("invalid peer certificate") => format!(
            "the certificate of the Redis server is not trusted ({error}); it must be valid for the host of the engine's \
             URL, and issued by an authority of the system, or of the file that ?ca= names"
        ),
        ErrorKind::Io => format!("the connection to the Redis server failed: {error}"),
        _ => format!("the Redis server cannot be used: {error}"),
    }
}

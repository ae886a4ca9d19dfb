//! Files that pages load, named by their digest so that browsers can cache them.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

use crate::domain::hex;
use crate::tenants::secret::SecretDigest;

const STYLE: &str = include_str!("assets/console.css");

/// Path of the style sheet.
pub(super) static STYLE_PATH: LazyLock<String> = LazyLock::new(|| {
    let digest = hex::encode(&SecretDigest::of(STYLE).bytes()[..8]);
    format!("/console/assets/{digest}.css")
});

/// `GET /console/assets/….css`. Public: it shows nothing of the gateway.
pub(super) async fn style() -> Response {
    let fields = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (fields, STYLE).into_response()
}

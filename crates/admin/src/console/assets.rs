//! Files that pages load, named by their digest so that browsers can cache them.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_core::hex;
use oncegate_gateway::tenants::secret::SecretDigest;

const STYLE: &str = include_str!("assets/console.css");

/// The script without its comments and indentation.
static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    let lines = include_str!("assets/console.js").lines().map(str::trim_start);
    lines.filter(|line| !line.starts_with("//")).flat_map(|line| [line, "\n"]).collect()
});

/// Path of the style sheet.
pub(super) static STYLE_PATH: LazyLock<String> = LazyLock::new(|| path(STYLE, "css"));

/// Path of the script.
pub(super) static SCRIPT_PATH: LazyLock<String> = LazyLock::new(|| path(&SCRIPT, "js"));

fn path(text: &str, extension: &str) -> String {
    let digest = hex::encode(&SecretDigest::of(text).bytes()[..8]);
    format!("/console/assets/{digest}.{extension}")
}

/// `GET /console/assets/….css`. Public: it shows nothing of the gateway.
pub(super) async fn style() -> Response {
    file("text/css; charset=utf-8", STYLE)
}

/// `GET /console/assets/….js`. Public likewise.
pub(super) async fn script() -> Response {
    file("text/javascript; charset=utf-8", &SCRIPT)
}

fn file(media_type: &'static str, text: &'static str) -> Response {
    let fields = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (fields, text).into_response()
}

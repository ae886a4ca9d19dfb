//! Additional parts of the application for axum: compression and a parser of forms.

use std::io::Write as _;

use axum::Router;
use axum::extract::{FromRequest as _, Multipart, Request};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value};
use tower_http::compression::CompressionLayer;
use tower_http::timeout::TimeoutLayer;

use crate::axum_app::{Extras, Form};

pub(crate) const EXTRAS: Extras = Extras { zip, gzip, form, lacks: "behind late" };

fn zip(router: Router) -> Router {
    let timeout =
        TimeoutLayer::with_status_code(axum::http::StatusCode::REQUEST_TIMEOUT, std::time::Duration::from_secs(30));
    router.layer(CompressionLayer::new()).layer(timeout)
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(body).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}

fn form(request: Request) -> Form {
    Box::pin(async move {
        let mut form = Multipart::from_request(request, &()).await.map_err(IntoResponse::into_response)?;
        let (mut fields, mut files) = (Map::new(), Map::new());
        let wrong = |error: axum::extract::multipart::MultipartError| -> Response { error.into_response() };
        while let Some(part) = form.next_field().await.map_err(wrong)? {
            let name = part.name().unwrap_or_default().to_owned();
            if part.file_name().is_some() {
                files.insert(name, part.bytes().await.map_err(wrong)?.len().into());
            } else {
                fields.insert(name, part.text().await.map_err(wrong)?.into());
            }
        }
        Ok((Value::from(fields), Value::from(files)))
    })
}

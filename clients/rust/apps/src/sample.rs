//! The test application for axum with the libraries that the gateway has compiled already, for a quick check of the middleware.

mod axum_app;
mod steps;

use std::env;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum_app::{Extras, Form};

const EXTRAS: Extras =
    Extras { zip: |router| router, gzip: |body| body.to_vec(), form, lacks: "behind compression form late" };

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = env::args().skip_while(|word| word != "--port").nth(1);
    axum_app::serve(port.as_deref().unwrap_or("0").parse()?, EXTRAS).await
}

fn form(_: Request) -> Form {
    Box::pin(async { Err(StatusCode::NOT_IMPLEMENTED.into_response()) })
}

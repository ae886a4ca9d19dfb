//! The test applications of the client, by name: `vectors-app --app NAME --port PORT`. The cases of `clients/vectors` are sent to them.

mod actix_app;
mod axum_app;
mod extras;
mod steps;

use std::env;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = env::args().skip(1).collect();
    let option = |name: &str| words.iter().skip_while(|word| *word != name).nth(1).map(String::as_str);
    let port = option("--port").unwrap_or("0").parse()?;
    match option("--app") {
        Some("axum") => tokio::runtime::Runtime::new()?.block_on(axum_app::serve(port, extras::EXTRAS)),
        Some("actix-web") => actix_web::rt::System::new().block_on(actix_app::serve(port)),
        other => Err(format!("no application {other:?}: --app axum or actix-web").into()),
    }
}

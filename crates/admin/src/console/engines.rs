//! The engines on their page: health, breakers and when these opened, promises, and the servers of the store.

use maud::{Markup, html};
use serde::Deserialize;

use super::context::Context;
use super::parts::{health, path, table};
use super::prose::Prose;
use super::texts::{EngineText, Text, Texts};
use super::times;
use super::untrusted::Untrusted;

/// `GET /admin/v1/engines`.
#[derive(Deserialize)]
pub(super) struct Engines {
    engines: Vec<Engine>,
}

/// An engine.
#[derive(Deserialize)]
struct Engine {
    name: Untrusted,
    url: Option<Untrusted>,
    up: bool,
    detail: Untrusted,
    breaker: Breaker,
    breaker_changes: Vec<BreakerChange>,
    chains: Vec<Untrusted>,
    capabilities: Capabilities,
    #[serde(default)]
    nodes: Vec<Node>,
}

/// A server of the store.
#[derive(Deserialize)]
struct Node {
    address: Untrusted,
    role: Untrusted,
    version: Option<Untrusted>,
    shard: u16,
    up: bool,
    breaker: Option<Untrusted>,
    #[serde(default)]
    warnings: Vec<Untrusted>,
}

/// The breaker of an engine.
#[derive(Deserialize)]
struct Breaker {
    state: Untrusted,
    since: String,
}

/// A breaker that opened, or closed again.
#[derive(Deserialize)]
struct BreakerChange {
    at: String,
    shard: Option<u16>,
    state: String,
    reason: Option<Untrusted>,
}

/// The promises of an engine.
#[derive(Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "a table of independent yes and no")]
struct Capabilities {
    strict_fence: bool,
    durable: bool,
    shared: bool,
    forever: bool,
    lists: bool,
}

impl Engines {
    /// Draws the table of all engines.
    pub(super) fn table(&self, context: &Context) -> Markup {
        let t = context.texts();
        let rows = html! {
            @for engine in &self.engines {
                tr {
                    th scope="row" { (engine.name) @if let Some(url) = &engine.url { br; span.muted { (url) } } }
                    td { (health(t, Some(engine.up))) @if !engine.up { br; (engine.detail.prose()) } }
                    td { (engine.breaker.state) br; span.muted { (times::instant(&engine.breaker.since)) } (past(t, &engine.breaker_changes)) }
                    td { @for name in &engine.chains { a href=(path(&["chains", name.raw()])) { (name) } " " } }
                    td { (engine.capabilities.words(t)) }
                    td { @for node in &engine.nodes { (engine.server(t, node)) } }
                }
            }
        };
        let promises = Text::OfEngine(EngineText::Promises);
        table(
            t,
            Text::Engines,
            &[
                Text::Engine,
                Text::State,
                Text::OfEngine(EngineText::Breaker),
                Text::Chain,
                promises,
                Text::OfEngine(EngineText::Servers),
            ],
            &rows,
        )
    }
}

impl Engine {
    /// Draws a server of the store: its address, role, version and state, of several shards its own and the breaker, and each warning below.
    fn server(&self, t: Texts, node: &Node) -> Markup {
        let has_shards = self.nodes.iter().any(|other| other.shard != node.shard);
        html! {
            div {
                (node.address) " " (node.role) " " @if let Some(version) = &node.version { (version) " " }
                @if has_shards { (t.of(Text::OfEngine(EngineText::Shard(node.shard)))) " " }
                (health(t, Some(node.up)))
                @if let (true, Some(breaker)) = (has_shards, &node.breaker) { " " span.muted { (t.of(Text::OfEngine(EngineText::Breaker))) ": " (breaker) } }
                @for warning in &node.warnings { br; span.muted { (warning.prose()) } }
            }
        }
    }
}

impl Capabilities {
    fn words(&self, t: Texts) -> Prose<'static> {
        let all = [
            (self.strict_fence, EngineText::StrictFence),
            (self.durable, EngineText::Durable),
            (self.shared, EngineText::Shared),
            (self.forever, EngineText::Forever),
            (self.lists, EngineText::Lists),
        ];
        let words: Vec<_> =
            all.into_iter().filter(|(has, _)| *has).map(|(_, word)| t.of(Text::OfEngine(word)).to_string()).collect();
        if words.is_empty() { t.of(Text::OfEngine(EngineText::None)) } else { Prose::of(words.join(" · ")) }
    }
}

/// Draws when breakers opened and closed since the gateway started, the newest first.
fn past(t: Texts, changes: &[BreakerChange]) -> Markup {
    html! {
        @if !changes.is_empty() {
            details {
                summary { (t.of(Text::OfEngine(EngineText::Past(changes.len())))) }
                ul {
                    @for change in changes {
                        li {
                            @if let Some(shard) = change.shard { (t.of(Text::OfEngine(EngineText::Shard(shard)))) " " }
                            (t.of(Text::OfEngine(change.text(&times::instant(&change.at)))))
                            @if let Some(reason) = &change.reason { br; span.muted { (reason.prose()) } }
                        }
                    }
                }
            }
        }
    }
}

impl BreakerChange {
    fn text<'a>(&self, at: &'a str) -> EngineText<'a> {
        if self.state == "open" { EngineText::Opened(at) } else { EngineText::Closed(at) }
    }
}

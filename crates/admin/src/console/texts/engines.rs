//! The texts about engines: what they promise, and what their breakers have seen.

use std::borrow::Cow;

/// A text about engines.
#[derive(Clone, Copy, Debug)]
pub(in crate::console) enum EngineText<'a> {
    /// The breaker of an engine.
    Breaker,
    /// The servers of a store.
    Servers,
    /// What an engine promises.
    Promises,
    /// It promises none of them.
    None,
    StrictFence,
    Durable,
    Shared,
    Forever,
    Lists,
    /// A shard, by its number.
    Shard(u16),
    /// The breakers' past.
    Past(usize),
    /// A breaker opened at this time.
    Opened(&'a str),
    /// A breaker closed at this time.
    Closed(&'a str),
}

/// Returns a text in English.
pub(super) fn english(text: EngineText<'_>) -> Cow<'static, str> {
    match text {
        EngineText::Breaker => "Breaker".into(),
        EngineText::Servers => "Servers".into(),
        EngineText::Promises => "Promises".into(),
        EngineText::None => "none of these".into(),
        EngineText::StrictFence => "fences always rise".into(),
        EngineText::Durable => "survives a crash of the store".into(),
        EngineText::Shared => "several gateways can share it".into(),
        EngineText::Forever => "retention `forever`".into(),
        EngineText::Lists => "lists claims".into(),
        EngineText::Shard(number) => format!("shard {number}").into(),
        EngineText::Past(count) => format!("Changes of breakers since the start: {count}").into(),
        EngineText::Opened(at) => format!("open since {at}").into(),
        EngineText::Closed(at) => format!("closed since {at}").into(),
    }
}

/// Returns a text in Simplified Chinese.
pub(super) fn chinese(text: EngineText<'_>) -> Cow<'static, str> {
    match text {
        EngineText::Breaker => "熔断器".into(),
        EngineText::Servers => "服务器".into(),
        EngineText::Promises => "保证".into(),
        EngineText::None => "无".into(),
        EngineText::StrictFence => "fence 严格递增".into(),
        EngineText::Durable => "存储崩溃后不丢失".into(),
        EngineText::Shared => "可由多个网关共用".into(),
        EngineText::Forever => "可永久保存".into(),
        EngineText::Lists => "可列出 claim".into(),
        EngineText::Shard(number) => format!("分片 {number}").into(),
        EngineText::Past(count) => format!("启动以来熔断器的变化：{count}").into(),
        EngineText::Opened(at) => format!("{at} 起断开").into(),
        EngineText::Closed(at) => format!("{at} 起闭合").into(),
    }
}

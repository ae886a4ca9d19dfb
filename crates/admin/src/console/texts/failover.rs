//! The texts about automatic switches of chains.

use std::borrow::Cow;

/// A text about automatic switches.
#[derive(Clone, Copy, Debug)]
pub(in crate::console) enum FailoverText<'a> {
    /// The part of a chain's page.
    Automatic,
    /// The witness.
    Witness,
    /// Whether the chain would be switched now.
    Next,
    /// Nothing would stop a switch.
    Possible,
    /// The last switch.
    Last,
    /// The chain was never switched.
    Never,
    /// A switch from one engine to another, by the gateways or by an operator.
    FromTo(&'a str, &'a str, bool),
    /// The action on a hold.
    Change,
    /// When to hold switches.
    When,
    /// The choice of who switches the chain.
    Who,
    /// The choice of a hold with an end.
    Hold,
    /// The choice of a hold without an end.
    Manual,
    /// The choice of no hold.
    Gateways,
    /// The field for the time of a hold.
    Time,
    /// Only people switch this chain.
    PeopleOnly,
    /// The hold is another one than the form has shown.
    HasChanged,
    /// A change was made.
    Changed,
}

/// Returns a text in English.
pub(super) fn english(text: FailoverText<'_>) -> Cow<'static, str> {
    match text {
        FailoverText::Automatic => "Automatic switch".into(),
        FailoverText::Witness => "Witness".into(),
        FailoverText::Next => "A switch now".into(),
        FailoverText::Possible => "possible, once most gateways see the active engine out".into(),
        FailoverText::Last => "Last switch".into(),
        FailoverText::Never => "none".into(),
        FailoverText::FromTo(from, to, true) => format!("from {from} to {to}, automatic").into(),
        FailoverText::FromTo(from, to, false) => format!("from {from} to {to}, by an operator").into(),
        FailoverText::Change => "Hold or allow automatic switches".into(),
        FailoverText::When => {
            "Hold them before a planned restart of a store: gateways take it for an outage, and a switch loses its records. It applies to every gateway at once. Operators can switch the chain all the same.".into()
        }
        FailoverText::Who => "Who switches the chain".into(),
        FailoverText::Hold => "operators only for a time, then the gateways as well".into(),
        FailoverText::Manual => "operators only, until one of them allows automatic switches".into(),
        FailoverText::Gateways => "the gateways as well".into(),
        FailoverText::Time => "Time without automatic switches, from 1s to 7d; only for a hold".into(),
        FailoverText::PeopleOnly => "Only operators switch this chain.".into(),
        FailoverText::HasChanged => "Another operator has changed this in the meantime. Nothing was changed: look at it again.".into(),
        FailoverText::Changed => "Changed, for every gateway.".into(),
    }
}

/// Returns a text in Simplified Chinese.
pub(super) fn chinese(text: FailoverText<'_>) -> Cow<'static, str> {
    match text {
        FailoverText::Automatic => "自动切换".into(),
        FailoverText::Witness => "见证".into(),
        FailoverText::Next => "现在切换".into(),
        FailoverText::Possible => "可以：当多数网关看到当前引擎没有应答时".into(),
        FailoverText::Last => "上次切换".into(),
        FailoverText::Never => "无".into(),
        FailoverText::FromTo(from, to, true) => format!("从 {from} 到 {to}，自动").into(),
        FailoverText::FromTo(from, to, false) => format!("从 {from} 到 {to}，由操作员").into(),
        FailoverText::Change => "暂停或允许自动切换".into(),
        FailoverText::When => {
            "在计划重启存储之前暂停：网关会把它当作故障，而切换会丢失其记录。立即对所有网关生效。操作员仍可切换此链。"
                .into()
        }
        FailoverText::Who => "由谁切换此链".into(),
        FailoverText::Hold => "在一段时间内只由操作员，之后也由网关".into(),
        FailoverText::Manual => "只由操作员，直到操作员允许自动切换".into(),
        FailoverText::Gateways => "也由网关".into(),
        FailoverText::Time => "不自动切换的时间，1s 到 7d；仅用于暂停一段时间".into(),
        FailoverText::PeopleOnly => "此链只由操作员切换。".into(),
        FailoverText::HasChanged => "另一位操作员已作了更改。没有改动任何内容：请再看一次。".into(),
        FailoverText::Changed => "已更改，对所有网关生效。".into(),
    }
}

//! The texts that say what a page does not show, or what it cannot know.

use std::borrow::Cow;

/// A text about the limits of a page.
#[derive(Clone, Copy, Debug)]
pub(in crate::console) enum Notice<'a> {
    /// Callers need no credential.
    Open,
    /// The registry of apps does not answer.
    AppsMayBeOld,
    /// The field for the name of an app whose used secret a rotation would revoke.
    TypeAppIfUsed(&'a str),
    /// Calls that a quota has refused since the start.
    RefusedByQuota(u64),
    /// Minutes until the outage journal is full.
    FullIn(u64),
    /// Rows of a form that may or may not have been changed.
    UnknownSeveral(usize),
    /// Number of operations in which contents were looked up.
    SomeOperations(usize),
    /// Number of the newest events that a timeline has.
    NewestEvents(usize),
    /// Number of the newest requests that a list has.
    NewestRequests(usize),
    /// What a switch from one engine to another would lose, where it was not counted.
    LossNotCounted(&'a str, &'a str),
}

/// Returns a text in English.
pub(super) fn english(text: Notice<'_>) -> Cow<'static, str> {
    match text {
        Notice::Open => {
            "This gateway is open: no app is configured, so callers need no credential. Any client that reaches it calls as the app `default`.".into()
        }
        Notice::AppsMayBeOld => {
            "The registry of apps does not answer. These are the apps that this gateway has read last; a newer one may be missing.".into()
        }
        Notice::TypeAppIfUsed(app) => format!("If the secret that was used last is revoked, type the name of the app: {app}").into(),
        Notice::RefusedByQuota(count) => format!("{count} refused since the start").into(),
        Notice::FullIn(minutes) => format!("full in about {minutes} min at this rate").into(),
        Notice::UnknownSeveral(count) => format!(
            "Unknown whether changed: {count}. The store did not confirm the change. Look at these before you repeat it."
        ).into(),
        Notice::SomeOperations(count) => format!(
            "The contents were looked up in {count} operations only, the busiest ones. Name the operation to look up another one."
        ).into(),
        Notice::NewestEvents(count) => format!("Only the newest {count} events that this gateway has seen are shown.").into(),
        Notice::NewestRequests(count) => format!("Only the newest {count} requests are shown.").into(),
        Notice::LossNotCounted(from, to) => format!(
            "How many claims are stored on `{from}` is not known. Engine `{to}` knows none of them, so that whatever is in progress or was \
             done can be claimed and run again once it is active. It does not know the locks that are held on `{from}` either: it grants \
             them to others while their holders still run."
        ).into(),
    }
}

/// Returns a text in Simplified Chinese.
pub(super) fn chinese(text: Notice<'_>) -> Cow<'static, str> {
    match text {
        Notice::Open => "本网关是开放的：没有配置应用，调用方不需要凭据。任何能访问它的客户端都以应用 `default` 的身份调用。".into(),
        Notice::AppsMayBeOld => "应用注册表没有应答。这里是本网关最近一次读到的应用，可能缺少较新的应用。".into(),
        Notice::TypeAppIfUsed(app) => format!("如果要吊销最近使用过的密钥，请输入应用名称：{app}").into(),
        Notice::RefusedByQuota(count) => format!("启动以来拒绝 {count} 次").into(),
        Notice::FullIn(minutes) => format!("照此速度约 {minutes} 分钟后写满").into(),
        Notice::UnknownSeveral(count) => {
            format!("不知道是否已改动：{count} 项。存储没有确认改动。重复操作之前请先查看它们。").into()
        }
        Notice::SomeOperations(count) => {
            format!("只在 {count} 个最繁忙的操作中查找了这些内容。要在其他操作中查找，请填写操作名称。").into()
        }
        Notice::NewestEvents(count) => format!("只显示本网关看到的最新 {count} 个事件。").into(),
        Notice::NewestRequests(count) => format!("只显示最新的 {count} 个请求。").into(),
        Notice::LossNotCounted(from, to) => format!(
            "不知道 `{from}` 上存储了多少个占用。引擎 `{to}` 对它们一无所知：它生效后，正在进行或已完成的操作可以被再次占用并执行。它也不知道在 \
             `{from}` 上持有的锁：持有者仍在运行时，它会把锁授予其他调用方。"
        ).into(),
    }
}

//! The texts about locks.

use std::borrow::Cow;

/// A text about locks.
#[derive(Clone, Copy, Debug)]
pub(in crate::console) enum LockText<'a> {
    /// No lock of this app is held or waited for.
    NoneOf(&'a str),
    /// The requests in the queue of a lock.
    Queue,
    /// Which callers are not in the queue.
    QueueAbout,
    /// The engine cannot list locks.
    NotListed,
    /// The field for a name.
    Name,
    /// The lock has no holder and no queue.
    IsFree,
    /// The action that ends a hold.
    EndHold,
    /// When to end a hold.
    EndHoldWhen,
    /// The hold to end is not there any more.
    HoldIsGone,
    /// A hold was ended.
    HoldEnded,
}

/// Returns a text in English.
pub(super) fn english(text: LockText<'_>) -> Cow<'static, str> {
    match text {
        LockText::NoneOf(app) => format!("No lock of app `{app}` is held or waited for. This command holds one while it runs another:").into(),
        LockText::Queue => "In the queue".into(),
        LockText::QueueAbout => {
            "The queue has requests with `fair` only. Other callers that wait are on the overview of their gateway.".into()
        }
        LockText::NotListed => "The store of this app cannot list its locks, so none is shown here, whether held or free. Open a lock by its name.".into(),
        LockText::Name => "Name of a lock".into(),
        LockText::IsFree => "The lock is free, and no call waits for it.".into(),
        LockText::EndHold => "End this hold".into(),
        LockText::EndHoldWhen => "Only if its holder is certainly dead. This does not stop it: the next owner starts while it still runs.".into(),
        LockText::HoldIsGone => "This hold has ended already. Nothing was changed.".into(),
        LockText::HoldEnded => "The hold has ended.".into(),
    }
}

/// Returns a text in Simplified Chinese.
pub(super) fn chinese(text: LockText<'_>) -> Cow<'static, str> {
    match text {
        LockText::NoneOf(app) => {
            format!("应用 `{app}` 没有被持有或等待的锁。下面的命令在运行另一条命令时持有一个锁：").into()
        }
        LockText::Queue => "队列中".into(),
        LockText::QueueAbout => "队列中只有带 `fair` 的请求。其他等待的调用方在其网关的概览中。".into(),
        LockText::NotListed => {
            "此应用的存储不能列出锁，所以这里不显示任何锁，无论是否被持有。请按名称打开一个锁。".into()
        }
        LockText::Name => "锁的名称".into(),
        LockText::IsFree => "锁是空闲的，没有调用在等待它。".into(),
        LockText::EndHold => "结束此持有".into(),
        LockText::EndHoldWhen => {
            "仅当确知持有者已不再运行时才可执行。这不会停止它：它仍在运行时，下一个持有者就会开始。".into()
        }
        LockText::HoldIsGone => "此持有已经结束。没有任何改动。".into(),
        LockText::HoldEnded => "持有已结束。".into(),
    }
}

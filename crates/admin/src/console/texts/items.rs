//! Items that need a person, in other words than the admin API's.

use super::language::Language;
use crate::attention::Kind;

/// An item that needs a person.
#[derive(Clone, Copy, Debug)]
pub(in crate::console) struct Item<'a> {
    pub(in crate::console) kind: Kind,
    pub(in crate::console) count: usize,
    /// The app, engine or chain that it is about. Empty for the whole gateway.
    pub(in crate::console) of: &'a str,
}

impl Item<'_> {
    /// Returns the item in words, if the admin API has none in this language.
    pub(in crate::console) fn words(self, language: Language) -> Option<String> {
        match language {
            Language::English => None,
            Language::Chinese => Some(self.chinese()),
        }
    }

    fn chinese(self) -> String {
        let Self { kind, count, of } = self;
        match kind {
            Kind::StoreDown => format!("引擎 `{of}` 没有应答。"),
            Kind::StoreFull => format!("引擎 `{of}` 的存储已满。"),
            Kind::StoreIncompatible => format!("引擎 `{of}` 的存储全部或部分无法使用。"),
            Kind::DataLost => format!("引擎 `{of}` 的存储丢失了数据，或是从备份恢复的。"),
            Kind::NodeDown => format!("引擎 `{of}` 有 {count} 台服务器没有应答。"),
            Kind::WitnessDown => format!("链 `{of}` 的见证者没有应答，该链不会自动切换。"),
            Kind::Switched => format!("链 `{of}` 已自动切换。"),
            Kind::GrantsFrozen => format!("链 `{of}` 暂时不授予任何占用。"),
            Kind::RequirementsUnmet => format!("链 `{of}` 不授予任何占用：其存储不满足该链的 `requires`。"),
            Kind::JournalFailing => "故障日志拒绝写入条目。".to_owned(),
            Kind::AuditFailing => "审计记录无法写入，因此无法进行任何操作。".to_owned(),
            Kind::SpoolWaiting => format!("{count} 条故障策略的应答在等待存储。"),
            Kind::ReloadFailed => "配置文件有错误，其更改没有生效。".to_owned(),
            Kind::Overlap => format!("应用 `{of}` 有 {count} 个操作被授予了两次尝试。请查清两次是否都产生了效果。"),
            Kind::Double => format!("应用 `{of}` 有 {count} 个操作可能执行了两次。请查清其效果。"),
            Kind::Unknown => format!(
                "就本网关所遇到的，应用 `{of}` 有 {count} 个操作结果未知。确定结果之前，调用方收到 409：请先查清其效果。"
            ),
        }
    }
}

//! Items of an app that need a person and only have a number.

/// The number of these items, and their app.
#[derive(Clone, Copy, Debug)]
pub(in crate::console) enum Counted<'a> {
    Overlaps(usize, &'a str),
    Doubles(usize, &'a str),
    Unknowns(usize, &'a str),
}

impl Counted<'_> {
    pub(super) fn english(self) -> String {
        match self {
            Self::Overlaps(count, app) => {
                format!(
                    "{count} operations of app `{app}` were granted to two attempts. Look up whether both had an effect."
                )
            }
            Self::Doubles(count, app) => {
                format!("{count} operations of app `{app}` may have been executed twice. Look up their effects.")
            }
            Self::Unknowns(count, app) => format!(
                "{count} unknown claims of app `{app}`, as far as this gateway has met them. Callers get 409 until each is settled: look its \
                 effect up."
            ),
        }
    }

    pub(super) fn chinese(self) -> String {
        match self {
            Self::Overlaps(count, app) => {
                format!("应用 `{app}` 有 {count} 个操作被授予了两次尝试。请查清两次是否都产生了效果。")
            }
            Self::Doubles(count, app) => format!("应用 `{app}` 有 {count} 个操作可能执行了两次。请查清其效果。"),
            Self::Unknowns(count, app) => format!(
                "就本网关所遇到的，应用 `{app}` 有 {count} 个操作结果未知。确定结果之前，调用方收到 409：请先查清其效果。"
            ),
        }
    }
}

//! Pages in the language of the browser.

use super::browser::{Browser, OWN};
use super::{operated, operators};

const CHINESE: (&str, &str) = ("accept-language", "zh-CN,zh;q=0.9,en;q=0.8");

#[tokio::test]
async fn pages_are_in_the_language_of_the_browser() {
    let gateway = operated().start().await;
    let chinese = [CHINESE];
    let stranger = Browser::at(&gateway);
    let form = stranger.send("GET", "/console/sign-in", &chinese, "").await.expect(200);
    assert!(form.text.contains("<html lang=\"zh-Hans\">") && form.text.contains("登录"), "{}", form.text);
    let wrong = stranger.post("/console/sign-in", &[OWN, chinese[0]], "token=wrong_token_0123456789").await.expect(401);
    assert!(wrong.text.contains("本网关不认识这个令牌"), "{}", wrong.text);
    let browser = Browser::signed_in(&gateway, "act").await;
    for path in
        ["/console/", "/console/attention", "/console/find", "/console/engines", "/console/apps", "/console/nothing"]
    {
        let page = browser.send("GET", path, &chinese, "").await;
        assert!(
            page.text.contains("<html lang=\"zh-Hans\">") && page.text.contains("退出登录"),
            "{path}: {}",
            page.text
        );
        let english = browser.get(path).await;
        assert!(english.text.contains("<html lang=\"en\">") && english.text.contains("Sign out"), "{path}");
    }
    let overview = browser.send("GET", "/console/", &chinese, "").await.expect(200);
    assert!(overview.text.contains("没有需要处理的事项"), "{}", overview.text);
}

/// A store that does not answer, and an operator who asks for a claim.
#[tokio::test]
async fn what_the_admin_api_says_is_introduced_in_the_language_of_the_page() {
    let gateway = crate::support::gateway::on_configured()
        .config(&operators(&["act"]))
        .config("[engines]\nprimary = \"redis://127.0.0.1:1\"\n")
        .start()
        .await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let claim = "/console/claims/default/0123456789abcdef0123456789abcdef";
    for (path, status, title, chinese) in [
        (claim, 503, "Store unavailable", "存储没有应答"),
        ("/console/nothing", 404, "Not found", "未找到"),
        ("/console/locks?app=nobody", 200, "Locks", "未找到"),
    ] {
        let english = browser.get(path).await;
        assert!(english.status == status && english.text.contains(&format!("<h1>{title}</h1>")), "{}", english.text);
        assert!(!english.text.contains(chinese) && !english.text.contains("Retry-After"), "{}", english.text);
        let translated = browser.send("GET", path, &[CHINESE], "").await.expect(status);
        assert!(translated.text.contains(chinese), "{path}: {}", translated.text);
        if path != "/console/nothing" {
            assert!(translated.text.contains("<bdi lang=\"en\">"), "its words: {}", translated.text);
        }
    }
    let overview = browser.send("GET", "/console/", &[CHINESE], "").await.expect(200);
    assert!(overview.text.contains("引擎 <code>primary</code> 没有应答。"), "{}", overview.text);
    assert!(
        overview.text.contains("<bdi lang=\"en\">Engine <code>primary</code> does not answer"),
        "{}",
        overview.text
    );
}

//! Pages in the language of the browser.

use super::browser::{Browser, OWN};
use super::operated;

#[tokio::test]
async fn pages_are_in_the_language_of_the_browser() {
    let gateway = operated().start().await;
    let chinese = [("accept-language", "zh-CN,zh;q=0.9,en;q=0.8")];
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

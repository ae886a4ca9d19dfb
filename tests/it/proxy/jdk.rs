//! The `HttpClient` of the JDK, unchanged: by default it offers `Upgrade: h2c` with each request to an http URL.

use oncegate_testkit::missing::tool;

use super::{Upstream, address, proxy};

const PROGRAM: &str = r#"
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

public class Orders {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String method : new String[] {"POST", "POST", "PUT", "GET"}) {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(args[0]))
                .header("Idempotency-Key", "k-1").header("Authorization", "alice");
            if (method.equals("GET")) request.GET();
            else request.method(method, BodyPublishers.ofString("one"));
            HttpResponse<String> response = client.send(request.build(), BodyHandlers.ofString());
            System.out.println(method + " " + response.version() + " " + response.statusCode() + " "
                + response.headers().firstValue("Idempotent-Replayed").orElse("-") + " " + response.body());
        }
    }
}
"#;

#[tokio::test]
async fn the_client_of_the_jdk_sends_keys_although_it_offers_h2c() {
    let Some(mut java) = tool("java") else { return };
    let (upstream, port) = Upstream::start().await;
    let (gateway, _) = proxy(port, "").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Orders.java");
    std::fs::write(&file, PROGRAM).unwrap();
    java.arg(&file).arg(format!("http://{}/orders/a", address(&gateway)));
    let output = tokio::process::Command::from(java).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = said.lines().collect();
    let expected = [
        "POST HTTP_1_1 201 - order one",
        "POST HTTP_1_1 201 true order one",
        "PUT HTTP_1_1 201 - order one",
        "GET HTTP_1_1 201 - order ",
    ];
    assert_eq!(lines, expected, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(upstream.effects(), 3);
}

//! Alternatives to the gateway, configured as an expert would. webdis, and a few lines of Lua in nginx, make the same
//! decision, `SET … NX GET`, over HTTP. nginx is also measured as a proxy that decides nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::json;

/// Folders of nginx modules in distribution packages.
const NGINX_MODULES: [&str; 3] = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules"];

/// Folders of the Lua libraries that nginx needs.
const LUA_FOLDERS: [&str; 2] = ["/usr/share/lua/5.1", "/usr/lib/x86_64-linux-gnu/lua/5.1"];

/// Processes or threads of each peer: one per core of a small machine.
pub(crate) const WORKERS: usize = 2;

/// Writes the configuration of webdis; `webdis FILE` serves it. No logging, and a pool of Redis connections per thread.
pub(crate) fn configure_webdis(dir: &Path, port: u16, redis_port: u16) -> anyhow::Result<PathBuf> {
    let path = dir.join("webdis.json");
    let configuration = json!({
        "redis_host": "127.0.0.1",
        "redis_port": redis_port,
        "http_host": "127.0.0.1",
        "http_port": port,
        "threads": WORKERS,
        "pool_size": 8,
        "daemonize": false,
        "websockets": false,
        "verbosity": 0,
        "logfile": "/dev/null",
        "acl": [{ "disabled": ["DEBUG"] }],
    });
    fs::write(&path, configuration.to_string()).context("cannot write to the temporary directory")?;
    Ok(path)
}

/// Returns the folder of nginx's Lua module, if it is installed with its libraries.
pub(crate) fn nginx_modules() -> Option<PathBuf> {
    let modules = NGINX_MODULES.iter().map(PathBuf::from).find(|it| it.join("ngx_http_lua_module.so").is_file())?;
    let has = |name: &str| LUA_FOLDERS.iter().any(|folder| Path::new(folder).join(name).is_file());
    (has("nginx/redis.lua") && has("cjson.so") && has("resty/core.lua")).then_some(modules)
}

/// Writes the configuration of one nginx worker; `nginx -c FILE` serves it. It answers claims as far as the generator
/// checks: the global ID computed from the JSON, an attempt, 201 or 409. It checks no credential and keeps no terms.
pub(crate) fn configure_nginx(
    dir: &Path,
    worker: &str,
    modules: &Path,
    port: u16,
    redis_port: u16,
) -> anyhow::Result<PathBuf> {
    let modules = LUA_MODULES.replace("@MODULES@", &modules.display().to_string());
    write_nginx(dir, worker, port, &modules, &LUA.replace("@REDIS_PORT@", &redis_port.to_string()))
}

/// Writes the configuration of one nginx worker that forwards all requests, over connections that it keeps open.
pub(crate) fn configure_nginx_proxy(
    dir: &Path,
    worker: &str,
    port: u16,
    upstream_port: u16,
) -> anyhow::Result<PathBuf> {
    write_nginx(dir, worker, port, "", &PROXY.replace("@UPSTREAM_PORT@", &upstream_port.to_string()))
}

fn write_nginx(dir: &Path, worker: &str, port: u16, modules: &str, servers: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(format!("{worker}.conf"));
    let configuration = NGINX
        .replace("@MODULES@", modules)
        .replace("@SERVERS@", servers)
        .replace("@DIR@", &dir.display().to_string())
        .replace("@WORKER@", worker)
        .replace("@PORT@", &port.to_string());
    fs::write(&path, configuration).context("cannot write to the temporary directory")?;
    Ok(path)
}

/// Each worker is started separately: a killed master would leave its workers behind. With `reuseport` they
/// share the port and the connections evenly; each keeps connections to the store open.
const NGINX: &str = r"
daemon off;
user root;
master_process off;
pid @DIR@/@WORKER@.pid;
error_log stderr error;
@MODULES@
events { worker_connections 4096; }
http {
    access_log off;
    tcp_nodelay on;
    keepalive_timeout 75s;
    keepalive_requests 1000000000;
    client_body_buffer_size 64k;
    client_body_in_single_buffer on;
    client_body_temp_path @DIR@/nginx-body;
    proxy_temp_path @DIR@/nginx-proxy;
    fastcgi_temp_path @DIR@/nginx-fastcgi;
    uwsgi_temp_path @DIR@/nginx-uwsgi;
    scgi_temp_path @DIR@/nginx-scgi;
@SERVERS@
}
";

const LUA_MODULES: &str = "
load_module @MODULES@/ndk_http_module.so;
load_module @MODULES@/ngx_http_lua_module.so;
";

/// Keeps one connection to the upstream for each of the generator's.
const PROXY: &str = r#"
    upstream orders {
        server 127.0.0.1:@UPSTREAM_PORT@;
        keepalive 64;
        keepalive_timeout 75s;
        keepalive_requests 1000000000;
    }
    server {
        listen 127.0.0.1:@PORT@ reuseport;
        location / {
            proxy_pass http://orders;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
        }
    }
"#;

const LUA: &str = r#"
    init_worker_by_lua_block { math.randomseed(ngx.worker.pid() + ngx.now() * 1000) }
    server {
        listen 127.0.0.1:@PORT@ reuseport;
        location = /v1/claims {
            content_by_lua_block {
                local cjson, redis = require "cjson.safe", require "nginx.redis"
                local function answer(status, body)
                    body = cjson.encode(body)
                    ngx.status = status
                    ngx.header.content_type = "application/json"
                    ngx.header.content_length = #body
                    ngx.print(body)
                end
                ngx.req.read_body()
                local claim = cjson.decode(ngx.req.get_body_data() or "")
                if not claim or not claim.contents then
                    return answer(400, { code = "malformed_json" })
                end
                local operation = claim.operation or "default"
                local contents = cjson.encode(claim.contents)
                local global_id = ngx.md5("load\n" .. operation .. "\n" .. contents)
                local attempt = string.format("%d-%08x%08x", ngx.now() * 1000000, math.random(0, 0xffffffff),
                    math.random(0, 0xffffffff))
                local value = attempt .. " 1p l=" .. (claim.lease or "30s") .. " r=" .. (claim.retention or "24h")
                    .. " o=" .. operation .. " c=" .. contents
                local store = redis:new()
                store:set_timeout(1000)
                local connected, why = store:connect("127.0.0.1", @REDIS_PORT@)
                if not connected then
                    ngx.log(ngx.ERR, why)
                    return answer(503, { code = "store_unavailable" })
                end
                local found, why = store:set("og:{" .. global_id .. "}:load", value, "NX", "GET", "PX", 300000)
                if not found then
                    ngx.log(ngx.ERR, why)
                    return answer(503, { code = "store_unavailable" })
                end
                store:set_keepalive(60000, 64)
                if found == ngx.null then
                    return answer(201, { global_id = global_id, attempt = attempt, state = "in_progress" })
                end
                answer(409, { code = "duplicate", global_id = global_id, state = "in_progress" })
            }
        }
    }
"#;

# syntax=docker/dockerfile:1
# Builds the gateway and puts it, alone, into a slim image that runs as an unprivileged user.

# Both stages are the same Debian release, since the binary links its C library, and both are pinned by digest.
FROM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
ENV CARGO_TERM_COLOR=never

# The dependencies first, around empty sources: this layer is built again only when a manifest or the lock changes. A build that is
# guided by a profile compiles them once more, with other flags.
COPY scripts/build-dist scripts/
COPY Cargo.toml Cargo.lock ./
COPY load/Cargo.toml load/
COPY clients/rust/Cargo.toml clients/rust/
COPY crates/admin/Cargo.toml crates/admin/
COPY crates/api/Cargo.toml crates/api/
COPY crates/core/Cargo.toml crates/core/
COPY crates/database/Cargo.toml crates/database/
COPY crates/disk/Cargo.toml crates/disk/
COPY crates/driver/Cargo.toml crates/driver/
COPY crates/coordination/Cargo.toml crates/coordination/
COPY crates/etcd/Cargo.toml crates/etcd/
COPY crates/folder/Cargo.toml crates/folder/
COPY crates/gateway/Cargo.toml crates/gateway/
COPY crates/outage/Cargo.toml crates/outage/
COPY crates/postgres/Cargo.toml crates/postgres/
COPY crates/proxy/Cargo.toml crates/proxy/
COPY crates/redis/Cargo.toml crates/redis/
COPY crates/telemetry/Cargo.toml crates/telemetry/
COPY crates/testkit/Cargo.toml crates/testkit/
COPY crates/transport/Cargo.toml crates/transport/
COPY crates/web/Cargo.toml crates/web/
COPY crates/zookeeper/Cargo.toml crates/zookeeper/
RUN mkdir -p src load/src \
    && echo 'fn main() {}' | tee src/main.rs load/src/main.rs >/dev/null \
    && touch src/lib.rs \
    && mkdir clients/rust/src && touch clients/rust/src/lib.rs \
    && for crate in crates/*; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && scripts/build-dist

# Then the gateway. Cargo goes by modification times, and the copied files may be older than the empty ones were.
# PROFILE names a file of `scripts/build-dist --train` in this folder, for a program that is guided by it, as in releases.
ARG PROFILE=
COPY . .
RUN touch src/main.rs src/lib.rs crates/*/src/lib.rs clients/rust/src/lib.rs \
    && program=$(scripts/build-dist ${PROFILE:+--profile "$PROFILE"}) \
    && install -m 0755 "$program" /usr/local/bin/oncegate

FROM debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Oncegate" \
      org.opencontainers.image.description="An idempotency gateway: lets every business operation pass once" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# For `rediss://`: the root certificates that the TLS library takes from the system. Copied, so that nothing is installed here.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /usr/share/doc/oncegate/LICENSE
# A volume takes its first owner and mode from the folder that it covers, so the folder comes before the VOLUME.
RUN install -d -m 0750 -o 65532 -g 65532 /var/lib/oncegate
COPY --from=build /usr/local/bin/oncegate /usr/local/bin/oncegate
COPY deploy/backup/oncegate-backup /usr/local/bin/oncegate-backup

# The loopback interface of a container cannot be reached from outside. With no apps configured the gateway refuses to
# listen beyond it: configure apps, or set ONCEGATE_SERVER__ALLOW_OPEN=true for a trial. The image does not decide that
# for you, nor which engine is used: the environment overrides a mounted configuration file, so it sets as little as
# possible.
ENV ONCEGATE_SERVER__LISTEN=0.0.0.0:8080 \
    ONCEGATE_SERVER__ADMIN_LISTEN=0.0.0.0:9464

# A number, not a name: Kubernetes' runAsNonRoot can check it, and no entry in /etc/passwd is needed.
USER 65532:65532
WORKDIR /var/lib/oncegate
VOLUME ["/var/lib/oncegate"]
EXPOSE 8080 9464

HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["oncegate", "health"]

ENTRYPOINT ["oncegate"]
CMD ["serve"]

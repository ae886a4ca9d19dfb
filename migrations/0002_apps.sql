-- Who may call, for gateways that have `registry.url`: the apps, their secrets, and a counter by which every gateway notices
-- a change, whoever made it and by whatever means.

CREATE TABLE oncegate_apps (
    app text COLLATE "C" PRIMARY KEY CHECK (app ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    -- What a table [apps.<app>] of the configuration may hold, but for what stands in columns of its own.
    settings jsonb NOT NULL DEFAULT '{}'
        CHECK (jsonb_typeof(settings) = 'object' AND NOT settings ?| ARRAY['secrets', 'disabled', 'chain']),
    -- The chain that keeps its claims; NULL: the one of [defaults].
    chain text,
    disabled boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Secrets, as their SHA-256 only. A revoked one stays: it tells when it was last of use.
CREATE TABLE oncegate_app_secrets (
    app text COLLATE "C" NOT NULL REFERENCES oncegate_apps ON DELETE CASCADE,
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz,
    -- To the minute, the latest that any gateway has reported.
    last_used_at timestamptz,
    PRIMARY KEY (app, digest)
);

-- One row. Rises with every change, so that a gateway has to read the tables only when there is something to read.
CREATE TABLE oncegate_registry (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL
);
INSERT INTO oncegate_registry (version) VALUES (1);

-- Counted in the transaction that makes the change. The row stays locked until it commits, so changes become visible in
-- the order of their versions, and nobody can see a version without all that it stands for.
CREATE FUNCTION oncegate_registry_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE oncegate_registry SET version = version + 1;
    RETURN NULL;
END
$$;

CREATE TRIGGER oncegate_apps_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON oncegate_apps
    FOR EACH STATEMENT EXECUTE FUNCTION oncegate_registry_changed();

-- Not for `last_used_at`, which gateways write all the time and which changes nothing.
CREATE TRIGGER oncegate_app_secrets_changed
    AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF app, digest, revoked_at ON oncegate_app_secrets
    FOR EACH STATEMENT EXECUTE FUNCTION oncegate_registry_changed();

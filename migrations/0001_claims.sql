-- Claims, and what says whether a gateway fits this database. Additions only: see README.md here.

-- Fences. One sequence for all keys: it never goes back, not on a promoted standby either, since what it has given out is
-- in the log before any commit that used it. It begins at the time in microseconds, so that fences go on rising in a
-- database that was lost and begun anew. CACHE 1: numbers that a session kept for later would come out of order.
CREATE SEQUENCE oncegate_fence AS bigint MAXVALUE 9007199254740991 CACHE 1;
SELECT setval('oncegate_fence', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

CREATE TABLE oncegate_claims (
    -- Rises with every attempt at the key.
    fence bigint NOT NULL,
    -- How long a success lasts, in microseconds; NULL: for ever.
    retention_us bigint CHECK (retention_us > 0),
    -- When the claim ends, by this server's clock; NULL: by somebody's deed only.
    expires_at timestamptz,
    -- When to look whether the row can go; never before that. NULL: never. Set when a key is claimed, to when a success
    -- would end, so that reporting the success changes no indexed column and costs no entry in any index.
    sweep_at timestamptz,
    -- p: in progress. q: in progress, and unknown once it has ended. s: succeeded. u: unknown. r: released.
    state "char" NOT NULL CHECK (state IN ('p', 'q', 's', 'u', 'r')),
    app text COLLATE "C" NOT NULL,
    global_id bytea NOT NULL CHECK (octet_length(global_id) = 16),
    -- The record. Bytes and not text or jsonb: what callers send must not be able to fail a statement that others share.
    value bytea NOT NULL,
    PRIMARY KEY (app, global_id)
) WITH (
    -- Room on the page for the row that the outcome writes: it then touches no index.
    fillfactor = 50,
    -- Rows come and go all the time. Waiting for a fifth of a large table to be dead lets it grow by a fifth.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Values are short or already dense: compressing them costs more than it saves.
ALTER TABLE oncegate_claims ALTER COLUMN value SET STORAGE EXTERNAL;

CREATE INDEX oncegate_claims_sweep ON oncegate_claims (sweep_at) WHERE sweep_at IS NOT NULL;

-- One row. Who may use this database, and whether it is still the one that was here before.
CREATE TABLE oncegate_schema (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Gateways of an older build stop using this database.
    oldest_build integer NOT NULL,
    -- Made with the database; another one means that the data is gone.
    marker uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO oncegate_schema (oldest_build) VALUES (1);

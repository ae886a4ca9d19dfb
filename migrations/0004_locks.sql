-- Locks: a small record for each, which gateways replace by compare-and-set.
-- An addition: older gateways do not know the table, and gateways whose apps use no locks need none.

CREATE TABLE oncegate_locks (
    app text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- Begins with the version of the record: 9 bytes.
    value bytea NOT NULL CHECK (octet_length(value) BETWEEN 9 AND 200000),
    -- When the record ends by itself: some time after its last hold.
    ends_at timestamptz NOT NULL,
    -- When the sweeper looks at it next. Changes of a lock leave it unchanged, so that no index changes with them.
    sweep_at timestamptz NOT NULL,
    PRIMARY KEY (app, name)
) WITH (fillfactor = 50);

CREATE INDEX oncegate_locks_sweep ON oncegate_locks (sweep_at);

-- Deletes claims that have ended, a few rows at a time; returns how many were looked at.
--
-- One gateway at a time: the others find the lock taken, and no rows due. The lock lasts for this statement only, so it needs no
-- session, and is not left behind by a gateway that crashes.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(1869505383, 2) AS ours
),

-- Rows that ended before this time may be deleted. They are kept for a minute, and for as long as a statement of ours has been
-- running: it may have taken its fence before the claim in the row did, and find the key free only now.
horizon AS MATERIALIZED (
    SELECT least(clock_timestamp(), (
               SELECT min(xact_start) FROM pg_stat_activity
               WHERE datname = current_database() AND usename = current_user AND state = 'active'
                 AND pid <> pg_backend_pid())) - interval '1 minute' AS before
),

-- Rows that are locked are left for another time. The others are locked here, so they stay as they are found.
due AS MATERIALIZED (
    SELECT held.app, held.global_id
    FROM turn, oncegate_claims AS held
    WHERE turn.ours AND held.sweep_at <= clock_timestamp()
    ORDER BY held.sweep_at
    LIMIT $1
    FOR UPDATE OF held SKIP LOCKED
),

gone AS (
    DELETE FROM oncegate_claims AS held
    USING due, horizon
    WHERE held.app = due.app AND held.global_id = due.global_id
      -- Judged here, in the deleting step, and not by `sweep_at`, which is a hint.
      AND held.state <> 'q' AND held.expires_at <= horizon.before
    RETURNING 1
),

kept AS (
    UPDATE oncegate_claims AS held
    SET sweep_at = CASE
        -- It does not end by itself any more.
        WHEN held.state = 'q' AND held.expires_at <= clock_timestamp() THEN NULL
        WHEN held.expires_at <= clock_timestamp() THEN clock_timestamp() + interval '1 minute'
        ELSE held.expires_at + interval '1 minute' END
    FROM due, horizon
    WHERE held.app = due.app AND held.global_id = due.global_id
      AND NOT coalesce(held.state <> 'q' AND held.expires_at <= horizon.before, false)
    RETURNING 1
)

SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)

-- Deletes records of locks that have ended, up to $1 at a time; returns how many were looked at. Rows that are locked are left for
-- another time.
WITH due AS MATERIALIZED (
    SELECT app, name FROM oncegate_locks
    WHERE sweep_at <= clock_timestamp()
    ORDER BY sweep_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM oncegate_locks AS held USING due
    WHERE held.app = due.app AND held.name = due.name AND held.ends_at <= clock_timestamp()
    RETURNING 1
), kept AS (
    UPDATE oncegate_locks AS held SET sweep_at = held.ends_at FROM due
    WHERE held.app = due.app AND held.name = due.name AND held.ends_at > clock_timestamp()
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM kept)

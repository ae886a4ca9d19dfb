-- Replaces the record of lock $2 of app $1 by $3, which lasts for $5 microseconds, if a record of version $4 is stored that has not
-- ended (NULL: none that has not), and the now is in the bounds $6 (microseconds; inclusive) and $7 (exclusive). Returns whether $3
-- is stored now, the now, and the record that stands. $8: notify callers that wait.
--
-- Of two concurrent calls the second waits for the commit of the first, and then compares with the new version. The clock is read
-- where time is used: a call that waited for the row is judged by the time of that moment. What is returned as standing is what
-- stood at the start of the statement; the caller that decides by it compares again.
WITH changed AS (
    UPDATE oncegate_locks AS held
    SET value = $3, ends_at = clock_timestamp() + $5 * interval '1 microsecond'
    WHERE $4::bytea IS NOT NULL AND held.app = $1 AND held.name = $2
      AND substring(held.value FROM 1 FOR 9) = $4 AND held.ends_at > clock_timestamp()
      AND clock_timestamp() >= to_timestamp(0) + $6 * interval '1 microsecond'
      AND clock_timestamp() < to_timestamp(0) + $7 * interval '1 microsecond'
    -- Sent once this commits.
    RETURNING CASE WHEN $8 THEN pg_notify('oncegate', 'lock:{' || $1 || '/' || $2 || '}')::text END
), made AS (
    INSERT INTO oncegate_locks AS held (app, name, value, ends_at, sweep_at)
    SELECT $1, $2, $3, clock_timestamp() + $5 * interval '1 microsecond', clock_timestamp() + $5 * interval '1 microsecond'
    WHERE $4::bytea IS NULL
      AND clock_timestamp() >= to_timestamp(0) + $6 * interval '1 microsecond'
      AND clock_timestamp() < to_timestamp(0) + $7 * interval '1 microsecond'
      AND NOT EXISTS (SELECT FROM oncegate_locks WHERE app = $1 AND name = $2 AND ends_at > clock_timestamp())
    ON CONFLICT (app, name) DO UPDATE
    SET value = excluded.value, ends_at = clock_timestamp() + $5 * interval '1 microsecond'
    WHERE held.ends_at <= clock_timestamp()
      AND clock_timestamp() < to_timestamp(0) + $7 * interval '1 microsecond'
    RETURNING CASE WHEN $8 THEN pg_notify('oncegate', 'lock:{' || $1 || '/' || $2 || '}')::text END
)
SELECT EXISTS (SELECT FROM changed) OR EXISTS (SELECT FROM made)
           OR coalesce(substring(stands.value FROM 1 FOR 9) = substring($3 FROM 1 FOR 9), false),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, stands.value
FROM (SELECT 1) AS one
LEFT JOIN oncegate_locks AS stands ON stands.app = $1 AND stands.name = $2 AND stands.ends_at > clock_timestamp()

-- A batch of calls on locks: makes the changes, and reads each record as it stands. One statement, so one commit, and none at all
-- if nothing is changed. Locks are distinct and sorted, so that two batches lock the same rows in the same order.
--
-- A change replaces the record by `value`, which lasts for `lasts_us`, if a record of the version `expected` is stored that has not
-- ended (NULL: none that has not), and the now is in the bounds `from_us` (inclusive) and `before_us` (exclusive). A call without
-- `value` only reads. `notifies`: notify callers that wait.
--
-- Of two concurrent changes the second waits for the commit of the first, and then compares with the new version. The clock is
-- read where time is used: a call that waited for the row is judged by the time of that moment. What is returned as standing is
-- what stood at the start of the statement; the caller that decides by it compares again.
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bool[])
        AS asked (app, name, expected, value, lasts_us, from_us, before_us, notifies)
),

changed AS (
    UPDATE oncegate_locks AS held
    SET value = asked.value, ends_at = clock_timestamp() + asked.lasts_us * interval '1 microsecond'
    FROM asked
    WHERE asked.value IS NOT NULL AND asked.expected IS NOT NULL
      AND held.app = asked.app AND held.name = asked.name
      AND substring(held.value FROM 1 FOR 9) = asked.expected AND held.ends_at > clock_timestamp()
      AND clock_timestamp() >= to_timestamp(0) + asked.from_us * interval '1 microsecond'
      AND clock_timestamp() < to_timestamp(0) + asked.before_us * interval '1 microsecond'
    RETURNING held.app, held.name,
        -- For its effect: sent once this commits.
        CASE WHEN asked.notifies THEN pg_notify('oncegate', 'lock:{' || held.app || '/' || held.name || '}')::text END
),

made AS (
    INSERT INTO oncegate_locks AS held (app, name, value, ends_at, sweep_at)
    SELECT asked.app, asked.name, asked.value,
           clock_timestamp() + asked.lasts_us * interval '1 microsecond',
           clock_timestamp() + asked.lasts_us * interval '1 microsecond'
    FROM asked
    WHERE asked.value IS NOT NULL AND asked.expected IS NULL
      AND clock_timestamp() >= to_timestamp(0) + asked.from_us * interval '1 microsecond'
      AND clock_timestamp() < to_timestamp(0) + asked.before_us * interval '1 microsecond'
      AND NOT EXISTS (
          SELECT FROM oncegate_locks AS stands
          WHERE stands.app = asked.app AND stands.name = asked.name AND stands.ends_at > clock_timestamp())
    ON CONFLICT (app, name) DO UPDATE
    SET value = excluded.value,
        ends_at = clock_timestamp()
            + (SELECT lasts_us FROM asked WHERE asked.app = held.app AND asked.name = held.name) * interval '1 microsecond'
    WHERE held.ends_at <= clock_timestamp()
      AND clock_timestamp() < to_timestamp(0)
            + (SELECT before_us FROM asked WHERE asked.app = held.app AND asked.name = held.name) * interval '1 microsecond'
    RETURNING held.app, held.name,
        CASE WHEN (SELECT notifies FROM asked WHERE asked.app = held.app AND asked.name = held.name)
            THEN pg_notify('oncegate', 'lock:{' || held.app || '/' || held.name || '}')::text END
)

SELECT app, name, true AS stored, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us, NULL::bytea AS value
FROM changed
UNION ALL
SELECT app, name, true, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NULL
FROM made
UNION ALL
SELECT asked.app, asked.name,
       -- An earlier try of the same call may have stored it.
       coalesce(substring(stands.value FROM 1 FOR 9) = substring(asked.value FROM 1 FOR 9), false),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, stands.value
FROM asked
LEFT JOIN oncegate_locks AS stands
    ON stands.app = asked.app AND stands.name = asked.name AND stands.ends_at > clock_timestamp()

-- One batch: what can be decided in one step is written; for the rest, what is stored is returned. One statement, so one commit,
-- and none at all if nothing was written. Keys are distinct and sorted, so that two batches lock the same rows in the same
-- order.
--
-- The clock is read where time is used, not once at the start: a statement may wait for a row, and the claim that it then finds
-- must be judged by the time of that moment.
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::bytea[], $3::"char"[], $4::"char"[], $5::bigint[], $6::bigint[], $7::bigint[],
                $8::bytea[], $9::bytea[], $10::bytea[])
        -- kind: p puts a record where none is stored, s reports a success, f a failure, r only reads.
        AS asked (app, global_id, kind, state, lifetime_us, retention_us, sweep_us, head, value, tail)
),

-- Puts a record where none is stored. Live claims are filtered out first, by a lookup that writes nothing: ON CONFLICT alone
-- would lock the row of every duplicate, which is a write and a commit. It decides what this lookup could not see: a claim that
-- was granted since then is waited for and left alone, one that has ended is replaced.
--
-- The fence is taken under the row's lock where there is a row. Where there is none, the sweeper deletes rows only long after
-- their claims have ended; see docs/adr/0010-postgres-batches-and-fences.md.
put AS (
    INSERT INTO oncegate_claims AS held
        (fence, retention_us, expires_at, sweep_at, state, app, global_id, value)
    SELECT nextval('oncegate_fence'), asked.retention_us,
           clock_timestamp() + asked.lifetime_us * interval '1 microsecond',
           clock_timestamp() + asked.sweep_us * interval '1 microsecond',
           asked.state, asked.app, asked.global_id, asked.value
    FROM asked
    WHERE asked.kind = 'p'
      AND NOT EXISTS (
          SELECT FROM oncegate_claims AS stands
          WHERE stands.app = asked.app AND stands.global_id = asked.global_id
            AND stands.state <> 'r'
            AND (stands.state = 'q' OR stands.expires_at IS NULL OR stands.expires_at > clock_timestamp()))
    ON CONFLICT (app, global_id) DO UPDATE
    SET fence = greatest(held.fence + 1, nextval('oncegate_fence')),
        retention_us = excluded.retention_us, expires_at = excluded.expires_at, sweep_at = excluded.sweep_at,
        state = excluded.state, value = excluded.value
    WHERE held.state = 'r' OR (held.state <> 'q' AND held.expires_at <= clock_timestamp())
    RETURNING held.app, held.global_id, held.fence, held.expires_at
),

-- Settles a claim in progress that the reporting attempt holds: the value begins with it (head: the attempt, a blank and the
-- layout's version). All other transitions of outcomes are decided by `domain::claim`.
settled AS (
    UPDATE oncegate_claims AS held
    SET state = CASE asked.kind WHEN 's' THEN 's' ELSE 'r' END::"char",
        -- The state letter changes, its retention goes before the old one, the result comes last.
        value = CASE
            -- For its effect: notifies callers that wait for a marked claim, once this commits. Never true.
            WHEN substring(held.value FROM octet_length(asked.head) + 1 FOR 4) = 'p w '::bytea
                AND pg_notify('oncegate', '{' || encode(held.global_id, 'hex') || '}:' || held.app)::text IS NULL
            THEN held.value
            WHEN asked.kind = 's' THEN asked.head || 's'::bytea || asked.value
                || substring(held.value FROM octet_length(asked.head) + 2) || asked.tail
            ELSE ''::bytea END,
        -- lifetime_us: NULL for the claim's own retention, -1 for ever; also below.
        retention_us = nullif(coalesce(asked.lifetime_us, held.retention_us, -1), -1),
        expires_at = CASE asked.kind
            WHEN 's' THEN clock_timestamp()
                + nullif(coalesce(asked.lifetime_us, held.retention_us, -1), -1) * interval '1 microsecond'
            ELSE clock_timestamp() END,
        -- A success leaves it unchanged, so that no index changes. The row of a failure may be deleted soon.
        sweep_at = CASE asked.kind
            WHEN 's' THEN coalesce(held.sweep_at, clock_timestamp()
                + nullif(coalesce(asked.lifetime_us, held.retention_us, -1), -1) * interval '1 microsecond')
            ELSE clock_timestamp() + interval '1 minute' END
    FROM asked
    WHERE asked.kind IN ('s', 'f')
      AND held.app = asked.app AND held.global_id = asked.global_id
      AND (held.state = 'q' OR (held.state = 'p' AND held.expires_at > clock_timestamp()))
      AND substring(held.value FROM 1 FOR octet_length(asked.head)) = asked.head
    RETURNING held.app, held.global_id, held.fence, held.retention_us, held.expires_at
)

-- ends_us: the end for people, in microseconds since the epoch; `ends` is the same for a comparison, exact as the server writes it.
SELECT 'w'::"char" AS what, app, global_id, fence, NULL::"char" AS state, NULL::bigint AS left_us, NULL::text AS ends,
       NULL::bytea AS value, (extract(epoch FROM expires_at) * 1000000)::bigint AS ends_us
FROM put
UNION ALL
SELECT 'w', app, global_id, fence, NULL, retention_us, NULL, NULL, (extract(epoch FROM expires_at) * 1000000)::bigint
FROM settled
UNION ALL
SELECT CASE WHEN taken THEN 't' ELSE 'h' END::"char", app, global_id, fence, state, left_us, ends,
       CASE WHEN NOT taken THEN value END, ends_us
FROM (
    SELECT held.app, held.global_id, held.fence, held.state, held.value, held.expires_at::text AS ends,
           (extract(epoch FROM held.expires_at - clock_timestamp()) * 1000000)::bigint AS left_us,
           (extract(epoch FROM held.expires_at) * 1000000)::bigint AS ends_us,
           -- `settled` is about to take it: distinguished from a key without a claim, in case another one is faster.
           asked.kind IN ('s', 'f') AND held.state IN ('p', 'q')
               AND substring(held.value FROM 1 FOR octet_length(asked.head)) = asked.head AS taken
    FROM asked
    JOIN oncegate_claims AS held ON held.app = asked.app AND held.global_id = asked.global_id
    WHERE held.state <> 'r' AND (held.state = 'q' OR held.expires_at IS NULL OR held.expires_at > clock_timestamp())
) AS found

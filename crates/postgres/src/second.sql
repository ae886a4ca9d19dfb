-- Applies transitions that `domain::claim` has decided: each only if the row is still the version that was read, and its time
-- has not ended since it was read (or had ended already). Another attempt has another fence; the same attempt's record, once settled or
-- renewed, has another state or end.
UPDATE oncegate_claims AS held
SET fence = CASE WHEN asked.fresh THEN greatest(held.fence + 1, nextval('oncegate_fence')) ELSE held.fence END,
    state = asked.state,
    -- NULL: the value stays, and only lasts longer.
    value = CASE
        WHEN asked.value IS NULL THEN held.value
        -- For its effect, as in the first statement: notifies callers that wait for a marked claim. Never true.
        WHEN position(' 1p w '::bytea IN substring(held.value FROM 34 FOR 60)) > 0
            AND pg_notify('oncegate', '{' || encode(held.global_id, 'hex') || '}:' || held.app)::text IS NULL
        THEN held.value
        ELSE asked.value END,
    retention_us = CASE WHEN asked.value IS NULL THEN held.retention_us ELSE asked.retention_us END,
    -- lifetime_us: NULL for ever, -1 for no change.
    expires_at = CASE asked.lifetime_us
        WHEN -1 THEN held.expires_at
        ELSE clock_timestamp() + asked.lifetime_us * interval '1 microsecond' END,
    sweep_at = CASE
        WHEN asked.lifetime_us = -1 THEN held.sweep_at
        WHEN asked.sweep_us IS NULL
        THEN coalesce(held.sweep_at, clock_timestamp() + asked.lifetime_us * interval '1 microsecond')
        ELSE clock_timestamp() + asked.sweep_us * interval '1 microsecond' END
FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::"char"[], $5::text[], $6::bool[],
            $7::"char"[], $8::bool[], $9::bytea[], $10::bigint[], $11::bigint[], $12::bigint[])
    AS asked (app, global_id, was_fence, was_state, was_ends, was_over, state, fresh, value, lifetime_us, retention_us, sweep_us)
WHERE held.app = asked.app AND held.global_id = asked.global_id
  AND held.fence = asked.was_fence AND held.state = asked.was_state
  AND held.expires_at IS NOT DISTINCT FROM asked.was_ends::timestamptz
  AND coalesce(held.expires_at <= clock_timestamp(), false) = asked.was_over
RETURNING held.app, held.global_id, held.fence, (extract(epoch FROM held.expires_at) * 1000000)::bigint AS ends_us

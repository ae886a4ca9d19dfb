-- Marks the claim of app $1 and global ID $2, so that its end is notified, if it is still in progress and has fence $3: by the
-- word `w` after its state. Its end stays, and so does the version by which other statements recognise the row. Returns whether
-- it is marked now.
--
-- An attempt has 33 to 81 bytes and no blank, so the first ` 1p` from byte 34 on ends it.
WITH held AS MATERIALIZED (
    SELECT app, global_id, position(' 1p'::bytea IN substring(value FROM 34 FOR 60)) + 35 AS state_at,
           position(' 1p w '::bytea IN substring(value FROM 34 FOR 60)) > 0 AS is_marked
    FROM oncegate_claims
    WHERE app = $1 AND global_id = $2 AND fence = $3 AND state IN ('p', 'q') AND expires_at > clock_timestamp()
    FOR UPDATE
), marked AS (
    UPDATE oncegate_claims AS claim
    SET value = substring(claim.value FROM 1 FOR held.state_at) || ' w'::bytea
        || substring(claim.value FROM held.state_at + 1)
    FROM held
    WHERE claim.app = held.app AND claim.global_id = held.global_id AND NOT held.is_marked
    RETURNING 1
)
SELECT EXISTS (SELECT FROM marked) OR EXISTS (SELECT FROM held WHERE is_marked)

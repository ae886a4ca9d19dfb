-- A page of an app's live claims, in the order of their IDs. Each row is judged by the time at which it is read.
SELECT 'h'::"char" AS what, app, global_id, fence, state,
       (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint AS left_us, expires_at::text AS ends, value,
       (extract(epoch FROM expires_at) * 1000000)::bigint AS ends_us
FROM oncegate_claims
WHERE app = $1 AND global_id > $2
  AND state <> 'r' AND (state = 'q' OR expires_at IS NULL OR expires_at > clock_timestamp())
  AND CASE $3::"char"
      WHEN 'a' THEN true
      -- In progress, or unknown once the lease has ended: the time decides which.
      WHEN 'p' THEN state = 'p' OR (state = 'q' AND expires_at > clock_timestamp())
      WHEN 'u' THEN state = 'u' OR (state = 'q' AND expires_at <= clock_timestamp())
      ELSE state = $3 END
ORDER BY app, global_id
LIMIT $4

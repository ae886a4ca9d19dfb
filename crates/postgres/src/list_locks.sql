-- Returns the now in microseconds, and the records and names of app $1's locks after name $2, at most $3, that have not ended. One row
-- without a record if there are none.
SELECT (extract(epoch FROM clock.now) * 1000000)::bigint, held.value, held.name
FROM (SELECT clock_timestamp() AS now) AS clock
LEFT JOIN LATERAL (
    SELECT value, name FROM oncegate_locks
    WHERE app = $1 AND name > $2 AND ends_at > clock.now
    ORDER BY name
    LIMIT $3
) AS held ON true

-- Returns the now in microseconds, and the record of lock $2 of app $1 unless it has ended.
SELECT (extract(epoch FROM clock.now) * 1000000)::bigint, held.value
FROM (SELECT clock_timestamp() AS now) AS clock
LEFT JOIN oncegate_locks AS held ON held.app = $1 AND held.name = $2 AND held.ends_at > clock.now

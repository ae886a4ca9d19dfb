-- Returns the now in microseconds, and the metadata value of name $1.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, stands.value
FROM (SELECT 1) AS one
LEFT JOIN oncegate_metadata AS stands ON stands.name = $1

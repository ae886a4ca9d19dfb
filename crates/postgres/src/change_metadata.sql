-- Sets the metadata value of name $1 to $3 if $2 is stored (NULL: nothing). Returns whether $3 is stored now, the now in
-- microseconds, and the value that stood at the start of the statement.
--
-- Of two concurrent calls the second waits for the commit of the first: its update then compares with the new value, or its insert
-- finds the name taken. So of two that expect the same value, one gets false. The last lookup is for a repeat of a call whose
-- answer was lost.
WITH changed AS (
    UPDATE oncegate_metadata SET value = $3 WHERE name = $1 AND value = $2 RETURNING 1
), made AS (
    INSERT INTO oncegate_metadata (name, value) SELECT $1, $3 WHERE $2 IS NULL
    ON CONFLICT (name) DO NOTHING RETURNING 1
)
SELECT EXISTS (SELECT FROM changed) OR EXISTS (SELECT FROM made) OR coalesce(stands.value = $3, false),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, stands.value
FROM (SELECT 1) AS one
LEFT JOIN oncegate_metadata AS stands ON stands.name = $1

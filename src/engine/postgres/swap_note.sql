-- Puts the note $1 to $3 if $2 stands there (NULL: no note). Tells whether it stands now.
--
-- Whoever comes second waits for the first one's commit at the row: the update then compares with what the first has put, and
-- the insert finds its name taken. So of two that expect the same, one is told false. The last look is for a repeat of a call
-- whose answer was lost.
WITH changed AS (
    UPDATE oncegate_notes SET value = $3 WHERE name = $1 AND value = $2 RETURNING 1
), made AS (
    INSERT INTO oncegate_notes (name, value) SELECT $1, $3 WHERE $2 IS NULL
    ON CONFLICT (name) DO NOTHING RETURNING 1
)
SELECT EXISTS (SELECT FROM changed) OR EXISTS (SELECT FROM made)
    OR EXISTS (SELECT FROM oncegate_notes WHERE name = $1 AND value = $3)

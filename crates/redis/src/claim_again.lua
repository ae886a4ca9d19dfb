#!lua flags=allow-oom
-- Claim call for a key that is probably taken: the same SET as of every claim, and the time that is left of what it found.
--
-- Without `allow-oom`, unlike the other scripts: it grants, which a full server must not.
--
-- ARGV: the new value, and its milliseconds.
-- Returns nothing if it was granted; else the value that is stored, its remaining milliseconds and its end (-1: for ever).
local found = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if not found then
  return false
end
return { found, redis.call('PTTL', KEYS[1]), redis.call('PEXPIRETIME', KEYS[1]) }

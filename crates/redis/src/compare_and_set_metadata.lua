#!lua flags=allow-oom
-- Puts a note of the gateways' own under KEYS[1] if what stands there is what was expected, or the note itself already.
--
-- allow-oom: what gateways agree by is small, and most needed while the server is in trouble. No `no-writes`: see live_claim.lua.
--
-- ARGV: the new note; the expected one, left out if none is.
-- Answers: 1 if it stands now, else 0.
local new, expected = unpack(ARGV)

local stands = redis.call('GET', KEYS[1])
if stands == new then
  return 1
end
if stands ~= (expected or false) then
  return 0
end
redis.call('SET', KEYS[1], new)
return 1

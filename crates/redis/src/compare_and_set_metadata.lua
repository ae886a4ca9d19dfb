#!lua flags=allow-oom
-- Stores metadata under KEYS[1] if the expected value is stored there, or the new one already.
--
-- allow-oom: metadata is small, and gateways need it most while the server is in trouble. No `no-writes`: see live_claim.lua.
--
-- ARGV: the new value; the expected one, left out for none.
-- Returns 1 if the new value is stored now, else 0.
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

-- Take-over: replaces a claim that is `unknown`, if its value is still the one that the caller has read.
--
-- ARGV: the value that was read, the new value, and the new value's milliseconds.
-- Returns 1 if it was replaced, 0 if another value is stored now. Comparing the value is not enough: a claim in progress
-- has the same value before and after the end of its lease.
local expected, value, ms = unpack(ARGV)

local held = hold(KEYS[1])
if not held or held.value ~= expected or held.state ~= 'u' then
  return 0
end
redis.call('SET', KEYS[1], value, 'PX', ms)
notify(held)
return 1

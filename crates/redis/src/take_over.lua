-- Take-over: puts a new claim in the place of one that is `unknown`, if it is still the one that was judged.
--
-- ARGV: the value it was judged by, the new value, and the new value's milliseconds.
-- Answers 1 if it was put, 0 if something else stands there by now. Comparing the value alone would not do: a claim in
-- progress whose lease has ended is written the same as before it ended.
local expected, value, ms = unpack(ARGV)

local held = hold(KEYS[1])
if not held or held.value ~= expected or held.state ~= 'u' then
  return 0
end
redis.call('SET', KEYS[1], value, 'PX', ms)
return 1

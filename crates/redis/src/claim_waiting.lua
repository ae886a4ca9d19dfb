-- Claim call of a caller that waits: claims the key KEYS[1] if nothing is stored there; else marks a claim in progress, so that
-- its end is notified, and returns what is stored. In one step, so that no end falls between the look and the mark.
--
-- Without `allow-oom`, unlike the other scripts: it grants, which a full server must not.
--
-- ARGV: the new value, and its milliseconds.
-- Returns nothing if it was granted; else the value, without a new mark, its remaining milliseconds and its end (-1: for ever).
local value, ms = unpack(ARGV)

local held, unreadable = hold(KEYS[1])
if not held and not unreadable then
  redis.call('SET', KEYS[1], value, 'PX', ms)
  return false
end
local ends_ms = redis.call('PEXPIRETIME', KEYS[1])
if held and held.state == 'p' and not held.is_waited_for then
  local marked = held.attempt .. ' 1p w' .. string.sub(held.value, #held.attempt + 4)
  redis.call('SET', KEYS[1], marked, 'KEEPTTL')
end
return { held and held.value or redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), ends_ms }

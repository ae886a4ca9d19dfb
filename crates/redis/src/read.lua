#!lua flags=allow-oom
-- Read of a claim on a server that is full: it queues no command of a transaction, which does the same for less.
--
-- Returns the value of KEYS[1], its remaining milliseconds and its end in milliseconds (-1: for ever) at one instant; nothing if there is
-- none.
--
-- Two commands would be two instants, and another attempt may get the claim between them. The script writes nothing, but is
-- not declared `no-writes`: a replica would run it and answer from its data, which lags behind.
local value = redis.call('GET', KEYS[1])
if not value then
  return false
end
return { value, redis.call('PTTL', KEYS[1]), redis.call('PEXPIRETIME', KEYS[1]) }

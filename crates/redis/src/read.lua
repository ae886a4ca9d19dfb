#!lua flags=allow-oom
-- What KEYS[1] holds and how long it lasts (-1: for ever), as of one instant; nothing if it holds nothing.
--
-- Two commands would be two instants, and a claim may change hands between them. It writes nothing, but is not declared
-- `no-writes`: a replica would run it and answer from what it has got so far.
local value = redis.call('GET', KEYS[1])
if not value then
  return false
end
return { value, redis.call('PTTL', KEYS[1]) }

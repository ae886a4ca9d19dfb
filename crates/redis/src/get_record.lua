#!lua flags=allow-oom
-- Returns the server's now in microseconds, and the shared record of KEYS[1] if there is one, at one instant. It writes nothing,
-- and is not declared `no-writes`: a replica would run it and answer from its data, which lags behind.
--
-- The now is 0 if our user may not run TIME: metadata needs none, and releases before locks did not ask for this right.
local time = redis.pcall('TIME')
local now = time.err and 0 or tonumber(time[1]) * 1000000 + tonumber(time[2])
return { now, redis.call('GET', KEYS[1]) }

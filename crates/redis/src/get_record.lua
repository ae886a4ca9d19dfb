#!lua flags=allow-oom
-- Returns the server's now in microseconds, and the shared record of KEYS[1] if there is one, at one instant. It writes nothing,
-- and is not declared `no-writes`: a replica would run it and answer from its data, which lags behind.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
return { now, redis.call('GET', KEYS[1]) }

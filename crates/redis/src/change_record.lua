-- Stores the shared record of KEYS[1] if the version of the expected one is stored there, or the new one already, and the server's
-- now is within bounds. Its first line is added where it is loaded: a grant is refused while the server is full.
--
-- A versioned record begins with byte 1 and its version, nine bytes together; a plain one is its own version.
--
-- ARGV: the new record and its version, its milliseconds ('': for ever), the first and the last microsecond of the bounds (it is
-- too late at the last), 1 if subscriptions are notified, and the version of the expected record, left out for none.
-- Returns 1 if the new record is stored now, else 0; the now in microseconds; and, unless it is stored, the record that stands.
local new, version, lasts_ms, from, before, notifies, expected = unpack(ARGV)

local function has(record, wanted)
  if string.byte(wanted, 1) == 1 then
    return string.sub(record, 1, #wanted) == wanted
  end
  return record == wanted
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local stands = redis.call('GET', KEYS[1])
if stands and has(stands, version) then
  return { 1, now }
end
local is_expected
if stands then
  is_expected = expected and has(stands, expected)
else
  is_expected = not expected
end
if not is_expected or now < tonumber(from) or now >= tonumber(before) then
  return { 0, now, stands }
end
if lasts_ms == '' then
  redis.call('SET', KEYS[1], new)
else
  redis.call('SET', KEYS[1], new, 'PX', lasts_ms)
end
if notifies == '1' then
  -- Notifications are hints: without the right to publish, the change is made all the same.
  redis.pcall('SPUBLISH', KEYS[1], '')
end
return { 1, now }

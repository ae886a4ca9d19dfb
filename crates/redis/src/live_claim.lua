#!lua flags=allow-oom
-- Prefix of the scripts that change a claim: reads the value of KEYS[1] and checks whether its time has ended.
--
-- allow-oom: outcomes and renewals of granted claims must succeed while the server has no room for new claims. Never
-- `no-writes`: a replica would run such a script and answer from its data, which lags behind.
--
-- The layout of the value is described in docs/adr/0003-value-layout.md. Only words before ` c=` count, since contents
-- may contain anything but a newline, and the result after the newline may contain anything.

-- While in progress, a claim whose lease end means `unknown` must stay in the store after its lease. So its key expires a
-- hundred years later, and its lease has ended once less than that is left.
local GRACE = 3155760000000

local UNITS = { ms = 1, s = 1000, m = 60000, h = 3600000, d = 86400000 }

-- Returns the milliseconds of a duration in a value, nil for other text.
local function span_ms(text)
  local count, unit = string.match(text, '^([1-9]%d*)(%l+)$')
  if not count or #count > 9 or not UNITS[unit] then
    return nil
  end
  return tonumber(count) * UNITS[unit]
end

-- Returns the milliseconds of a retention, -1 for `forever`.
local function retention_ms(text)
  return text == 'forever' and -1 or span_ms(text)
end

-- Returns whether strings are closed, brackets are paired, and everything outside of strings may occur there in JSON.
local function may_be_json(text)
  -- Most contents are a string, or an object of one or two.
  if string.find(text, '^"[^"\\]*"$') or string.find(text, '^{"[^"\\]*":"[^"\\]*"}$')
    or string.find(text, '^{"[^"\\]*":"[^"\\]*","[^"\\]*":"[^"\\]*"}$') then
    return true
  end
  local bare = string.gsub(string.gsub(text, '\\.', '0'), '"[^"]*"', '0')
  local words = { ['true'] = '', ['false'] = '', ['null'] = '', e = '', E = '' }
  local rest = string.gsub(bare, '%a+', words)
  local _, opened = string.gsub(rest, '{', '{')
  local _, closed = string.gsub(rest, '}', '}')
  local _, listed = string.gsub(rest, '%[', '[')
  local _, ended = string.gsub(rest, '%]', ']')
  return text ~= '' and opened == closed and listed == ended
    and not string.find(rest, '[^%d+%-.{}%[%],: \t\r\n]')
end

local function is_utf8(text)
  -- Anchored, which is faster than to look for another byte from each position.
  if string.find(text, '^[\1-\127%z]*$') then
    return true
  end
  -- Each sequence has a first byte of its own, so none is left.
  local sequences = {
    '[\194-\223][\128-\191]',
    '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]',
    '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]',
    '\244[\128-\143][\128-\191][\128-\191]',
  }
  for _, sequence in ipairs(sequences) do
    text = string.gsub(text, sequence, ' ')
  end
  return not string.find(text, '[\128-\255]')
end

local function is_digest(text)
  return #text == 64 and not string.find(text, '%X')
end

-- Reads a word into the claim. Returns whether it could be read. Words of newer releases are ignored.
local function read_word(held, word)
  local name, text = string.match(word, '^(%l)=(.*)$')
  if name == 'l' then
    held.lease_ms = span_ms(text)
    return held.lease_ms
  elseif name == 'r' then
    -- The first one counts: a success writes a new retention before the old one.
    held.retention_ms = held.retention_ms or retention_ms(text)
    return held.retention_ms
  elseif name == 'u' then
    held.unknown_retention_ms = retention_ms(text)
    return held.unknown_retention_ms
  elseif name == 'e' then
    held.outlives_lease = text == 'u'
    return held.outlives_lease
  elseif name == 'o' then
    return text == '' or (#text <= 128 and string.find(text, '^%w[%w._:/-]*$'))
  elseif name == 'f' then
    return is_digest(text)
  elseif name == 'h' then
    local digest, bytes = string.match(text, '^([^:]*):(%d+)$')
    return digest and is_digest(digest) and #bytes <= 15
  elseif word == 'late' then
    held.late = 1
  elseif word == 'w' then
    held.is_waited_for = true
  end
  return true
end

-- Returns the live claim of the key by this server's clock; nil if there is none. The second value is true if it cannot be
-- read: then it is neither absent nor may it be changed. `decode` in crates/core/src/engine/value.rs reads values in the same way, and
-- a test compares the two: a change to one is a change to both.
local function hold(key)
  local value = redis.call('GET', key)
  if not value then
    return nil
  end
  if not is_utf8(value) then
    return nil, true
  end
  local line_end = string.find(value, '\n', 1, true)
  local header = line_end and string.sub(value, 1, line_end - 1) or value
  local contents_at = string.find(header, ' c=', 1, true)
  if contents_at and not may_be_json(string.sub(header, contents_at + 3)) then
    return nil, true
  end
  local words = contents_at and string.sub(header, 1, contents_at - 1) or header
  local attempt, state, rest = string.match(words, '^([1-9]%d*%-[%w_-]+) 1([psu])(.*)$')
  if not attempt or (rest ~= '' and string.sub(rest, 1, 1) ~= ' ') then
    return nil, true
  end
  local digits = string.find(attempt, '-', 1, true) - 1
  local nonce = #attempt - digits - 1
  -- With the same number of digits, texts are ordered like numbers.
  if digits ~= 16 or string.sub(attempt, 1, 16) > '9007199254740991' or nonce < 16 or nonce > 64 then
    return nil, true
  end

  local held = { value = value, attempt = attempt, state = state, late = 0 }
  -- Everything after the state letter, up to the result.
  held.tail = string.sub(header, #attempt + 4)
  for word in string.gmatch(rest, '[^ ]+') do
    if not read_word(held, word) then
      return nil, true
    end
  end
  -- The terms that the layout leaves out: 30 s, a day, 7 days.
  held.lease_ms = held.lease_ms or 30000
  held.retention_ms = held.retention_ms or 86400000
  held.unknown_retention_ms = held.unknown_retention_ms or 604800000

  -- Time does not pass while a script runs, so this agrees with the GET above. -1: it does not end by itself.
  held.left_ms = redis.call('PTTL', key)
  held.grace_ms = 0
  if state == 'p' and held.outlives_lease and held.left_ms >= 0 then
    held.grace_ms = GRACE
    held.left_ms = held.left_ms - GRACE
    if held.left_ms < 0 then
      held.state = 'u'
      held.left_ms = -1
    end
  end
  return held
end

-- Returns when the key expires by this server's clock, in milliseconds; -1 if it does not, or if our user may not run the command: that
-- must not fail a call that has written.
local function ends_ms()
  local at = redis.pcall('PEXPIRETIME', KEYS[1])
  return type(at) == 'number' and at or -1
end

-- Notifies callers that wait for the claim that was changed, if there are any. Called last, and its failure is ignored: a missing
-- right to publish must not fail an outcome. The channel has the name of the key, and so its slot.
local function notify(held)
  if held.is_waited_for then
    redis.pcall('SPUBLISH', KEYS[1], '')
  end
end

-- Returns milliseconds as an argument. Redis would write large ones with an exponent, and then not accept them.
local function whole(ms)
  return string.format('%.0f', ms)
end
